"""Keys with outlier channels, as real models have them, cost the codecs nothing.

A few rotary pairs of K are 32 times larger and those of Q as much smaller: in f32 the same model.
"""

import shutil

import numpy as np
import pytest

import quire_cli
import safetensors_np

TINY = quire_cli.REPOSITORY / "models/tiny"
OUTLIER, PAIRS = 32, 4
# Perplexity against f16 of the same model, as SPEC P2 has it; q25 as without outliers.
RATIO_MAX = {"fp8_e4m3": 1.005, "fp8_e5m2": 1.005, "int8": 1.005, "int4": 1.03, "nf4": 1.03,
             "fp4": 1.03, "q25": 1.05}


def planted_pairs(layer: int, pairs: int) -> list:
    return [(3 + 7 * layer + 9 * j) % pairs for j in range(PAIRS)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The bundled model with outliers in the weights of k_norm."""
    folder = tmp_path_factory.mktemp("planted") / "model"
    shutil.copytree(TINY, folder)
    header, payload = safetensors_np.split((folder / "model.safetensors").read_bytes())
    payload, changed = bytearray(payload), 0
    for name, tensor in header.items():
        factor = {"k_norm.weight": OUTLIER, "q_norm.weight": 1 / OUTLIER}.get(
            name.rpartition("self_attn.")[2])
        if factor is None:
            continue
        begin, end = tensor["data_offsets"]
        weight = safetensors_np.from_bf16(np.frombuffer(payload[begin:end], "<u2")).copy()
        half, layer = len(weight) // 2, int(name.split(".")[2])
        for pair in planted_pairs(layer, half):
            weight[[pair, pair + half]] *= factor
        payload[begin:end] = safetensors_np.to_bf16(weight).tobytes()
        changed += 1
    assert changed == 8  # 4 layers
    (folder / "model.safetensors").write_bytes(safetensors_np.join(header, bytes(payload)))
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((TINY / "heldout.txt").read_text()[:4000])
    return path


def evaluate(model, text, codec):
    done = quire_cli.run("eval", "--model", model, "--text", text, "--kv", codec, "--json")
    assert done.exit_code == 0, done.describe()
    return done.json


@pytest.mark.parametrize("codec", RATIO_MAX)
def test_quality_with_outliers(codec, planted, text):
    got = evaluate(planted, text, codec)
    assert got["ppl_ratio"] <= RATIO_MAX[codec], got
    # The factors undo them altogether.
    plain = evaluate(TINY, text, codec)
    assert (got["ppl"], got["kld_mean"]) == (plain["ppl"], plain["kld_mean"])


def test_without_a_codec_nothing_changes(planted):
    prompt = (TINY / "heldout.txt").read_text()[:300]
    digests = set()
    for model in (TINY, planted):
        done = quire_cli.run("generate", "--model", model, "--prompt", prompt, "--max-tokens", 8,
                             "--compute", "f32", "--json")
        assert done.exit_code == 0, done.describe()
        digests.add(done.json["logits_digest"])
    assert len(digests) == 1
