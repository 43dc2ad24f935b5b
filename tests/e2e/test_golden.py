"""`quire generate` against committed answers of transformers (tests/golden, made by tests/hf).

The same comparison runs live, on all positions, with `make test-hf`.
"""

import hashlib
import json

import numpy as np
import pytest

import golden_file
import quire_cli
import random_model
import safetensors_np
import subjects

GOLDEN = golden_file.read_all()
F32 = {"compute": "f32", "kv": "f32"}

# (least, most) difference of a prompt logit from the f32 answer when only the cache is narrower:
# f16 rounds K and V to 11 bits, bf16 to 8. Measured over the cases, alike for this program and a
# plain numpy model: 0.010..0.019 (f16), 0.092..0.147 (bf16), 8e-5 (f32). About twice that is
# allowed; the lower ends show that the flag reached the cache and which codec it chose.
NARROW_LIMITS = {"f16": (0.001, 0.04), "bf16": (0.04, 0.3)}


@pytest.fixture(scope="module", params=subjects.names())
def case(request, tmp_path_factory):
    """(golden, subject): a committed case and the same model and prompt, made again."""
    name = request.param
    assert name in GOLDEN, f"no golden file for {name}: run tests/hf/run.sh --write-golden"
    golden = GOLDEN[name]
    subject = subjects.prepare(name, golden.seed, tmp_path_factory.mktemp("models"))
    assert subject.digest() == golden.inputs_blake2b, (
        f"{name}: config, weights or prompt are not those the golden file was made from; if that "
        "is intended, run tests/hf/run.sh --write-golden and commit tests/golden")
    return golden, subject


def run(subject, tmp_path, **options):
    return quire_cli.generate(subject.model, subject.prompt, tmp_path / "logits.npy",
                              max_tokens=subjects.GENERATED_TOKENS, temperature=0, **options)


