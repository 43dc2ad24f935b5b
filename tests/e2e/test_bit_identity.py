"""A hit is bit-identical to a miss, and nothing about how a run is cut up shows in its logits.

`logits_digest` is a hash over the raw logits of every generated step: equal digests, equal bits.
"""

import functools
import json

import pytest

import quire_cli
import random_model
import subjects

SEED = 5
PROMPT_TOKENS = 700  # three splits of 256 tokens, the last block cut
MAX_TOKENS = 12
# Small enough to run many times; query groups, several layers, no dimension of whole vectors.
MODELS = {
    "f32": random_model.Case(
        "identity-f32", layers=3, hidden=72, heads=6, kv_heads=2, head_dim=32, intermediate=136,
        vocab=321, rope_theta=1e6, tied=False, prompt_tokens=PROMPT_TOKENS),
    # The file's precision is also that of the activations: another compute type on the same paths.
    "bf16": random_model.Case(
        "identity-bf16", layers=2, hidden=64, heads=4, kv_heads=1, head_dim=64, intermediate=128,
        vocab=320, rope_theta=1e4, tied=True, prompt_tokens=PROMPT_TOKENS, dtype="BF16"),
    "llama": random_model.Case(
        "identity-llama", family="llama", layers=2, hidden=72, heads=6, kv_heads=2, head_dim=24,
        intermediate=100, vocab=320, rope_theta=5e5, tied=False, prompt_tokens=PROMPT_TOKENS,
        dtype="BF16", attention_bias=True, mlp_bias=True, rope={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256}, shards=2),
    # Two windows reach back to where test_other_prompt_other_digest changes a token.
    "mistral": random_model.Case(
        "identity-mistral", family="mistral", layers=2, hidden=64, heads=4, kv_heads=1, head_dim=80,
        intermediate=128, vocab=320, rope_theta=1e4, tied=True, prompt_tokens=PROMPT_TOKENS,
        dtype="F16", fields={"sliding_window": 310}),
    "qwen2": random_model.Case(
        "identity-qwen2", family="qwen2", layers=3, hidden=70, heads=7, kv_heads=1, head_dim=32,
        intermediate=130, vocab=321, rope_theta=1e6, tied=True, prompt_tokens=PROMPT_TOKENS,
        rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        fields={"use_sliding_window": True, "sliding_window": 45, "layer_types":
                ["sliding_attention", "full_attention", "sliding_attention"]}),
}
CODECS = ("f32", "f16", "bf16")
WAYS = {
    "hit": {"repeat": 2},
    "third_run": {"repeat": 3},
    "chunk_16": {"chunk": 16},
    "chunk_100": {"chunk": 100},
    "chunk_512": {"chunk": 512},
    "chunk_2048": {"chunk": 2048},
    "threads_1": {"threads": 1},
    "threads_2": {"threads": 2},
    "beside_7": {"beside": 7},
    "all_at_once": {"repeat": 2, "chunk": 100, "threads": 2, "beside": 7},
}


def model_names() -> list:
    return [*MODELS, *(["tiny"] if (subjects.TINY / "model.safetensors").is_file() else [])]


@pytest.fixture(scope="module", params=model_names())
def subject(request, tmp_path_factory):
    """(model directory, prompt)."""
    if request.param == "tiny":
        text = (subjects.TINY / "heldout.txt").read_bytes()
        return subjects.TINY, list(text[2000 : 2000 + PROMPT_TOKENS])
    case = MODELS[request.param]
    folder = tmp_path_factory.mktemp(case.name)
    random_model.write_model(case, SEED, folder)
    return folder, random_model.prompt_ids(case, SEED)


@functools.cache
def baseline(model, prompt: tuple, codec: str) -> dict:
    """One plain run: nothing cached, one thread, whole prompt in one chunk."""
    return quire_cli.generate(model, prompt, max_tokens=MAX_TOKENS, kv=codec, threads=1,
                              chunk=len(prompt)).json


