"""What is shipped beside the program names what the program has: metrics, flags, libraries."""

import json
import re
import shutil
import subprocess

import pytest

import quire_cli
import quire_server

PACKAGING = quire_cli.REPOSITORY / "packaging"
OPERATIONS = quire_cli.REPOSITORY / "docs/operations.md"
# They answer others with 403.
OPERATORS = ("/v1/cache/leases", "/v1/cache/resize", "/v1/cache/erase", "/v1/cache/demote", "/v1/cache/limits",
             "/v1/cache/sequences", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    # A remote that nothing answers at has its families all the same.
    with quire_server.serving(folder, "--store", folder / "store", "--remote", "redis://127.0.0.1:1/x",
                              "--events", f"ipc://{folder}/events") as server:
        server.ask("/v1/completions", {"prompt": "Once upon a time there was", "max_tokens": 4})
        server.wait_for_lines(1)
        return server.ask("/metrics")[1]


def families(text):
    return set(re.findall(r"\bquire_[a-z_]+", text))


@pytest.mark.parametrize("path", [PACKAGING / "grafana.json", OPERATIONS], ids=["grafana", "docs"])
def test_every_metric_that_is_named_exists(metrics, path):
    named = families(path.read_text())
    assert len(named) > 5
    missing = {name for name in named if not re.search(rf"^{name}[ {{]", metrics, re.MULTILINE)}
    assert not missing


def test_the_dashboard_shows_every_family(metrics):
    shown = families((PACKAGING / "grafana.json").read_text())
    there = set(re.findall(r"^# TYPE (quire_\w+)", metrics, re.MULTILINE))
    plain = {re.sub(r"_bucket$", "", name) for name in shown}
    # Sums of what is shown by tenant, and constants.
    unshown = {name for name in there - plain
               if not re.match(r"quire_(build|budget|cache_(lookup|hit|peak|used|published|dedup|seq|"
                               r"refused)|http_body_bytes|tenant_(quota|floor|lookups|refused|evicted|published|"
                               r"store_(records|space|floor))|"
                               r"engine_(chunk|steps|prefix|sessions)|http_request_duration|"
                               r"call_preemptions)", name)}
    assert not unshown
    json.loads((PACKAGING / "grafana.json").read_text())


def test_the_configuration_in_the_docs_is_one(tmp_path):
    """The file that docs/operations.md shows, with a model and addresses of this machine."""
    text = OPERATIONS.read_text()
    config = re.search(r"```toml\n(model = .*?)```", text, re.DOTALL).group(1)
    keys = re.search(r"```toml\n(\[\[tenant\]\].*?)```", text, re.DOTALL).group(1)
    (tmp_path / "keys.toml").write_text(
        keys.replace('quota = "2GiB"', 'quota = "20MiB"').replace('"512MiB"', '"5MiB"'))
    config = config.replace("/etc/quire/keys.toml", str(tmp_path / "keys.toml"))
    config = re.sub(r'^(model|listen|operator-listen|tls-.*|access-log|hot-bytes) = .*\n', "", config,
                    flags=re.MULTILINE)
    (tmp_path / "quire.toml").write_text(config)
    with quire_server.serving(tmp_path / "serve", "--config", tmp_path / "quire.toml",
                              "--hot-bytes", "64MiB") as server:
        status, own = server.ask("/v1/cache", key="a-long-random-string")
        assert status == 200 and own["tenants"][0]["name"] in ("alice", "team"), own
        assert server.ask("/v1/cache", key="another-long-random-string")[1]["scope"] == "all"


def test_every_path_in_the_docs_answers(tmp_path):
    table = re.findall(r"`(GET|POST) (/[^ `]*)`", OPERATIONS.read_text())
    assert len(table) >= 8
    with quire_server.serving(tmp_path, "--operator-listen", "127.0.0.1:0", "--adapter-directory", tmp_path) as server:
        session = server.ask("/v1/sessions", {})[1]["id"]
        for method, path in table:
            path = path.replace("ID", session)
            url = server.operator_url if path in OPERATORS else None
            status, _ = server.ask(path, {} if method == "POST" else None, method=method, url=url)
            assert status in (200, 400), (method, path, status)


def test_the_container_installs_the_libraries_that_the_program_needs():
    done = subprocess.run(["readelf", "-d", quire_cli.binary()], capture_output=True, text=True,
                          check=True)
    needed = re.findall(r"NEEDED\)\s+Shared library: \[(\S+)\]", done.stdout)
    assert needed
    text = (PACKAGING / "Containerfile").read_text().split("FROM debian:12-slim")[1]
    for library in needed:
        path = next(line.split()[-1] for line in subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True,
            check=True).stdout.splitlines() if line.split()[0] == library)
        real = subprocess.run(["readlink", "-f", path], capture_output=True, text=True,
                              check=True).stdout.strip()
        for candidate in (real, real.replace("/usr/", "/", 1), path):
            owner = subprocess.run(["dpkg", "-S", candidate], capture_output=True, text=True,
                                   check=False).stdout
            if owner:
                break
        package = owner.split(":")[0]
        if package in ("libc6", "libstdc++6", "libgcc-s1"):
            continue
        assert package in text, f"{library} is in {package}"


def test_the_unit_file(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "quire.service"
    unit.write_text((PACKAGING / "quire.service").read_text()
                    .replace("/usr/local/bin/quire", str(quire_cli.binary().resolve())))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True,
                          text=True, check=False)
    assert "quire.service" not in done.stderr, done.stderr
