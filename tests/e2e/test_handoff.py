"""Prefill on one server, decode on another: a call with `kv_transfer` answers when its blocks are durable in the
remote, and another server goes on with them. Whatever happens to the remote, the answer is the same.
"""

import contextlib
import sys

import pytest

import quire_cli
import quire_server
import remote_servers
import wide_model

sys.path.insert(0, str(quire_cli.REPOSITORY / "examples/disaggregated"))

import client  # noqa: E402

BLOCK = 16
TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. " * 45  # of 4,000 bytes
ANSWER = {"max_tokens": 16, "temperature": 0}
pytestmark = pytest.mark.skipif(remote_servers.REDIS is None, reason="needs the package redis-tools")


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("fleet") / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def fleet(tmp_path, redis, key, *flags):
    address = ["--remote", f"redis://127.0.0.1:{redis.port}/handoff?timeout=60", "--fleet-key", key, "--load", "always", *flags]
    with (quire_server.serving(tmp_path / "prefill", *address) as prefill,
          quire_server.serving(tmp_path / "decode", *address) as decode):
        yield prefill, decode


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    with quire_server.serving(tmp_path_factory.mktemp("alone")) as server:
        return client.ask(server.url, {"prompt": TEXT, **ANSWER})["choices"][0]["text"]


def test_what_follows_is_computed_as_layers_come(tmp_path, key):
    """The second server reaches the Redis at half a Gbit/s, so 17 MB take long enough for the rest to begin."""
    model = wide_model.write(tmp_path / "model")
    prompt = [(7 * at + at * at) % 256 for at in range(768)]
    with remote_servers.redis(tmp_path / "redis") as redis:
        line = remote_servers.Line(redis.port, gbit_per_s=0.5)
        flags = ["--fleet-key", key, "--load", "always", "--remote"]
        with (quire_server.serving(tmp_path / "prefill", *flags, f"redis://127.0.0.1:{redis.port}/layers",
                                   model=model) as prefill,
              quire_server.serving(tmp_path / "decode", *flags, f"redis://127.0.0.1:{line.port}/layers?timeout=60",
                                   model=model) as decode):
            status, read = prefill.ask("/v1/completions", {"prompt": prompt[:512], "max_tokens": 0,
                                                           "kv_transfer": {"publish": True}})
            assert status == 200 and read["kv_transfer_params"]["published"], read
            body = {"prompt": prompt, "ignore_eos": True, **ANSWER}
            status, answer = decode.ask("/v1/completions", body)
            assert status == 200, answer
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 512
            assert answer["choices"][0]["text"] == prefill.ask("/v1/completions", body)[1]["choices"][0]["text"]
            assert "quire_engine_loads_by_layer_total 1\n" in decode.ask("/metrics")[1]


def test_the_second_server_computes_only_the_rest(tmp_path, key, expected):
    with remote_servers.redis(tmp_path / "redis") as redis, fleet(tmp_path, redis, key) as (prefill, decode):
        answer = client.hand_over(prefill.url, decode.url, TEXT, **ANSWER)
        tokens = answer["usage"]["prompt_tokens"]
        assert tokens > 3500
        found = answer["usage"]["prompt_tokens_details"]
        assert found["cached_tokens"] == (tokens - 1) // BLOCK * BLOCK
        assert answer["choices"][0]["text"] == expected
        # As a proxy of vLLM's says it, streamed, and with one token.
        text = TEXT[100:]
        status, said = prefill.ask("/v1/completions", {
            "prompt": text, "max_tokens": 1, "stream": True,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None}})
        assert status == 200 and '"published":true' in said and '"do_remote_prefill":true' in said
        answer = client.ask(decode.url, {"prompt": text, **ANSWER})
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 3000


def test_a_remote_that_dies_is_a_miss(tmp_path, key, expected):
    with remote_servers.redis(tmp_path / "redis") as redis, fleet(tmp_path, redis, key) as (prefill, decode):
        redis.kill()
        read = client.ask(prefill.url, {"prompt": TEXT, "max_tokens": 0, "kv_transfer": {"publish": True}})
        told = read["kv_transfer_params"]
        assert not told["published"] and not told["do_remote_prefill"] and told["reason"]
        answer = client.ask(decode.url, {"prompt": TEXT, "kv_transfer_params": told, **ANSWER})
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert answer["choices"][0]["text"] == expected


def test_where_nothing_is_published_it_is_refused(tmp_path, key):
    publish = {"prompt": "a", "max_tokens": 0, "kv_transfer": {"publish": True}}
    with quire_server.serving(tmp_path / "none") as server:
        status, answer = server.ask("/v1/completions", publish)
        assert status == 400 and "--remote" in answer["error"]["message"]
        for bad in ({"publish": 1}, {"publsh": True}, True):
            assert server.ask("/v1/completions", {**publish, "kv_transfer": bad})[0] == 400
        assert server.ask("/v1/completions", {**publish, "kv_transfer_params": {"do_remote_decode": 1}})[0] == 400
        # What another server published is not asked about; nothing is not refused.
        for none in ({"do_remote_prefill": True, "remote_engine_id": "quire"}, None, {}):
            assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1, "kv_transfer_params": none})[0] == 200
    with remote_servers.redis(tmp_path / "redis") as redis:
        flags = ["--remote", f"redis://127.0.0.1:{redis.port}/x?timeout=60", "--fleet-key", key, "--store", tmp_path / "store"]
        with quire_server.serving(tmp_path / "reused", *flags) as server:
            assert server.ask("/v1/completions", publish)[0] == 400
