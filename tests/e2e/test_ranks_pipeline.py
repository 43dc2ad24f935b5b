"""`quire generate --ranks pipeline`: ranks that have some layers each, as processes and as threads, give the bits of one
process, hold their own layers alone, and name the rank that fails."""

import functools
import json
import os
import random
import signal
import subprocess

import pytest

import quire_cli
from rank_processes import CODECS, DEADLINE_S, TINY, Generating, mpirun

LAYERS = json.loads((TINY / "config.json").read_text())["num_hidden_layers"]
TOKENS = 300


def ids(seed=1):
    prng = random.Random(seed)
    return ",".join(str(prng.randrange(256)) for _ in range(TOKENS))


def prompt(*flags):
    return [str(word) for word in ("generate", "--model", TINY, "--prompt-ids", ids(), "--max-tokens", 5, "--threads", 1,
                                   "--chunk", 64, "--repeat", 2, "--json", *flags)]


@functools.cache
def alone(codec):
    done = quire_cli.run(*prompt("--kv", codec))
    assert done.exit_code == 0, done.describe()
    return done.json


def processes(ranks, *flags):
    command = [*mpirun(ranks), str(quire_cli.binary()), *prompt("--ranks", "pipeline", *flags)]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False, text=True)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


def threads(ranks, *flags):
    done = quire_cli.run(*prompt("--ranks", "pipeline", "--rank-threads", ranks, *flags))
    assert done.exit_code == 0, done.describe()
    return done.json


def check_same(got, codec):
    assert got["digests"] == alone(codec)["digests"]
    assert got["tokens"] == alone(codec)["tokens"]


@pytest.mark.parametrize("codec", CODECS)
def test_ranks_give_the_bits_of_one_process_for_a_miss_and_a_hit(codec):
    for got in (processes(2, "--kv", codec), threads(LAYERS, "--kv", codec)):
        check_same(got, codec)
        assert got["reused_tokens"] == alone(codec)["reused_tokens"] == (TOKENS - 1) // 16 * 16


