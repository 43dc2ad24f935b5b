"""Encrypted stores end to end: `--keys`, `--keys-command`, what the directory says, `quire store rotate`.

docs/encryption.md is what they promise.
"""

import json
import os
import random
import re
import signal
import subprocess
import time

import quire_cli
from test_codecs import PROMPT, TINY

KILLS = int(os.environ.get("QUIRE_KILLS", "4"))


def key_file(path, seed=1):
    path.write_bytes(random.Random(seed).randbytes(32))
    path.chmod(0o600)
    return path


def generate(*flags, prompt=PROMPT):
    return quire_cli.run("generate", "--model", TINY, "--prompt", prompt, "--max-tokens", 12,
                         "--threads", 1, "--json", *flags)


def answer(*flags, prompt=PROMPT):
    done = generate(*flags, prompt=prompt)
    assert done.exit_code == 0, done.describe()
    return done.json


def everything(directory):
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def store_command(what, store, *flags):
    done = quire_cli.run("store", what, store, "--json", *flags)
    assert done.exit_code == 0, done.describe()
    return done.json


def test_an_encrypted_store_gives_the_same_answer_and_says_nothing(tmp_path):
    keys = key_file(tmp_path / "key")
    plain, store = tmp_path / "plain", tmp_path / "store"
    first = answer("--store", plain)
    answer("--store", store, "--keys", keys)
    again = answer("--store", store, "--keys", keys, "--load", "always")
    assert again["reused_tokens"] > 0
    assert again["logits_digest"] == first["logits_digest"]

    ids = quire_cli.run("generate", "--model", TINY, "--prompt", PROMPT, "--max-tokens", 1,
                        "--store", plain, "--json")
    assert ids.exit_code == 0, ids.describe()
    listed = store_command("ls", plain)["list"]
    hidden = [bytes.fromhex(record["key"])[:16] for record in listed]
    hidden += [bytes.fromhex(listed[0][name])[:16] for name in ("profile", "geometry")]
    open_bytes, sealed_bytes = everything(plain), everything(store)
    # Tokens of the prompt, as a plain store has them: four in a row of the first block.
    record = open_bytes.index(b"QUIREREC")
    tokens = open_bytes[record + 256:record + 256 + 16]
    payload = open_bytes[record + 4096:record + 4096 + 32]
    for wanted in [*hidden, tokens, payload]:
        assert wanted in open_bytes
        assert wanted not in sealed_bytes
    assert keys.read_bytes()[:16] not in sealed_bytes
    assert not (store / "SECRET").exists()

    stat = store_command("stat", store)
    assert stat["encrypted"] and stat["keys"] == 1 and stat["wrapped_by"].startswith("key ")
    assert stat["records"] == len(listed)
    assert store_command("verify", store)["damaged"] == 0
    assert not store_command("stat", plain)["encrypted"]


def test_wrong_keys_are_refused_by_name_and_nothing_is_changed(tmp_path):
    keys, other = key_file(tmp_path / "key"), key_file(tmp_path / "other", seed=2)
    plain, store = tmp_path / "plain", tmp_path / "store"
    answer("--store", plain)
    answer("--store", store, "--keys", keys)
    before = everything(store)
    for flags, says in [
            (["--store", store], "is encrypted: give the key"),
            (["--store", store, "--keys", other], "is not the key that it was made with"),
            (["--store", store, "--keys-command", "cat #"], "not by a command"),
            (["--store", plain, "--keys", keys], "it is not encrypted"),
            (["--store", store, "--keys", tmp_path / "none"], "none"),
            (["--keys", keys, "--warm-bytes", "1MiB"], "has nothing to encrypt"),
    ]:
        done = generate(*flags)
        assert done.exit_code != 0 and says in done.stderr, done.describe()
        assert keys.read_bytes().hex() not in done.stderr
    keys.chmod(0o644)
    done = generate("--store", store, "--keys", keys)
    assert done.exit_code == 2 or done.exit_code == 3, done.describe()
    assert "chmod 600" in done.stderr
    assert everything(store) == before
    keys.chmod(0o600)
    assert answer("--store", store, "--keys", keys, "--load", "always")["reused_tokens"] > 0


def test_a_command_wraps_as_the_page_shows(tmp_path):
    page = (quire_cli.REPOSITORY / "docs/encryption.md").read_text()
    script = re.search(r"```sh\n(#!/bin/sh\n# quire-kms.*?)```", page, re.S).group(1)
    (tmp_path / "pass").write_text("a passphrase\n")
    kms = tmp_path / "kms"
    kms.write_text(script.replace("/run/secrets/quire", str(tmp_path / "pass")))
    kms.chmod(0o700)
    store = tmp_path / "store"
    answer("--store", store, "--keys-command", kms)
    again = answer("--store", store, "--keys-command", kms, "--load", "always")
    assert again["reused_tokens"] > 0
    assert store_command("stat", store)["wrapped_by"] == "command"
    (tmp_path / "pass").write_text("another one\n")
    done = generate("--store", store, "--keys-command", kms)
    assert done.exit_code != 0 and "unwrap" in done.stderr, done.describe()


