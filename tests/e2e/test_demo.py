"""The main job as a newcomer runs it, and the answers of the bundled model."""

import json

import numpy as np
import pytest

from quire_cli import REPOSITORY, run

TINY = REPOSITORY / "models" / "tiny"


@pytest.fixture(scope="module")
def demo() -> dict:
    done = run("demo", "--json")
    assert done.exit_code == 0, done.describe()
    return done.json


def test_demo_keeps_every_promise(demo):
    assert len(demo["checks"]) >= 5
    assert [check["promise"] for check in demo["checks"] if not check["kept"]] == []


def test_demo_reuses_the_document_and_answers_from_it(demo):
    first, *others = demo["sessions"]
    assert first["reused_tokens"] == 0 and first["computed_tokens"] == first["prompt_tokens"]
    for session in others:
        assert session["reused_tokens"] % 16 == 0
        assert session["reused_tokens"] + session["computed_tokens"] == session["prompt_tokens"]
        assert session["computed_tokens"] < 64  # of some 2,800
    asked = [session for session in demo["sessions"] if session["expected"]]
    right = sum(session["answer"] == session["expected"] for session in asked)
    assert right >= len(asked) - 1, [(s["expected"], s["answer"]) for s in asked]


def test_demo_shows_answers_table_and_block_map():
    done = run("demo")
    assert done.exit_code == 0, done.describe()
    for part in ("The secret number of Martha=", "computed", "first token", "KV bytes",
                 "Block map", "kept"):
        assert part in done.stdout
    assert "BROKEN" not in done.stdout


def test_demo_with_a_budget_too_small_says_so():
    done = run("demo", "--hot-bytes", "1MB")
    assert done.exit_code == 4, done.describe()
    assert "can never fit" in done.stderr and "1000000" in done.stderr


def test_generate_streams_text_and_is_reproducible_with_a_seed():
    flags = ("--model", TINY, "--prompt", "It was a fine morning, and", "--max-tokens", 40)
    greedy = run("generate", *flags)
    assert greedy.exit_code == 0, greedy.describe()
    assert greedy.stdout.strip()
    drawn = [run("generate", *flags, "--temperature", 0.8, "--seed", seed, "--json").json["text"]
             for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_full_cache_rejects_or_halts():
    flags = ("--model", TINY, "--prompt", "a" * 100, "--max-tokens", 2000, "--hot-bytes", "1MB",
             "--json")
    rejected = run("generate", *flags)
    assert rejected.exit_code == 4 and "can never fit" in rejected.stderr, rejected.describe()
    halted = run("generate", *flags, "--on-full", "halt")
    report = json.loads(halted.stdout)
    assert halted.exit_code == 4 and report["finish"] == "no_space"
    assert 0 < report["generated_tokens"] < 2000
    assert report["kv_bytes"] <= 1_000_000


def test_logits_out_has_a_row_for_every_position(tmp_path):
    path = tmp_path / "logits.npy"
    done = run("generate", "--model", TINY, "--prompt", "b" * 50, "--max-tokens", 5, "--repeat", 2,
               "--logits-out", path, "--json")
    assert done.exit_code == 0, done.describe()
    logits = np.load(path)
    assert logits.dtype == np.float32
    assert logits.shape[0] == 50 + done.json["generated_tokens"] - 1
    assert np.isfinite(logits).all() and done.json["reused_tokens"] == 48