def whole_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """The hit-length rule: whole blocks only, and at least one token is computed."""
    return (prompt_tokens - 1) // block_tokens * block_tokens


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("codec", CODECS)
def test_digest_does_not_depend_on_the_way(subject, codec, way):
    model, prompt = subject
    want = baseline(model, tuple(prompt), codec)
    got = quire_cli.generate(model, prompt, max_tokens=MAX_TOKENS, kv=codec, **WAYS[way]).json
    reused = whole_blocks(len(prompt), 16) if WAYS[way].get("repeat", 1) > 1 else 0
    assert want["reused_tokens"] == 0
    assert got["prompt_tokens"] == len(prompt)
    assert got["reused_tokens"] == reused
    assert got["computed_tokens"] == len(prompt) - reused
    assert got["generated_tokens"] == want["generated_tokens"]
    assert got["logits_digest"] == want["logits_digest"]


def test_digest_sees_the_codec(subject):
    """Another rounding of K and V is another digest, and no rounding is the same one."""
    model, prompt = subject
    digests = {codec: baseline(model, tuple(prompt), codec)["logits_digest"] for codec in CODECS}
    assert all(len(digest) == 32 for digest in digests.values())
    dtype = json.loads((model / "config.json").read_bytes())["torch_dtype"]
    if dtype == "float32":
        assert len(set(digests.values())) == 3
    else:  # K and V are of the file's type before they are stored
        assert digests["f32"] == digests[{"bfloat16": "bf16", "float16": "f16"}[dtype]]


@pytest.mark.parametrize("prompt_tokens", [1, 15, 16, 17, 32, 33, 255, 256, 257, 304, 305])
@pytest.mark.parametrize("block_tokens", [16, 64])
def test_hit_length_rule(subject, prompt_tokens, block_tokens):
    model, prompt = subject
    got = quire_cli.generate(model, prompt[:prompt_tokens], max_tokens=2, repeat=2,
                             block_tokens=block_tokens).json
    assert got["reused_tokens"] == whole_blocks(prompt_tokens, block_tokens)
    assert got["computed_tokens"] == prompt_tokens - got["reused_tokens"]


@pytest.mark.parametrize("block_tokens", [16, 32, 256])
def test_block_size_does_not_show(subject, block_tokens):
    """Open and sealed values are the same for these codecs, so where blocks end cannot matter."""
    model, prompt = subject
    options = {"max_tokens": MAX_TOKENS, "block_tokens": block_tokens, "kv": "f16"}
    miss = quire_cli.generate(model, prompt, **options).json
    hit = quire_cli.generate(model, prompt, repeat=2, **options).json
    assert hit["reused_tokens"] == whole_blocks(len(prompt), block_tokens)
    want = baseline(model, tuple(prompt), "f16")["logits_digest"]
    assert (miss["logits_digest"], hit["logits_digest"]) == (want, want)


def test_other_prompt_other_digest(subject):
    """One changed token in the middle reaches the logits of the end."""
    model, prompt = subject
    changed = list(prompt)
    changed[100] = (changed[100] + 1) % 256
    got = quire_cli.generate(model, changed, max_tokens=MAX_TOKENS, kv="f32").json
    assert got["logits_digest"] != baseline(model, tuple(prompt), "f32")["logits_digest"]


def test_seeded_sampling_is_the_same_on_a_hit(subject):
    model, prompt = subject
    options = {"max_tokens": MAX_TOKENS, "temperature": 0.8, "seed": 11}
    miss = quire_cli.generate(model, prompt, **options).json
    hit = quire_cli.generate(model, prompt, repeat=2, **options).json
    assert hit["tokens"] == miss["tokens"]
    assert hit["logits_digest"] == miss["logits_digest"]
    assert miss["tokens"] != baseline(model, tuple(prompt), "f32")["tokens"]  # it did draw


def test_logits_file_is_the_same_for_any_chunk(subject, tmp_path):
    """Every prompt position, not only the generated ones that the digest covers."""
    model, prompt = subject
    files = []
    for chunk in (16, 100, 2048):
        path = tmp_path / f"{chunk}.npy"
        quire_cli.generate(model, prompt, path, max_tokens=2, chunk=chunk, kv="f16")
        files.append(path.read_bytes())
    assert len(files[0]) > 4 * 256 * len(prompt)
    assert files[0] == files[1] == files[2]
