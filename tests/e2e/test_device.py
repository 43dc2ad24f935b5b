"""--device: what the kernels of devices compute has the bits of the processor.

`emulated` runs them on the processor, so this needs no device; on a machine with one, the program
of `make cuda` is asked too.
"""

import json
import subprocess

import pytest

import quire_cli

MODEL = quire_cli.REPOSITORY / "models/tiny"
CUDA_PROGRAM = quire_cli.REPOSITORY / "build/cuda/quire"
PROMPT = "Once upon a time there was a small fox"


def generate(*arguments, program=None):
    binary = program or quire_cli.binary()
    done = subprocess.run([binary, "generate", "--model", MODEL, "--prompt", PROMPT,
                           "--max-tokens", "4", "--json", *arguments],
                          capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("flags", [(), ("--kv", "int8"), ("--k", "nf4", "--v", "fp8_e4m3"),
                                   ("--kv", "q25", "--residual", "16")], ids=" ".join)
def test_emulated_kernels_give_the_processors_bits(flags):
    want = generate(*flags)
    got = generate("--device", "emulated", "--chunk", "7", *flags)
    assert got["logits_digest"] == want["logits_digest"]
    assert got["text"] == want["text"]
    again = generate("--device", "emulated", "--repeat", "2", *flags)
    assert again["reused_tokens"] > 0
    assert again["logits_digest"] == want["logits_digest"], "a hit on a device"


def test_blocks_of_the_processor_are_found_on_a_device(tmp_path):
    store = ("--store", str(tmp_path / "store"))
    want = generate(*store)
    got = generate("--device", "emulated", *store)
    assert got["reused_tokens"] > 0, "one arithmetic class, one identity"
    assert got["logits_digest"] == want["logits_digest"]


def test_a_device_that_is_not_there_is_refused():
    for device, code in (("tpu", 2), ("cuda:x", 2), ("cuda:999", 3)):
        done = quire_cli.run("generate", "--model", MODEL, "--prompt", "a", "--device", device)
        assert done.exit_code == code, done.describe()
        assert device in done.stderr or "cuda:N" in done.stderr


def test_benches_without_cases_on_a_device_say_so():
    done = quire_cli.run("bench", "pool", "--device", "emulated")
    assert done.exit_code != 0 and "attention and cascade" in done.stderr, done.describe()
    done = quire_cli.run("bench", "cascade", "--device", "emulated", "--case", "no such case")
    assert done.exit_code != 0, done.describe()


def test_cuda_gives_the_processors_bits():
    if not CUDA_PROGRAM.exists():
        pytest.skip("build/cuda/quire is not built: `make cuda`")
    info = json.loads(subprocess.run([CUDA_PROGRAM, "info", "--json"], capture_output=True,
                                     check=True).stdout)
    assert info["cuda"]["architectures"] == [80, 89, 90]
    if not info["cuda"]["devices"]:
        pytest.skip("no CUDA device here: nothing has run on one")
    for flags in ((), ("--kv", "int8"), ("--kv", "nf4"), ("--kv", "q25")):
        want = generate(*flags)
        got = generate("--device", "cuda", *flags, program=CUDA_PROGRAM)
        assert got["logits_digest"] == want["logits_digest"], flags