@pytest.mark.parametrize("ranks", range(1, LAYERS + 1))
def test_so_do_any_number_of_ranks_and_each_has_its_layers_alone(ranks):
    whole = threads(1)["ranks"]["weight_bytes"]
    for run in (processes, threads):
        got = run(ranks, "--kv", "bf16")
        check_same(got, "bf16")
        assert got["ranks"]["count"] == ranks
        assert got["ranks"]["layers"] == -(-LAYERS // ranks)
        assert got["kv_bytes"] == alone("bf16")["kv_bytes"] * got["ranks"]["layers"] // LAYERS
        assert got["ranks"]["weight_bytes"] < whole or ranks == 1


def test_other_sequences_beside_it_change_nothing():
    for run in (processes, threads):
        check_same(run(2, "--kv", "bf16", "--beside", "3"), "bf16")


@pytest.mark.parametrize("codec", ("bf16", "int8"))
def test_layers_on_devices_have_the_same_bits(codec):
    for got in (processes(2, "--kv", codec, "--device", "emulated"), threads(2, "--kv", codec, "--device", "emulated")):
        check_same(got, codec)
        assert got["reused_tokens"] == alone(codec)["reused_tokens"]


@pytest.mark.parametrize("run", (processes, threads))
def test_a_restart_finds_what_its_ranks_stored(run, tmp_path):
    store = ("--kv", "int8", "--repeat", "1", "--store", tmp_path / "store", "--load", "always")
    first = run(2, *store)
    again = run(2, *store)
    assert (first["reused_tokens"], again["reused_tokens"]) == (0, (TOKENS - 1) // 16 * 16)
    # Other ranks have other layers: what is there is of no use to them, and stays.
    other = run(1, *store)
    assert other["reused_tokens"] == 0
    for got in (first, again, other, run(2, *store)):
        assert got["logits_digest"] == alone("int8")["logits_digest"]
    assert run(2, *store)["reused_tokens"] == (TOKENS - 1) // 16 * 16
    assert run(1, *store)["reused_tokens"] == (TOKENS - 1) // 16 * 16
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["rank-0", "rank-1"]


def test_a_damaged_store_of_one_rank_is_a_miss_of_all(tmp_path):
    store = ("--kv", "bf16", "--repeat", "1", "--store", tmp_path / "store", "--load", "always")
    processes(2, *store)
    for path in (tmp_path / "store/rank-1").rglob("*"):
        if path.is_file() and "segment" in path.name:
            data = bytearray(path.read_bytes())
            for at in range(4096, len(data), 512):
                data[at] ^= 1
            path.write_bytes(data)
    got = processes(2, *store)
    assert got["logits_digest"] == alone("bf16")["logits_digest"]
    assert got["reused_tokens"] == 0


@pytest.mark.parametrize("flags, words", (
    (("--resident-tokens", "300"), "--resident-tokens: not possible with --ranks"),
    (("--keep", "0.5"), "--keep, --keep-blocks: not possible with --ranks"),
    (("--model", "/nonexistent"), "/nonexistent"),
))
def test_what_ranks_cannot_do_is_refused(flags, words):
    command = [*mpirun(2), str(quire_cli.binary()), *prompt("--ranks", "pipeline", *flags)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode != 0
    assert words in done.stderr
    within = quire_cli.run(*prompt("--ranks", "pipeline", "--rank-threads", 2, *flags))
    assert within.exit_code != 0 and words in within.stderr, within.describe()


def test_more_ranks_than_layers_are_refused():
    done = quire_cli.run(*prompt("--ranks", "pipeline", "--rank-threads", LAYERS + 1))
    assert done.exit_code != 0
    assert f"at most {LAYERS} ranks" in done.stderr, done.describe()


def test_ranks_that_are_started_with_other_options_are_named():
    one, other = (prompt("--ranks", "pipeline", "--kv", codec) for codec in ("f16", "int8"))
    command = [*mpirun(1), str(quire_cli.binary()), *one, ":", "-n", "1", str(quire_cli.binary()), *other]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode != 0
    assert "rank 1: it was started with other options than rank 0" in done.stderr


@pytest.mark.parametrize("victim", range(min(LAYERS, 4)))
def test_a_rank_that_is_stopped_is_named_by_the_others_within_the_deadline(victim):
    with Generating("pipeline", min(LAYERS, 4)) as generating:
        os.kill(generating.ranks[victim], signal.SIGSTOP)
        errors, took_s = generating.end()
    assert generating.process.returncode != 0
    assert f"rank {victim} was not heard for {DEADLINE_S * 1000} ms" in errors, errors[-3000:]
    assert took_s < DEADLINE_S + 20  # it ended by itself, on a busy machine too


def test_a_rank_that_is_killed_is_named_and_a_restart_goes_on_from_the_stores(tmp_path):
    with Generating("pipeline", 2, store=tmp_path / "store") as generating:
        for rank in range(2):
            quire_cli.wait_records(tmp_path / "store" / f"rank-{rank}")
        os.kill(generating.ranks[1], signal.SIGKILL)
        errors, _ = generating.end()
    assert generating.process.returncode != 0
    assert "rank 1 " in errors, errors[-3000:]
    again = subprocess.run(
        [*mpirun(2), str(quire_cli.binary()), "generate", "--model", str(TINY), "--prompt", "It is a truth " * 100,
         "--max-tokens", "2", "--threads", "1", "--max-seq-len", "200000", "--ranks", "pipeline", "--store",
         str(tmp_path / "store"), "--load", "always", "--json"], capture_output=True, timeout=120, check=False, text=True)
    assert again.returncode == 0, again.stderr[-3000:]
    assert json.loads(again.stdout)["reused_tokens"] > 0


def test_a_rank_that_is_killed_is_named_by_the_others_where_mpirun_leaves_them_alive():
    with Generating("pipeline", 2, "--enable-recovery") as generating:
        os.kill(generating.ranks[1], signal.SIGKILL)
        errors, _ = generating.end()
    # mpirun's own exit code is 0 then, now and again.
    assert f"rank 1 was not heard for {DEADLINE_S * 1000} ms" in errors, errors[-3000:]
