"""Weights that are not finite: nothing is generated and nothing is measured, and it is said why."""

import json
import shutil
import struct

import pytest

import quire_cli

TINY = quire_cli.REPOSITORY / "models/tiny"
BYTES = {"F32": {"nan": b"\x00\x00\xc0\x7f", "inf": b"\x00\x00\x80\x7f"},
         "F16": {"nan": b"\x00\x7e", "inf": b"\x00\x7c"},
         "BF16": {"nan": b"\xc0\x7f", "inf": b"\x80\x7f"}}


def poison(folder, tensor, value):
    """Puts `value` where the tensor begins."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8:8 + length])[tensor]
    number = BYTES[entry["dtype"]][value]
    begin = 8 + length + entry["data_offsets"][0]
    data[begin:begin + len(number)] = number
    path.write_bytes(bytes(data))


@pytest.fixture(params=["nan", "inf"])
def model(request, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    poison(folder, "model.norm.weight", request.param)
    return folder


def assert_not_finite(done, words):
    assert done.exit_code == 3, done.describe()
    assert not done.stdout.strip(), done.describe()
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and "not finite" in lines[0] and "NaN" in lines[0], done.describe()
    for word in words:
        assert word in lines[0], done.describe()


@pytest.mark.parametrize("kv", ["f16", "int8", "q25"])
def test_eval_of_a_text(model, tmp_path, kv):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 3)
    done = quire_cli.run("eval", "--model", model, "--text", text, "--kv", kv, "--context", 64,
                         "--json")
    assert_not_finite(done, ("logits", "token 0", "f16"))


def test_eval_of_facts(model):
    done = quire_cli.run("eval", "--model", model, "--text", TINY / "heldout.txt", "--kv", "int8",
                         "--retrieval", 1, "--json")
    assert_not_finite(done, ("logits", "position"))


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_generate(model, tmp_path, temperature):
    path = tmp_path / "logits.npy"
    done = quire_cli.run("generate", "--model", model, "--prompt-ids", "1,2,3,4", "--max-tokens", 4,
                         "--temperature", temperature, "--logits-out", path, "--json")
    assert_not_finite(done, ("logits", "position 3"))
    assert not path.exists()
