"""`quire generate` against committed answers of transformers (tests/golden, made by tests/hf).

The same comparison runs live, on all positions, with `make test-hf`.
"""

import hashlib

import numpy as np
import pytest

import golden_file
import quire_cli
import random_qwen3
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
    assert {case.name for case in random_qwen3.CASES} <= set(GOLDEN)
    shapes = {(case.kv_heads == case.heads, case.kv_heads == 1) for case in random_qwen3.CASES}
    assert shapes == {(True, False), (False, False), (False, True)}  # MHA, GQA, MQA
    assert all(golden.gap_min > subjects.GAP_MIN for golden in GOLDEN.values())
    size_bytes = sum(path.stat().st_size for path in golden_file.FOLDER.iterdir() if path.is_file())
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
