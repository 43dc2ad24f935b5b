"""--device: what the kernels of devices compute has the bits of the processor.

`emulated` runs them on the processor, so this needs no device; on a machine with one, the program
of `make cuda` is asked too.
"""

import json
import os
import subprocess

import pytest

import quire_cli
import quire_server

MODEL = quire_cli.REPOSITORY / "models/tiny"
CUDA_PROGRAM = quire_cli.REPOSITORY / "build/cuda/quire"
every_night = pytest.mark.skipif("QUIRE_THOROUGH" not in os.environ, reason="every night")
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


MMA16 = ("--device", "emulated", "--arithmetic", "mma16")
PLAIN = ("--device", "emulated:plain", "--arithmetic", "mma16")  # no bulk copies


@pytest.mark.parametrize("flags", [
    (), ("--kv", "int8"),
    pytest.param(("--k", "nf4", "--v", "fp8_e4m3"), marks=every_night),
    pytest.param(("--kv", "q25", "--residual", "16"), marks=every_night)], ids=" ".join)
def test_mma16_gives_a_hit_the_bits_of_a_miss(flags):
    want = generate(*MMA16, *flags)
    assert generate(*MMA16, "--chunk", "7", *flags)["logits_digest"] == want["logits_digest"]
    again = generate(*MMA16, "--repeat", "2", *flags)
    assert again["reused_tokens"] > 0
    assert again["logits_digest"] == want["logits_digest"], "a hit"
    beside = generate(*MMA16, "--beside", "2", *flags)
    assert beside["logits_digest"] == want["logits_digest"], "in a batch"
    plain = generate(*PLAIN, "--chunk", "7", *flags)
    assert plain["logits_digest"] == want["logits_digest"], "without bulk copies"
    other = generate(*flags)
    assert other["logits_digest"] != want["logits_digest"], "the classes have bits of their own"
    assert other["text"] == want["text"], "the largest logit is ahead of the next by far"


def test_blocks_of_one_arithmetic_are_never_taken_for_the_others(tmp_path):
    store = ("--store", str(tmp_path / "store"))
    generate(*store)
    first = generate(*MMA16, *store)
    assert first["reused_tokens"] == 0
    second = generate(*MMA16, *store)
    assert second["reused_tokens"] > 0
    assert second["logits_digest"] == first["logits_digest"]
    assert generate("--device", "emulated", *store)["reused_tokens"] > 0, "fma32 has its own"


def test_serve_answers_in_mma16(tmp_path):
    said = []
    with quire_server.serving(tmp_path, *MMA16) as server:
        for name in ("miss", "hit"):
            status, answer = server.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 4},
                                        headers={"X-Request-Id": name})
            assert status == 200, answer
            said.append(answer["choices"][0]["text"])
        assert server.line_of("hit")["cache"]["reused_tokens"] > 0
    assert said[0] == said[1]


def test_what_mma16_cannot_do_is_refused_with_the_reason():
    run = ("generate", "--model", str(MODEL), "--prompt", "a", "--max-tokens", "1")
    done = quire_cli.run(*run, "--arithmetic", "mma16")
    assert done.exit_code == 3 and "--device emulated" in done.stderr, done.describe()
    done = quire_cli.run(*run, *MMA16, "--compute", "f32")
    assert done.exit_code == 3 and "--arithmetic fma32" in done.stderr, done.describe()
    done = quire_cli.run(*run, "--device", "emulated", "--arithmetic", "tf32")
    assert done.exit_code == 2 and "mma16" in done.stderr, done.describe()


def test_info_names_the_arithmetic_classes():
    info = json.loads(quire_cli.run("info", "--json").stdout)
    assert {"fma32", "mma16.2-emulated"} <= set(info["arithmetic_classes"])


def test_a_device_that_is_not_there_is_refused():
    for device, code in (("tpu", 2), ("cuda:x", 2), ("cpu:plain", 2), ("emulated:", 2),
                         ("cuda:999", 3), ("cuda:999:plain", 3)):
        done = quire_cli.run("generate", "--model", MODEL, "--prompt", "a", "--device", device)
        assert done.exit_code == code, done.describe()
        assert device.removesuffix(":plain") in done.stderr or "cuda:N" in done.stderr


def test_benches_without_cases_on_a_device_say_so():
    done = quire_cli.run("bench", "pool", "--device", "emulated")
    assert done.exit_code != 0 and "attention, cascade, model and tier" in done.stderr, done.describe()
    done = quire_cli.run("bench", "cascade", "--device", "emulated", "--case", "no such case")
    assert done.exit_code != 0, done.describe()


def test_a_step_of_a_model_is_timed_whole_and_its_products_by_their_tiles():
    done = quire_cli.run("bench", "model", "--device", "emulated", "--pairs", "1", "--json")
    assert done.exit_code == 0, done.describe()
    rows = json.loads(done.stdout)["rows"]
    assert [row["case"] for row in rows] == ["step/bf16/40/b2/host", *(
        f"sweep/products/bf16/16/tile{rows_of_tile}/host" for rows_of_tile in (16, 32, 64, 128))]
    assert all(row["value"] > 0 and row["floor"] > 0 for row in rows)


def test_blocks_move_between_a_device_and_the_warm_tier():
    done = quire_cli.run("bench", "tier", "--device", "emulated", "--pairs", "1", "--json")
    assert done.exit_code == 0, done.describe()
    rows = done.json["rows"]
    assert [row["case"] for row in rows] == ["device_to_host/f16/256/host",
                                             "host_to_device/f16/256/host"]
    for row in rows:  # the figures of an emulation mean nothing
        assert row["value"] > 0 and row["floor"] > 0 and row["unit"] == "GB/s"
        assert "ordinary memory" in row["note"], "an emulated device pins nothing"


def test_bench_attention_runs_in_mma16():
    done = quire_cli.run("bench", "attention", *MMA16, "--case", "decode/bf16/256/b1", "--pairs",
                         "1", "--json")
    assert done.exit_code == 0, done.describe()
    (row,) = done.json["rows"]
    assert row["value"] > 0 and row["floor"] > 0


@every_night
def test_eval_in_mma16_is_close_to_fma32(tmp_path):
    text = tmp_path / "text"
    text.write_text(" ".join([PROMPT] * 12))
    said = {}
    for flags in ((), MMA16):
        done = quire_cli.run("eval", "--model", MODEL, "--text", text, "--kv", "int8", "--context",
                             "64", *flags, "--json")
        assert done.exit_code == 0, done.describe()
        said[flags] = done.json
    assert said[MMA16]["ppl"] == pytest.approx(said[()]["ppl"], rel=1e-3)
    assert said[MMA16]["ppl"] != said[()]["ppl"], "the classes have bits of their own"


def test_cuda_gives_the_processors_bits():
    if not CUDA_PROGRAM.exists():
        pytest.skip("build/cuda/quire is not built: `make cuda`")
    info = json.loads(subprocess.run([CUDA_PROGRAM, "info", "--json"], capture_output=True,
                                     check=True).stdout)
    assert info["cuda"]["architectures"] == [80, 89, 90]
    if not info["cuda"]["devices"]:
        pytest.skip("no CUDA device here: nothing has run on one")
    assert all(kernel["registers"] > 0 and kernel["blocks"] > 0
               for device in info["cuda"]["devices"] for kernel in device["kernels"])
    for flags in ((), ("--kv", "int8"), ("--kv", "nf4"), ("--kv", "q25")):
        want = generate(*flags)
        got = generate("--device", "cuda", *flags, program=CUDA_PROGRAM)
        assert got["logits_digest"] == want["logits_digest"], flags