def test_rotation(tmp_path):
    old, new = key_file(tmp_path / "old"), key_file(tmp_path / "new", seed=2)
    store = tmp_path / "store"
    first = answer("--store", store, "--keys", old)
    told = store_command("rotate", store, "--keys", old, "--new-keys", new, "--data-keys")
    assert told == {"rewrapped": True, "renewed": 1, "keys": 2, "old_keys": 1}
    assert generate("--store", store, "--keys", old).exit_code != 0
    again = answer("--store", store, "--keys", new, "--load", "always")
    assert again["reused_tokens"] > 0 and again["logits_digest"] == first["logits_digest"]
    nothing = quire_cli.run("store", "rotate", store, "--keys", new)
    assert nothing.exit_code != 0 and "nothing to rotate" in nothing.stderr


def test_old_data_keys_go_when_all_was_written_anew(tmp_path):
    keys, store = key_file(tmp_path / "key"), tmp_path / "store"
    first = answer("--store", store, "--keys", keys)
    told = store_command("rotate", store, "--keys", keys, "--data-keys")
    assert (told["keys"], told["old_keys"]) == (2, 1)
    records = store_command("stat", store)["records"]
    told = store_command("rotate", store, "--keys", keys, "--rewrite")
    assert told == {"rewrapped": False, "renewed": 0, "keys": 1, "old_keys": 0}
    assert store_command("stat", store)["records"] == records
    verified = quire_cli.run("store", "verify", store, "--json")
    assert verified.exit_code == 0, verified.describe()
    again = answer("--store", store, "--keys", keys, "--load", "always")
    assert again["reused_tokens"] > 0 and again["logits_digest"] == first["logits_digest"]


def test_a_kill_in_the_middle_of_a_rotation_leaves_one_of_the_keys(tmp_path):
    keys = [key_file(tmp_path / f"key{i}", seed=i) for i in range(KILLS + 1)]
    store = tmp_path / "store"
    first = answer("--store", store, "--keys", keys[0])
    now = keys[0]
    for round_, new in enumerate(keys[1:]):
        rotating = subprocess.Popen([quire_cli.binary(), "store", "rotate", store, "--keys", now,
                                     "--new-keys", new, "--data-keys"], stdout=subprocess.DEVNULL)
        time.sleep(0.02 * round_)
        rotating.send_signal(signal.SIGKILL)
        rotating.wait()
        opened = [key for key in (now, new)
                  if generate("--store", store, "--keys", key, "--load", "always").exit_code == 0]
        assert len(opened) == 1
        now = opened[0]
        again = answer("--store", store, "--keys", now, "--load", "always")
        assert again["reused_tokens"] > 0 and again["logits_digest"] == first["logits_digest"]


def test_damage_of_a_sealed_record_is_a_miss(tmp_path):
    keys, store = key_file(tmp_path / "key"), tmp_path / "store"
    first = answer("--store", store, "--keys", keys)
    segment = store / "segment-000000"
    draws = random.Random(5)
    bytes_ = bytearray(segment.read_bytes())
    records = [at for at in range(0, len(bytes_), 4096) if bytes_[at:at + 8] == b"QUIREREC"]
    bytes_[records[0] + 4096 + draws.randrange(1000)] ^= 1
    segment.write_bytes(bytes_)
    verified = quire_cli.run("store", "verify", store, "--json")
    assert verified.exit_code == 1, verified.describe()
    again = answer("--store", store, "--keys", keys, "--load", "always")
    assert again["logits_digest"] == first["logits_digest"]


def test_the_keys_of_a_running_server_are_in_no_memory_that_is_dumped(tmp_path):
    keys, store = key_file(tmp_path / "key"), tmp_path / "store"
    answer("--store", store, "--keys", keys)
    with subprocess.Popen([quire_cli.binary(), "store", "serve", tmp_path / "blocks", "--socket",
                           tmp_path / "socket", "--keys", keys, "--json"], stdout=subprocess.PIPE,
                          text=True) as server:
        json.loads(server.stdout.readline())
        try:
            found = dumped_with(server.pid, keys.read_bytes())
        finally:
            server.send_signal(signal.SIGTERM)
    assert found == []


def dumped_with(pid, wanted):
    """Ranges of a process's memory that a core dump would have, and in which the bytes lie."""
    found, searched = [], 0
    begin, end, name = None, None, ""
    with open(f"/proc/{pid}/smaps") as smaps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in smaps:
            mapped = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)", line)
            if mapped:
                begin, end = int(mapped[1], 16), int(mapped[2], 16)
                name = f"{mapped[3]} {mapped[4]}"
            if not line.startswith("VmFlags:") or " dd" in line or not name.startswith("rw"):
                continue
            try:
                memory.seek(begin)
                content = memory.read(end - begin)
            except OSError:
                continue
            searched += len(content)
            if wanted in content:
                found.append(name)
    assert searched > 1 << 20
    return found