def test_cases_are_all_committed():
    assert {case.name for case in random_model.CASES} <= set(GOLDEN)
    cases = random_model.CASES
    shapes = {(case.kv_heads == case.heads, case.kv_heads == 1) for case in cases}
    assert shapes == {(True, False), (False, False), (False, True)}  # MHA, GQA, MQA
    assert {case.family for case in cases} == set(random_model.ARCHITECTURES)
    assert {2, 3, 7} <= {case.heads // case.kv_heads for case in cases}
    assert {24, 64, 80, 128, 256} <= {case.head_dim for case in cases}
    rotations = {case.rope.get("rope_type", case.rope.get("type", "default")) for case in cases}
    assert rotations == {"default", "linear", "llama3", "yarn"}
    assert all(golden.gap_min > subjects.GAP_MIN for golden in GOLDEN.values())
    size_bytes = sum(path.stat().st_size for path in golden_file.FOLDER.glob("*.npy"))
    assert size_bytes < 400_000


def test_f32_logits_and_greedy_tokens(case, tmp_path):
    golden, subject = case
    ours = run(subject, tmp_path, **F32)
    prompt_tokens, generated_tokens = len(subject.prompt), subjects.GENERATED_TOKENS

    assert ours.json["prompt_tokens"] == prompt_tokens
    assert ours.json["generated_tokens"] == generated_tokens
    assert ours.json["reused_tokens"] == 0
    assert ours.logits.dtype == np.float32
    assert ours.logits.shape == (prompt_tokens + generated_tokens - 1, golden.logits.shape[1])
    assert np.isfinite(ours.logits).all()

    difference = np.abs(ours.logits[golden.positions] - golden.logits).max(axis=1)
    worst = int(difference.argmax())
    assert difference[worst] <= subjects.DIFFERENCE_MAX, (
        f"{difference[worst]:.3g} at position {golden.positions[worst]}; by position "
        f"{dict(zip(golden.positions, difference.round(4).tolist()))}")
    assert ours.greedy_ids() == golden.generated_ids
    assert ours.json["tokens"] == golden.generated_ids

    steps = np.ascontiguousarray(ours.logits[prompt_tokens - 1 :]).astype("<f4")
    digest = hashlib.blake2b(steps.tobytes(), digest_size=16).hexdigest()
    assert ours.json["logits_digest"] == digest


@pytest.mark.parametrize("codec", sorted(NARROW_LIMITS))
@pytest.mark.parametrize("name", ["gqa", "mqa"])
def test_narrow_kv_stays_near_f32(name, codec, tmp_path):
    golden = GOLDEN[name]
    subject = subjects.prepare(name, golden.seed, tmp_path)
    ours = run(subject, tmp_path, compute="f32", kv=codec)
    assert np.isfinite(ours.logits).all()
    # After the prompt a run may choose other tokens; before, the inputs are the same.
    rows = [i for i, position in enumerate(golden.positions) if position < len(subject.prompt)]
    positions = np.array(golden.positions)[rows]
    difference = float(np.abs(ours.logits[positions] - golden.logits[rows]).max())
    low, high = NARROW_LIMITS[codec]
    assert low < difference < high


# ---------------------------------------------------- the comparison above can fail, field by field

TYPES = ["full_attention", "sliding_attention"]
CHANGES = [
    ("llama3", {"rope_scaling": {"factor": 9.0}}),
    ("llama3", {"rope_scaling": {"low_freq_factor": 1.5}}),
    ("llama3", {"rope_scaling": {"high_freq_factor": 3.0}}),
    ("llama3", {"rope_scaling": {"original_max_position_embeddings": 160}}),
    ("llama3", {"rope_theta": 4e5}),
    ("biased", {"rope_parameters": {"factor": 2.6}}),
    ("mistral", {"sliding_window": 47}),
    ("mistral", {"sliding_window": 49}),
    ("mistral", {"sliding_window": None}),
    ("nemo", {"sliding_window": 301}),
    ("nemo", {"rope_parameters": {"factor": 5.0}}),
    ("nemo", {"rope_parameters": {"attention_factor": None}}),
    ("nemo", {"rope_parameters": {"original_max_position_embeddings": 512}}),
    ("qwen2", {"rope_scaling": {"type": "linear"}}),
    ("qwen2", {"rope_scaling": None}),
    ("qwen2-mixed", {"sliding_window": 41}),
    ("qwen2-mixed", {"layer_types": [*TYPES, *TYPES]}),
    ("qwen2-mixed", {"use_sliding_window": False, "layer_types": None}),
    ("qwen2-late", {"max_window_layers": 2}),
    ("qwen2-late", {"sliding_window": 99}),
    ("qwen3-all", {"rope_parameters": {"truncate": True}}),
    ("qwen3-all", {"rope_parameters": {"beta_fast": 12}}),
    ("qwen3-all", {"rope_parameters": {"beta_slow": 3}}),
    ("qwen3-all", {"rope_parameters": {"mscale": 0.9}}),
    ("qwen3-all", {"rope_parameters": {"mscale_all_dim": 1.0}}),
    ("qwen3-all", {"sliding_window": 256}),
]


def largest_difference(name: str, subject, tmp_path) -> float:
    golden = GOLDEN[name]
    ours = quire_cli.generate(subject.model, subject.prompt, tmp_path / "logits.npy", max_tokens=1,
                              **F32)
    rows = [i for i, position in enumerate(golden.positions) if position < len(subject.prompt)]
    return float(np.abs(ours.logits[np.array(golden.positions)[rows]] - golden.logits[rows]).max())


@pytest.mark.parametrize("name, change", CHANGES, ids=lambda part: str(part)[:60])
def test_another_config_is_another_answer(name, change, tmp_path):
    subject = subjects.prepare(name, GOLDEN[name].seed, tmp_path)
    path = subject.model / "config.json"
    config = json.loads(path.read_bytes())
    for field, value in change.items():
        config[field] = config[field] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(config), encoding="utf-8")
    assert largest_difference(name, subject, tmp_path) > subjects.DIFFERENCE_MAX


@pytest.mark.parametrize("tensor", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                    "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
                                    "mlp.down_proj"])
def test_another_bias_is_another_answer(tensor, tmp_path):
    subject = subjects.prepare("biased", GOLDEN["biased"].seed, tmp_path)
    case = next(case for case in random_model.CASES if case.name == "biased")
    weights = random_model.tensors(case, GOLDEN["biased"].seed)
    weights[f"model.layers.0.{tensor}.bias"] += np.float32(0.1)
    blob = safetensors_np.encode(weights, case.dtype)
    (subject.model / "model.safetensors").write_bytes(blob)
    assert largest_difference("biased", subject, tmp_path) > subjects.DIFFERENCE_MAX
