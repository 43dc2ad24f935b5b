"""`--remote`: machines find one another's blocks at a service that is not trusted, and nothing that it does changes an
answer. The quick part has one server of Redis; QUIRE_THOROUGH adds a cluster, TLS, Valkey and S3.
"""

import json
import os
import random
import shutil
import subprocess
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
                              reason="every night, with what scripts/venv remote installs")
PROGRAMS = [pytest.param(remote_servers.REDIS, id="redis")]
if THOROUGH and remote_servers.VALKEY:
    PROGRAMS.append(pytest.param(remote_servers.VALKEY, id="valkey"))
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


@pytest.fixture(scope="module", params=PROGRAMS)
def server(request, tmp_path_factory):
    with remote_servers.redis(tmp_path_factory.mktemp("redis"), program=request.param) as started:
        yield started


@pytest.fixture(scope="module")
def alone():
    return run()["logits_digest"]


def at(server, prefix):
    return f"redis://127.0.0.1:{server.port}/{prefix}?timeout=60"  # a busy machine takes its time


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


@pytest.mark.parametrize("mode", ("sequence", "pipeline"))
def test_ranks_on_other_machines_find_what_ranks_computed(server, key, tmp_path, mode):
    prompt, ranks = ids(11, 1500), ["--ranks", mode, "--rank-threads", 2, "--max-seq-len", 4096]
    flags = [*ranks, "--remote", at(server, f"ranks-{mode}"), "--fleet-key", key, "--load", "always"]
    first = run(*flags, "--store", tmp_path / "a", "--remote-writes", "all", prompt=prompt)
    again = run(*flags, prompt=prompt)
    assert (first["reused_tokens"], again["reused_tokens"]) == (0, reusable(again))
    wanted = run("--max-seq-len", 4096, prompt=prompt)["logits_digest"]
    assert first["logits_digest"] == again["logits_digest"] == wanted
    # One process has blocks of other tokens, or of all layers: it finds none of theirs.
    other = run(*flags[len(ranks):], "--max-seq-len", 4096, prompt=prompt)
    assert other["reused_tokens"] == 0 and other["logits_digest"] == wanted


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


