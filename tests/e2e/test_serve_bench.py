"""quire bench serve --url: the load generator against a running server."""

import json

import pytest

import quire_cli
import quire_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with quire_server.serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture
def trace(tmp_path):
    """12 requests in a second that share their first four blocks."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(
        json.dumps({"timestamp": 1000 + 80 * i, "input_length": 96, "output_length": 16 * 5,
                    "hash_ids": [1, 2, 3, 4, 100 + i, 200 + i]}) + "\n" for i in range(12)))
    return path


def rows(done):
    assert done.exit_code == 0, done.describe()
    return {row["case"]: row for row in done.json["rows"]}


def test_sends_each_request_when_it_is_due(server, trace):
    before = len(server.lines())
    seen = rows(quire_cli.run("bench", "serve", "--url", server.url, "--trace", trace, "--rate", 8,
                              "--json"))
    assert seen["answered"]["value"] == 12 and seen["failed"]["value"] == 0
    assert 0 < seen["first_token/p50"]["value"] <= seen["first_token/p99"]["value"]
    # 11 of 12 requests find four of their six blocks.
    assert seen["hits"]["floor"] == pytest.approx(11 * 4 / 72)
    assert seen["hits"]["value"] == pytest.approx(11 * 4 / 72)
    lines = server.wait_for_lines(12, after=before, path="/v1/completions")
    assert [line["generated_tokens"] for line in lines] == [5] * 12
    assert [line["prompt_tokens"] for line in lines] == [96] * 12
    again = rows(quire_cli.run("bench", "serve", "--url", server.url, "--trace", trace, "--rate", 0,
                               "--no-reuse", "--requests", 4, "--json"))
    assert again["hits"]["value"] == 0 and again["answered"]["value"] == 4


def test_failures_are_counted_and_said(server, trace):
    done = quire_cli.run("bench", "serve", "--url", server.url, "--trace", trace, "--rate", 0,
                         "--prompt-blocks", 6, "--answer-tokens", 1)
    assert done.exit_code == 0, done.describe()
    done = quire_cli.run("bench", "serve", "--url", "http://127.0.0.1:1", "--trace", trace)
    assert done.exit_code == 3 and "http://127.0.0.1:1" in done.stderr, done.describe()
    done = quire_cli.run("bench", "serve", "--url", "ftp://x", "--trace", trace)
    assert done.exit_code == 3 and "http://HOST:PORT" in done.stderr, done.describe()
    assert quire_cli.run("bench", "pool", "--url", server.url).exit_code == 2


def test_a_wrong_key_is_a_failed_run(tmp_path, trace):
    (tmp_path / "keys.toml").write_text('[[tenant]]\nname = "a"\nkeys = ["right-0123456789ab"]\n')
    (tmp_path / "right").write_text("right-0123456789ab\n")
    (tmp_path / "wrong").write_text("wrong-0123456789ab\n")
    with quire_server.serving(tmp_path / "serve", "--api-keys", tmp_path / "keys.toml") as server:
        good = quire_cli.run("bench", "serve", "--url", server.url, "--trace", trace, "--rate", 0,
                             "--key-file", tmp_path / "right", "--json")
        assert rows(good)["answered"]["value"] == 12
        bad = quire_cli.run("bench", "serve", "--url", server.url, "--trace", trace, "--rate", 0,
                            "--key-file", tmp_path / "wrong")
        assert bad.exit_code == 1 and "12 requests failed" in bad.stderr, bad.describe()
        assert "401" in bad.stderr and "wrong-01" not in bad.stderr
