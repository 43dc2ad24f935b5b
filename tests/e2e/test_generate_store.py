"""`quire generate --store`: a second process finds what the first one read, bit for bit, whatever happened between.

QUIRE_KILLS=100 kills more often.
"""

import functools
import json
import os
import random
import resource
import signal
import subprocess
import time

import pytest

import quire_cli
from test_codecs import PROMPT, TINY

BLOCK = 16
KILLS = int(os.environ.get("QUIRE_KILLS", "4"))
WAYS = {
    "default": [],
    "f32": ["--compute", "f32", "--kv", "f32"],
    "int8": ["--kv", "int8"],
    "nf4_residual": ["--kv", "nf4", "--residual", "32"],
    "q25": ["--kv", "q25"],
    "layer_major": ["--layout", "layer_major"],
    "block_32": ["--block-tokens", "32"],
}


def run(*flags, prompt=PROMPT):
    done = quire_cli.run("generate", "--model", TINY, "--prompt", prompt, "--max-tokens", 12,
                         "--threads", 1, "--json", *flags)
    assert done.exit_code == 0, done.describe()
    return done.json


@functools.cache
def cold(way):
    return run(*WAYS[way])


def reusable(answer, block=BLOCK):
    return (answer["prompt_tokens"] - 1) // block * block


@pytest.mark.parametrize("way", WAYS)
def test_a_second_process_finds_what_the_first_read(tmp_path, way):
    store = ["--store", tmp_path / "store"]
    first = run(*WAYS[way], *store)
    second = run(*WAYS[way], *store, "--stats")
    block = 32 if way == "block_32" else BLOCK
    assert first["loaded_tokens"] == 0
    assert second["reused_tokens"] == second["loaded_tokens"] == reusable(second, block)
    digests = {answer["logits_digest"] for answer in (cold(way), first, second)}
    assert len(digests) == 1
    assert second["store"]["loads_failed"] == 0
    # The answer was written too, so a third process goes on behind it.
    third = run(*WAYS[way], *store, prompt=PROMPT + first["text"] + " And")
    assert third["loaded_tokens"] >= (0 if "residual" in way else second["loaded_tokens"])


def test_another_profile_or_secret_finds_nothing(tmp_path):
    store = tmp_path / "store"
    run("--store", store)
    for flags in (["--kv", "int8"], ["--block-tokens", "32"], ["--layout", "head_major"]):
        assert run("--store", store, *flags)["loaded_tokens"] == 0, flags
    assert run("--store", store)["loaded_tokens"] > 0
    secret = store / "SECRET"
    assert secret.stat().st_mode & 0o777 == 0o600
    for other in (None, b"x" * 32, b"short"):
        secret.unlink(missing_ok=True)
        if other is not None:
            secret.write_bytes(other)
        done = quire_cli.run("generate", "--model", TINY, "--prompt", PROMPT, "--store", store)
        assert done.exit_code == 3 and "SECRET" in done.stderr, done.describe()
        verified = quire_cli.run("store", "verify", store, "--json")
        assert verified.exit_code == 1 and "SECRET" in verified.stderr, verified.describe()
    secret.unlink()
    (store / "SECRET.digest").unlink()
    assert run("--store", store)["loaded_tokens"] == 0