def test_what_is_erased_through_one_machine_is_found_by_no_other(server, key, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[tenant]]\nname = "alice"\nkeys = ["alice-0123456789abcdef"]\n'
                    '[[tenant]]\nname = "bob"\nkeys = ["bob-0123456789abcdef"]\n')
    keys.chmod(0o600)
    flags = ["--remote", at(server, "erase"), "--fleet-key", key, "--load", "always", "--api-keys", keys,
             "--operator-listen", "127.0.0.1:0"]

    def cached(serving, name, who="alice"):
        status, answer = serving.ask("/v1/completions", {"prompt": PROMPT[:400], "max_tokens": 2},
                                     key=f"{who}-0123456789abcdef", headers={"X-Request-Id": name})
        assert status == 200, answer
        return serving.line_of(name)["cache"]["reused_tokens"]

    def wait_written(serving, count):
        end = time.monotonic() + 30
        while serving.ask("/v1/cache", url=serving.operator_url)[1]["store"]["remote"]["written"] < count:
            assert time.monotonic() < end
            time.sleep(0.05)

    with quire_server.serving(tmp_path / "a", *flags, "--store", tmp_path / "store-a", "--remote-writes", "all") as a:
        assert cached(a, "a1") == cached(a, "a2", "bob") == 0
        wait_written(a, 2 * (400 // BLOCK))
        with quire_server.serving(tmp_path / "b", *flags, "--store", tmp_path / "store-b") as b:
            assert cached(b, "b1") >= 384 and cached(b, "b2", "bob") >= 384
            status, erased = a.ask("/v1/cache/erase", {"tenant": "alice"}, url=a.operator_url)
            assert status == 200, erased
            assert cached(b, "b3") == 0, "in memory, on its disk or in the remote"
            assert cached(b, "b4", "bob") >= 384, "of others nothing is gone"
            b.process.kill()
            b.process.wait()
            b.process.returncode = 0
        assert cached(a, "a3") == 0
        a.process.kill()
        a.process.wait()
        a.process.returncode = 0
    # What was computed since has the new epoch; of before nothing is there, with the disks or without.
    stat = quire_cli.run("store", "stat", at(server, "erase"), "--fleet-key", key, "--json").json
    assert stat["erased"] >= 400 // BLOCK and stat["others"] == 0
    gone = quire_cli.run("store", "rm", at(server, "erase"), "--fleet-key", key, "--namespace", "bob", "--json")
    assert gone.exit_code == 0 and gone.json["removed"] >= 400 // BLOCK, gone.describe()
    with quire_server.serving(tmp_path / "c", *flags) as c:
        assert cached(c, "c1", "bob") == 0
    listed = quire_cli.run("store", "ls", at(server, "erase"), "--fleet-key", key, "--json").json
    assert listed["records"] == len(listed["list"])
    wrong = quire_cli.run("store", "stat", at(server, "erase"))
    assert wrong.exit_code != 0 and "--fleet-key" in wrong.stderr


@needs_thorough
def test_tls(tmp_path, key, alone):
    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=tmp_path)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    port = remote_servers.free_port()
    server = remote_servers.start_redis(
        tmp_path / "redis", port, "--port", 0, "--tls-port", port, "--tls-cert-file", tmp_path / "cert.pem",
        "--tls-key-file", tmp_path / "key.pem", "--tls-auth-clients", "no")
    try:
        flags = ["--fleet-key", key, "--load", "always"]
        good = f"rediss://127.0.0.1:{port}/tls?ca={tmp_path / 'cert.pem'}"
        first = run("--remote", good, *flags)
        assert run("--remote", good, *flags)["loaded_tokens"] == reusable(first)
        named = run("--remote", good.replace("127.0.0.1", "localhost"), *flags)
        assert named["loaded_tokens"] == reusable(first)
        # A certificate of no known authority, and none at all.
        for bad in (f"rediss://127.0.0.1:{port}/tls", f"redis://127.0.0.1:{port}/tls"):
            answer = run("--remote", bad, *flags)
            assert answer["loaded_tokens"] == 0 and answer["logits_digest"] == alone
    finally:
        server.kill()


@needs_thorough
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_cluster_and_its_failover(program, tmp_path, key):
    prompt = ids(11, 1600)
    with remote_servers.redis_cluster(tmp_path / "cluster", program=program) as nodes:
        flags = ["--remote", f"redis://127.0.0.1:{nodes[1].port}/cluster", "--fleet-key", key, "--load", "always"]
        want = run(prompt=prompt)["logits_digest"]
        first = run(*flags, prompt=prompt)
        assert first["store"]["remote"]["written"] == first["prompt_tokens"] // BLOCK
        held = [int(node.cli("dbsize")) for node in nodes]
        assert sum(size > 0 for size in held) >= 4, "all masters have some"
        second = run(*flags, prompt=prompt)
        assert second["loaded_tokens"] == reusable(first) and second["logits_digest"] == want
        # The slots of one move while it is asked.
        moved = subprocess.Popen(["redis-cli", "--cluster", "reshard", f"127.0.0.1:{nodes[0].port}", "--cluster-from",
                                  nodes[0].cli("cluster", "myid"), "--cluster-to", nodes[1].cli("cluster", "myid"),
                                  "--cluster-slots", "600", "--cluster-yes"], stdout=subprocess.DEVNULL)
        while moved.poll() is None:
            answer = run(*flags, prompt=prompt)
            assert answer["logits_digest"] == want
        assert run(*flags, prompt=prompt)["loaded_tokens"] == reusable(first)
        assert {run("--remote", f"redis://127.0.0.1:{node.port}/cluster", *flags[2:], prompt=prompt)["loaded_tokens"]
                for node in nodes} == {reusable(first)}, "any node leads to all"
        # A master dies, and its replica takes its place.
        nodes[0].kill()
        deadline = time.monotonic() + 60
        while True:
            answer = run("--remote", f"redis://127.0.0.1:{nodes[1].port}/cluster", *flags[2:], prompt=prompt)
            assert answer["logits_digest"] == want
            if answer["loaded_tokens"] == reusable(first):
                break
            assert time.monotonic() < deadline


@pytest.fixture(scope="module")
def s3_port(tmp_path_factory):
    with remote_servers.s3(tmp_path_factory.mktemp("s3") / "s3", "quire-test") as port:
        yield port


def s3_at(port, prefix):
    return f"s3://quire-test/{prefix}?endpoint=http://127.0.0.1:{port}"


@needs_s3
def test_s3(s3_port, key, tmp_path):
    prompt = ids(12, 1600)
    flags = ["--remote", s3_at(s3_port, "plain"), "--fleet-key", key, "--load", "always"]
    env = remote_servers.S3_KEY
    first = run(*flags, prompt=prompt, env=env)
    assert first["store"]["remote"]["written"] == first["prompt_tokens"] // BLOCK
    second = run(*flags, "--store", tmp_path / "b", prompt=prompt, env=env)
    assert second["loaded_tokens"] == reusable(first)
    assert second["logits_digest"] == first["logits_digest"]
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[default]\naws_access_key_id = x\naws_secret_access_key = y\n[mine]\naws_access_key_id = "
                           f"{env['AWS_ACCESS_KEY_ID']}\naws_secret_access_key={env['AWS_SECRET_ACCESS_KEY']}\n")
    third = run(*flags, prompt=prompt, env={"AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_PROFILE": "mine"})
    assert third["loaded_tokens"] == reusable(first)
    wrong = run(*flags, prompt=prompt, env={**env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert wrong["loaded_tokens"] == 0 and wrong["logits_digest"] == first["logits_digest"]
    assert "wrong" not in wrong["stderr"]


@needs_s3
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_s3_answers_no_answer_is_wrong(s3_port, key, fault):
    prompt = ids(13, 640)
    way = remote_servers.FaultyWay(s3_port)
    try:
        flags = ["--remote", s3_at(way.port, "faults-" + fault), "--fleet-key", key, "--load", "always"]
        env = remote_servers.S3_KEY
        want = run(prompt=prompt)["logits_digest"]
        assert run(*flags, prompt=prompt, env=env)["logits_digest"] == want
        rng = random.Random(1)

        def sometimes(method, path):
            return fault if method == "GET" and rng.random() < 0.5 else None

        for misbehaves in (sometimes, lambda method, path: fault):
            way.fault = misbehaves
            answer = run(*flags, prompt=prompt, env=env)
            assert answer["logits_digest"] == want, answer["store"]["remote"]
        way.fault = lambda method, path: None
        again = run(*flags, prompt=prompt, env=env)
        assert again["logits_digest"] == want and again["loaded_tokens"] > 0
    finally:
        way.close()


@needs_s3
def test_erasing_where_etags_are_compared_without_quotes(s3_port, key, monkeypatch):
    for name, value in remote_servers.S3_KEY.items():
        monkeypatch.setenv(name, value)
    way = remote_servers.FaultyWay(s3_port)
    way.fault = lambda method, path: "unquoted"
    try:
        address = s3_at(way.port, "unquoted")
        run("--remote", address, "--fleet-key", key)
        gone = quire_cli.run("store", "rm", address, "--fleet-key", key, "--namespace", "bob", "--json")
        assert gone.exit_code == 0, gone.describe()
    finally:
        way.close()
