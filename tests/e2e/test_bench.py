"""quire bench: which rows there are, how their figures hang together, and what two builds say of
each other. No figure is held against a bound: the machine may be doing anything.
"""

import json
import math
import shutil
import subprocess

import pytest
from quire_cli import binary, run


def bench(name, *flags):
    done = run("bench", name, *flags, "--json")
    assert done.exit_code == 0, done.describe()
    assert done.json["bench"] == name
    return done.json


def names(name, *flags):
    """The cases of a bench, from the worker's greeting: nothing is measured."""
    done = subprocess.run([binary(), "bench", name, *flags, "--slices"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, check=True)
    greeting, *cases = done.stdout.splitlines()
    program, version, target, count = greeting.split(" ")
    assert (program, version) == ("quire-slices", "1") and target
    assert len(cases) == int(count)
    return cases


FAMILIES = {
    "attention": ["decode/f16/4096/t1", "decode/f16/32768/t2", "decode/int8/32768/t2",
                  "decode/int8/32768/g4/t2", "decode/nf4/32768/t2", "decode/q25/32768/t1",
                  "cached/int8/256/t1", "prefill/f16/8192/chunk512/t2"],
    "cache": ["acquire/8192/t1", "open/8192/t1", "append/f16/512/t1", "commit/int8/512/t1"],
    "cascade": ["cascade/f16/16384+64/4_beside_1/t1", "cascade/q25/16384+64/32_beside_fma/t2",
                "cascade/int8/16384+64/32_beside_32_calls/t2"],
    "codec": ["distortion/int8/k/0x1/plain", "distortion/q25/attention/4x32/channel_scales",
              "encode/int4/t1", "decode/fp8_e4m3/t1"],
    "index": ["find/shared/16/t1", "find+touch/branchy/16/t1", "insert1/shared/16/t1",
              "metadata/branchy/16"],
    "model": ["prefill/bf16/chunk512/t1", "decode/bf16/depth0/t2", "prefill/nf4/tiny/chunk512/t1",
              "prefill/int8/qwen3-0.6b/chunk512/t2"],
    "pool": ["allocate_free/t1", "allocate_free/t2", "allocate/batch1000/t1",
             "allocate_free/buddy/t1", "run64_free/best_fit/t1"],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_documented_case_is_there_once(name):
    cases = names(name)
    assert set(FAMILIES[name]) <= set(cases)
    assert len(set(cases)) == len(cases)


def test_threads_choose_the_cases():
    cases = names("attention", "--threads", "3")
    assert "decode/int8/32768/t3" in cases
    assert not any(case.endswith("/t2") for case in cases)


@pytest.mark.parametrize("name, case, better, count", [
    ("attention", "cached/int8/256/t", "more", 1),
    ("attention", "decode/q25/32768", "less", 2),
    ("cache", "commit/f16/", "less", 1),
    ("cache", "commit/int8/", "less", 1),
    ("codec", "encode/int8", "more", 1),
    ("index", "find/shared", "more", 1),
    ("pool", "allocate_free/t", "less", 2),
])
def test_a_ratio_is_that_of_value_and_floor(name, case, better, count):
    rows = bench(name, "--case", case, "--pairs", "1")["rows"]
    assert len(rows) == count
    for row in rows:
        assert case in row["case"] and row["better"] == better and row["slice"]
        assert row["value"] > 0 and row["floor"] > 0 and row["median"] > 0
        share = row["floor"] / row["value"] if better == "less" else row["value"] / row["floor"]
        assert math.isclose(row["ratio"], share, rel_tol=1e-9), row
        assert row["pairs"] >= 1 and "void" not in row.get("note", "")
        assert "instructions" not in row  # nobody asked


def test_every_place_gets_so_many_pairs():
    (one,) = bench("codec", "--case", "encode/int8", "--pairs", "1")["rows"]
    (four,) = bench("codec", "--case", "encode/int8", "--pairs", "4")["rows"]
    places = one["pairs"]
    assert places > 1
    assert four["pairs"] % places == 0
    assert 4 * places <= four["pairs"] <= 4 * 4 * places


def test_what_needs_no_clock_is_the_same_twice():
    flags = ("codec", "--case", "distortion/int8/k/0x1/", "--pairs", "1")
    once, again = bench(*flags)["rows"], bench(*flags)["rows"]
    assert once == again
    assert len(once) == 5
    assert all(row["unit"] == "dB" and row["pairs"] == 0 for row in once)


def test_a_build_beside_itself():
    report = bench("pool", "--case", "allocate_free/", "--pairs", "5", "--against", str(binary()))
    assert report["against"] == str(binary())
    rows = report["rows"]
    assert [row["case"] for row in rows] == [
        case for case in names("pool") if "allocate_free/" in case]
    for row in rows:
        assert row["better"] == "less" and row["pairs"] >= 5
        assert math.isclose(row["ratio"], row["against"] / row["value"], rel_tol=1e-9), row
        assert math.isfinite(row["median"]) and row["median"] > 0
        assert "floor" not in row and "note" not in row


def test_a_build_beside_itself_differs_in_nothing_that_needs_no_clock():
    rows = bench("index", "--case", "metadata", "--against", str(binary()))["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["value"] == row["against"] > 0
        assert row["ratio"] == row["median"] == 1 and row["pairs"] == 0


def fake_build(folder, text):
    """A program that greets like a worker and then answers as `text` does."""
    path = folder / "other"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_ratio_is_the_other_time_over_ours(tmp_path):
    """The other takes an hour for everything, so whatever the machine does, ours is faster."""
    worker = fake_build(tmp_path, f"""
        exec 3<&0
        echo 'quire-slices 1 avx2 1'; echo 'allocate_free/t1'
        read -r line; printf '%s\\n' "$line" | '{binary()}' bench pool --slices | tail -n 1
        while read -r line; do echo 'seconds 3600'; done""")
    (row,) = bench("pool", "--case", "allocate_free/t1", "--pairs", "2", "--against",
                   worker)["rows"]
    assert row["ratio"] > 1 and row["median"] > 1 and row["against"] > row["value"]


def test_a_case_that_only_one_build_has(tmp_path):
    worker = fake_build(tmp_path, "echo 'quire-slices 1 avx2 0'; cat >/dev/null")
    (row,) = bench("pool", "--case", "allocate_free/t1", "--against", worker)["rows"]
    assert row == {"case": "allocate_free/t1", "note": "the other has no such case"}


def test_a_case_that_is_cut_otherwise_is_not_compared(tmp_path):
    worker = fake_build(tmp_path, """
        echo 'quire-slices 1 avx2 1'; echo 'allocate_free/t1'
        printf 'timed 7 less 1 ns\\tsomething else\\n'; cat >/dev/null""")
    (row,) = bench("pool", "--case", "allocate_free/t1", "--against", worker)["rows"]
    assert row["note"] == "the other measures something else under this name"


@pytest.mark.parametrize("text", [
    "echo 'The following argument was not expected: --slices' >&2; exit 2",  # an older build
    "echo 'quire-slices 2 avx2 0'; cat >/dev/null",
    "exit 0",
])
def test_a_build_that_cannot_take_turns_is_refused(tmp_path, text):
    worker = fake_build(tmp_path, text)
    done = run("bench", "pool", "--against", worker)
    assert done.exit_code == 3, done.describe()
    assert worker in done.stderr and "older than `quire bench --against`" in done.stderr


def test_a_build_that_ends_midway_is_an_error(tmp_path):
    worker = fake_build(tmp_path, """
        echo 'quire-slices 1 avx2 1'; echo 'allocate_free/t1'; read -r line""")
    done = run("bench", "pool", "--case", "allocate_free/t1", "--against", worker, "--json")
    assert done.exit_code == 0, done.describe()
    (row,) = done.json["rows"]
    assert "ended" in row["note"]


def test_a_program_that_is_not_there():
    done = run("bench", "pool", "--against", "/nowhere/quire")
    assert done.exit_code == 3 and "/nowhere/quire" in done.stderr, done.describe()


def test_a_worker_says_what_it_does_not_know():
    done = subprocess.run([binary(), "bench", "pool", "--slices"], input="dance 3\n",
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and "dance" in done.stderr


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize("name, case", [
    ("attention", "cached/int8/256/t1"),
    ("cache", "commit/f16/512/t1"),
])
def test_instructions_are_the_same_twice(name, case):
    counts = []
    for _ in range(2):
        report = bench(name, "--case", case, "--pairs", "1", "--instructions")
        if "counted_target" not in report["machine"]:
            pytest.skip("built without valgrind/callgrind.h")
        assert report["machine"]["counted_target"]
        (row,) = report["rows"]
        counts.append(row["instructions"])
    assert counts[0] == counts[1] > 100_000


def test_without_valgrind_the_column_is_left_out_aloud(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("bench", "pool", "--case", "allocate_free/t1", "--pairs", "1", "--instructions",
               "--json")
    assert done.exit_code == 0, done.describe()
    assert "valgrind" in done.stderr
    assert "instructions" not in done.json["rows"][0]


def test_unknown_benches_and_cases_are_named():
    done = run("bench", "everything")
    assert done.exit_code == 2 and "everything" in done.stderr, done.describe()
    done = run("bench", "pool", "--case", "nowhere/t1")
    assert done.exit_code == 2 and "nowhere/t1" in done.stderr, done.describe()
    assert not done.stdout


def test_serve_replays_a_trace(tmp_path):
    trace = tmp_path / "three.jsonl"
    trace.write_text("".join(
        json.dumps({"timestamp": 100 * i, "input_length": 64, "output_length": 64,
                    "hash_ids": [1, 2, 3, 10 + i]}) + "\n" for i in range(3)))
    rows = {row["case"]: row
            for row in bench("serve", "--threads", "1", "--trace", str(trace))["rows"]}
    assert set(rows) == {f"{case}/three/t1" for case in (
        "throughput", "first_token/p50", "first_token/p99", "next_token/p50", "next_token/p99",
        "hits")}
    for row in rows.values():
        assert row["value"] > 0 and row["floor"] > 0 and row["note"] == "3 requests, 204 tokens"
    # The second and the third find three blocks of four, whether they wait for them or not.
    assert rows["hits/three/t1"]["value"] == rows["hits/three/t1"]["floor"] == 0.5
    assert rows["throughput/three/t1"]["ratio"] <= 1


def test_serve_without_a_trace_says_what_it_wants():
    done = run("bench", "serve")
    assert done.exit_code == 2
    assert "--trace" in done.stderr