def test_a_disk_that_is_full_costs_no_answer(tmp_path):
    """No file grows beyond 200 kB, which is less than one segment."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    store = tmp_path / "store"
    run("--store", store, "--store-bytes", "64MB")  # a store that is there already
    command = [quire_cli.binary(), "generate", "--model", TINY, "--prompt", "Another " + PROMPT,
               "--max-tokens", "12", "--threads", "1", "--json"]
    cold = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    done = subprocess.run([*command, "--store", store], capture_output=True, check=False,
                          preexec_fn=limit, restore_signals=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["logits_digest"] == cold["logits_digest"]
    assert b"could not be written" in done.stderr, done.stderr
    assert run("--store", store)["loaded_tokens"] > 0  # what was there is there


def test_load_never_computes_and_auto_gives_the_same_bits(tmp_path):
    store = ["--store", tmp_path / "store"]
    run(*store)
    never = run(*store, "--load", "never")
    assert never["loaded_tokens"] == 0 and never["miss_reason"] == "not_loaded"
    auto = run(*store, "--load", "auto")
    assert {never["logits_digest"], auto["logits_digest"]} == {cold("default")["logits_digest"]}


def test_damage_shows_as_a_reason_and_never_in_the_answer(tmp_path):
    rng = random.Random(7)
    store = tmp_path / "store"
    run("--store", store)
    for _ in range(8):
        victims = sorted(path for path in store.iterdir() if path.name not in ("LOCK", "SECRET"))
        path = rng.choice(victims)
        content = bytearray(path.read_bytes())
        for _ in range(20):
            # Where the bytes are: a segment is preallocated far beyond them.
            content[rng.randrange(min(len(content), 600_000))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        assert run("--store", store)["logits_digest"] == cold("default")["logits_digest"]
    for name in ("catalogue.db",):
        if (store / name).exists():
            (store / name).unlink()
    assert run("--store", store)["logits_digest"] == cold("default")["logits_digest"]


def test_the_cap_holds(tmp_path):
    store = tmp_path / "store"
    cap = 24 << 20
    for turn in range(4):
        run("--store", store, "--store-bytes", cap, prompt=f"{turn} {PROMPT}")
        assert sum(path.stat().st_size for path in store.iterdir()) <= cap


def test_one_process_at_a_time(tmp_path):
    store = tmp_path / "store"
    said = tmp_path / "owner.log"
    with said.open("w") as log:
        owner = subprocess.Popen([quire_cli.binary(), "generate", "--model", TINY, "--prompt", PROMPT,
                                  "--max-tokens", "6000", "--store", store], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while said.stat().st_size == 0:  # its first token: it has the store
            assert owner.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        second = quire_cli.run("generate", "--model", TINY, "--prompt", PROMPT, "--store", store)
        assert second.exit_code == 4, second.describe()
        assert "another process has it open" in second.stderr
    finally:
        owner.kill()
        owner.wait(timeout=60)


def test_a_killed_prefill_goes_on_where_it_was_durable(tmp_path):
    """kill -9 at any time: the next run reuses a prefix of whole blocks, and has the digest of a cold one."""
    rng = random.Random(3)
    prompt = " ".join(f"{number} {PROMPT}" for number in range(3))
    want = run(prompt=prompt)["logits_digest"]
    resumed = 0
    for kill in range(KILLS):
        store = tmp_path / f"store{kill}"
        killed = subprocess.Popen(
            [quire_cli.binary(), "generate", "--model", TINY, "--prompt", prompt, "--max-tokens", "2000",
             "--chunk", "16", "--threads", "1", "--store", store],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if kill == 0:
            quire_cli.wait_records(store)
        time.sleep(rng.uniform(0, 1.7))
        killed.send_signal(signal.SIGKILL)
        killed.wait(timeout=60)
        again = run("--store", store, prompt=prompt)
        assert again["logits_digest"] == want
        resumed += again["loaded_tokens"] > 0
        verified = quire_cli.run("store", "verify", store, "--json")
        assert verified.exit_code == 0, verified.describe()
    assert resumed > 0


def test_a_full_store_keeps_the_front_of_a_prompt(tmp_path):
    def ask(seed, tokens):
        source = random.Random(seed)
        ids = ",".join(str(source.randint(10, 200)) for _ in range(tokens))
        done = quire_cli.run("generate", "--model", TINY, "--prompt-ids", ids, "--max-tokens", 1,
                             "--threads", 1, "--json", "--stats", "--load", "always",
                             "--store", tmp_path / "store", "--store-bytes", "6MiB")
        assert done.exit_code == 0, done.describe()
        return done.json

    long = ask(1, 2000)
    assert long["store"]["records"] == 2000 // BLOCK
    for seed in (2, 3):
        last = ask(seed, 400)
    there = last["store"]["records"] - 2 * 400 // BLOCK  # of the long one, if the others are whole
    assert 0.5 * 2000 < there * BLOCK < 0.95 * 2000
    again = ask(1, 2000)
    # Its last blocks lie in one segment with the first ones of the next prompt, and stay.
    assert again["reused_tokens"] >= 0.8 * there * BLOCK
