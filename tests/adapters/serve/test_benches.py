"""Load generators of others, unchanged, on `quire serve` and on two of them behind examples/router: `aiperf profile` on
a trace of Mooncake's form, and `lmcache bench engine`. No request may fail, and what prompts share must be found."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import quire_server  # noqa: E402
import routed_servers  # noqa: E402

BENCHES = os.environ.get("BENCHES_BIN")
BLOCK_TOKENS = 512  # of Mooncake's traces
WORKLOADS = {
    "long-doc-qa": ["--ldqa-document-length", "600", "--ldqa-query-per-document", "2", "--ldqa-max-output-length", "8"],
    "multi-round-chat": ["--mrc-shared-prompt-length", "200", "--mrc-chat-history-length", "400",
                         "--mrc-user-input-length", "20", "--mrc-output-length", "8", "--mrc-qps", "5",
                         "--mrc-duration", "8"],
}
pytestmark = pytest.mark.skipif(not BENCHES, reason="aiperf and LMCache's command are not installed")


@pytest.fixture(params=["one server", "router"])
def served(request, tmp_path):
    """An address, and the servers that answer there."""
    flags = ("--hot-bytes", "256MiB")
    if request.param == "router":
        with routed_servers.routed(tmp_path / "r", "prefix", *flags) as (url, _, servers):
            yield url, servers
    else:
        with quire_server.serving(tmp_path / "serve", *flags) as server:
            yield server.url, [server]


def found_share(servers):
    """Of the tokens of all prompts, those that were there; and how many prompts each server had."""
    lines = [[line for line in server.lines() if line.get("prompt_tokens")] for server in servers]
    flat = [line for each in lines for line in each]
    assert {line["status"] for line in flat} == {200}
    return (sum(line["cache"]["reused_tokens"] for line in flat) / sum(line["prompt_tokens"] for line in flat),
            [len(each) for each in lines])


def run(program, *arguments, **environment):
    done = subprocess.run([f"{BENCHES}/{program}", *map(str, arguments)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", **environment})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def write_trace(path, requests=40):
    """Conversations that begin with one of three blocks and go on from one another. What fills no block at the end
    has an id of its own."""
    draw = random.Random(1)
    paths = [[0], [1], [2]]
    next_id, time_ms = 100, 0
    with path.open("w") as trace:
        for _ in range(requests):
            time_ms += draw.randint(20, 200)
            blocks = draw.choice(paths)
            if len(blocks) < 5:
                blocks = [*blocks, next_id]
                next_id += 1
                paths.append(blocks)
            trace.write(json.dumps({"timestamp": time_ms, "output_length": draw.randint(4, 16),
                                    "input_length": len(blocks) * BLOCK_TOKENS + draw.randint(1, BLOCK_TOKENS - 1),
                                    "hash_ids": [*blocks, next_id]}) + "\n")
            next_id += 1


def hub_with_tiny(folder):
    """A cache of Hugging Face's hub that has the bundled tokenizer: aiperf's helpers take no path."""
    revision = "0" * 40
    model = folder / "hub/models--quire--tiny"
    snapshot = model / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(revision)
    for file in quire_server.TINY.glob("*.json"):
        (snapshot / file.name).symlink_to(file)
    return folder


def test_aiperf_on_a_mooncake_trace(served, tmp_path):
    url, servers = served
    write_trace(tmp_path / "trace.jsonl")
    run("aiperf", "profile", "--model", "tiny", "--tokenizer", "quire/tiny", "--url", url, "--endpoint-type",
        "chat", "--streaming", "--input-file", tmp_path / "trace.jsonl", "--custom-dataset-type", "mooncake_trace",
        "--fixed-schedule", "--artifact-dir", tmp_path / "out", "--ui", "none",
        HF_HOME=str(hub_with_tiny(tmp_path / "hf")), HF_HUB_OFFLINE="1")
    said = json.loads((tmp_path / "out/profile_export_aiperf.json").read_text())
    assert said["request_count"]["avg"] == 40 and said["error_summary"] == []
    share, requests = found_share(servers)
    assert sum(requests) >= 40 and min(requests) > 0 and share > 0.4


@pytest.mark.parametrize("workload", WORKLOADS)
def test_lmcache_bench_engine(served, workload, tmp_path):
    url, servers = served
    run("lmcache", "bench", "engine", "--engine-url", url, "--model", "tiny", "--workload", workload,
        "--no-interactive", "--json", "-q", "--output-dir", tmp_path, "--kv-cache-volume", "1",
        "--tokens-per-gb-kvcache", "6000", *WORKLOADS[workload])
    results = json.loads((tmp_path / "bench_summary.json").read_text())["results"]
    assert results["failed_requests"] == 0 and results["successful_requests"] >= 20
    assert found_share(servers)[0] > 0.4
