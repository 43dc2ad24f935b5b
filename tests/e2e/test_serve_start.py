"""How quire serve starts: flags, the configuration file, keys, and what it refuses."""

import os
import subprocess
import time

import pytest

import quire_cli
import quire_server

KEYS = """
[[tenant]]
name = "alice"
keys = ["alice-0123456789abcdef"]
quota = "64MiB"

[[tenant]]
name = "ops"
keys = ["ops-0123456789abcdef"]
operator = true
"""


def refused(*arguments):
    done = quire_cli.run("serve", "--model", quire_server.TINY, *arguments)
    assert done.exit_code in (2, 3), done.describe()
    return done.stderr


def test_help_names_every_flag_group():
    done = quire_cli.run("serve", "--help")
    assert done.exit_code == 0
    for word in ("--listen", "--api-keys", "--config", "--tls-cert", "Limits"):
        assert word in done.stdout


def test_other_machines_need_keys():
    assert "--api-keys" in refused("--listen", "0.0.0.0:0")
    assert "loopback" in refused("--operator-listen", "0.0.0.0:0")
    assert "--resident-tokens" in refused("--on-full", "spill")


@pytest.mark.parametrize("address", ["", "8080", "127.0.0.1:", "127.0.0.1:99999", "no.such.host:1"])
def test_bad_addresses(address):
    assert "127.0.0.1:8080" in refused("--listen", address, "--no-auth")


def test_an_address_that_is_taken(tmp_path):
    with quire_server.serving(tmp_path) as server:
        assert f"127.0.0.1:{server.port}" in refused("--listen", f"127.0.0.1:{server.port}")


def test_tls_files_that_cannot_be_used(tmp_path):
    (tmp_path / "no.pem").write_text("nothing")
    assert "both" in refused("--tls-cert", tmp_path / "no.pem")
    assert "no.pem" in refused("--tls-cert", tmp_path / "no.pem", "--tls-key", tmp_path / "no.pem")


def test_the_configuration_file(tmp_path):
    config = tmp_path / "quire.toml"
    config.write_text('name = "from-the-file"\nhot-bytes = "32MiB"\nmax-seq-len = 1024\n'
                      'no-auth = true\nconnections = 9\n')
    with quire_server.serving(tmp_path / "a", "--config", config) as server:
        model = server.ask("/v1/models")[1]["data"][0]
        assert model["id"] == "from-the-file" and model["max_model_len"] == 1024
        assert server.ask("/v1/cache")[1]["budget"]["limit_bytes"] == 32 << 20
    with quire_server.serving(tmp_path / "b", "--config", config, "--name", "flag") as server:
        assert server.ask("/v1/models")[1]["data"][0]["id"] == "flag", "flags win"


@pytest.mark.parametrize("text, complaint", [
    ("no-such-setting = 1", "quire.toml:1: 'no-such-setting' is no setting"),
    ('\nhot-bytes = "1 cup"', "quire.toml:2: 'hot-bytes' cannot be '1 cup'"),
    ("connections = 0", "quire.toml:1: 'connections' cannot be '0'"),
    ("connections = [1, 2]", "quire.toml:1: 'connections' has one value"),
    ("[limits]\nconnections = 1", "quire.toml:1: 'limits' must be"),
    ('name = "a', "quire.toml:1"),
    ('config = "other.toml"', "'config' is no setting"),
])
def test_a_bad_configuration_names_the_line(tmp_path, text, complaint):
    config = tmp_path / "quire.toml"
    config.write_text(text)
    assert complaint in refused("--config", config)


def test_a_bad_keys_file_says_where_and_no_key(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[tenant]]\nname = "a"\nkeys = ["short-secret"]\n')
    said = refused("--api-keys", keys)
    assert "keys.toml:3" in said and "short-secret" not in said
    assert refused("--api-keys", tmp_path / "none.toml")


def test_keys_and_the_operators_listener(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    with quire_server.serving(tmp_path / "serve", "--api-keys", keys, "--operator-listen",
                              "127.0.0.1:0") as server:
        assert server.ask("/v1/models")[0] == 401
        assert server.ask("/v1/models", key="alice-0123456789abcdeF")[0] == 401
        assert server.ask("/v1/models", key="alice-0123456789abcdef")[0] == 200
        assert server.ask("/healthz")[0] == 200
        own = server.ask("/v1/cache", key="alice-0123456789abcdef")[1]
        assert [tenant["name"] for tenant in own["tenants"]] == ["alice"]
        assert own["tenants"][0]["quota_bytes"] == 64 << 20
        whole = server.ask("/v1/cache", key="ops-0123456789abcdef")[1]
        assert whole["scope"] == "all"
        assert server.ask("/v1/cache", url=server.operator_url)[1]["scope"] == "all"
        # The operator's listener answers to loopback names, whoever resolves another one to it.
        assert server.ask("/v1/cache", url=server.operator_url,
                          headers={"Host": "attacker.example"})[0] == 403
    for path in (tmp_path / "serve").iterdir():
        assert "0123456789abcdef" not in path.read_text(errors="replace"), path


def test_metrics_are_clean(tmp_path):
    with quire_server.serving(tmp_path) as server:
        for _ in range(2):
            server.ask("/v1/completions", {"prompt": "Once upon a time there was", "max_tokens": 4})
        server.ask("/nothing")
        server.wait_for_lines(3)
        text = server.ask("/metrics")[1]
    assert 'quire_prompt_tokens_total{from="cache",tenant="default"} 16' in text
    assert 'quire_http_requests_total{route="/v1/completions",status="200",tenant="default"} 2' in text
    assert "quire_time_to_first_token_seconds_count" in text
    try:
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                              text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("promtool is not installed (scripts/install-deps --dev)")
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr


def test_it_starts_within_seconds(tmp_path):
    start = time.monotonic()
    with quire_server.serving(tmp_path):
        assert time.monotonic() - start < 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("owner, mode, warns", [
    (0, 0o600, False), (0, 0o640, True), (0, 0o604, True),
    # As packaging/quire.service has it: of another user, read by the group of the server.
    (65534, 0o640, False), (65534, 0o644, True)])
def test_who_may_read_the_keys(tmp_path, owner, mode, warns):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[tenant]]\nname = "a"\nkeys = ["a-0123456789abcdef"]\n')
    os.chown(keys, owner, os.getegid())
    keys.chmod(mode)
    with quire_server.serving(tmp_path, "--api-keys", keys) as server:
        assert ("chmod" in server.stderr.read_text()) == warns
