"""`quire replay`: a small recorded service, its hit ratios, their reproducibility and the curve."""

import collections
import json
import random
import xml.etree.ElementTree

import pytest

import quire_cli

POLICIES = ["lru", "lfu", "s3fifo", "arc", "priority", "token_limit", "quire", "belady"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Conversations that share a system prompt, 1,500 requests."""
    source = random.Random(5)
    path = tmp_path_factory.mktemp("replay") / "trace.jsonl"
    conversations, requests, next_id = [], [], 100
    for number in range(1500):
        if not conversations or source.random() < 0.4:
            conversations.append([0, 1])
        blocks = source.choice(conversations)
        if len(conversations) > 60:
            conversations.pop(0)
        new = source.randint(1, 4)
        blocks += range(next_id, next_id + new)
        next_id += new
        requests.append({"timestamp": number * 700, "input_length": len(blocks) * 512,
                         "output_length": source.randint(1, 400), "hash_ids": list(blocks)})
    path.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
    return path, [request["hash_ids"] for request in requests]


def replay(path, *flags):
    done = quire_cli.run("replay", "--trace", path, *flags, "--json")
    assert done.exit_code == 0, done.describe()
    return done.json


def lru_hits(requests, capacity):
    """The ten-line judge: leading run of resident blocks, first block ends as the most recent."""
    resident, hits = collections.OrderedDict(), 0
    for blocks in requests:
        found = 0
        while found < len(blocks) and blocks[found] in resident:
            found += 1
        hits += found
        for block in reversed(blocks):
            resident[block] = True
            resident.move_to_end(block)
        while len(resident) > capacity:
            resident.popitem(last=False)
    return hits


def hits_with_store(requests, capacity, store_blocks):
    """The judge: memory by recency, and a store that loses one block at a time, deep ones first."""
    resident, store, hits, clock = collections.OrderedDict(), [], 0, 0  # store: [block, used]

    def use(block, depth):
        nonlocal clock
        clock += 1
        there = [entry for entry in store if entry[0] == block]
        for entry in there:
            entry[1] = clock - 2 * depth
        return bool(there)

    def put(block, depth):
        nonlocal clock
        if not has(block):
            clock += 1
            if len(store) < store_blocks:
                store.append([block, clock - 2 * depth])
            else:
                victim = min(range(store_blocks), key=lambda i: store[i][1])
                store[victim] = [block, clock - 2 * depth]
        else:
            use(block, depth)

    def has(block):
        return any(entry[0] == block for entry in store)

    for blocks in requests:
        found = 0
        while found < len(blocks) and blocks[found] in resident:
            found += 1
        while found < len(blocks) and has(blocks[found]):
            found += 1
        hits += found
        for depth, block in enumerate(blocks):
            if depth >= found or (not use(block, depth) and capacity <= store_blocks // 2):
                put(block, depth)
        for block in reversed(blocks):
            resident[block] = True
            resident.move_to_end(block)
        while len(resident) > capacity:
            resident.popitem(last=False)
    return hits


def test_a_store_below_hits_what_a_list_hits(trace):
    path, requests = trace
    for capacity, store in ((50, 120), (100, 400)):
        flags = ["--capacity-blocks", capacity, "--store-blocks", store]
        small = replay(path, *flags, "--segment-blocks", 1)
        assert small["hit_blocks"] == hits_with_store(requests, capacity, store)
        assert 0 < small["store_hit_blocks"] < small["hit_blocks"]
        assert small["store_written_blocks"] - small["store_recycled_blocks"] == store
        large = replay(path, *flags, "--segment-blocks", 16)
        assert lru_hits(requests, capacity) < large["hit_blocks"] < small["hit_blocks"]


def test_lru_hits_what_a_dictionary_hits(trace):
    path, requests = trace
    for capacity in (100, 400, 1500):
        assert replay(path, "--capacity-blocks", capacity)["hit_blocks"] == lru_hits(
            requests, capacity)


def test_the_bound_is_above_every_policy_and_runs_repeat(trace):
    path, _ = trace
    flags = ("--capacity-blocks", "200,800", "--policy", ",".join(POLICIES))
    first, second = replay(path, *flags)["runs"], replay(path, *flags)["runs"]
    for run in first + second:
        del run["blocks_per_s"]
    assert first == second
    for capacity in (200, 800):
        hits = {run["policy"]: run["hit_blocks"] for run in first
                if run["capacity_blocks"] == capacity}
        assert max(hits.values()) == hits["belady"]
        digests = {run["state_digest"] for run in first if run["capacity_blocks"] == capacity}
        assert len(digests) > 5, "different policies evict in different orders"


def test_a_resampled_trace_is_drawn_by_its_seed(trace):
    path, _ = trace
    flags = ("--capacity-blocks", 400, "--resample")
    runs = [replay(path, *flags, seed) for seed in (1, 1, 2)]
    for run in runs:
        del run["blocks_per_s"]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert replay(path, *flags, 1, "--sessions", 3)["requests"] < runs[0]["requests"]


def test_curve_is_close_to_lru_and_drawn(trace, tmp_path):
    path, requests = trace
    svg = tmp_path / "curve.svg"
    curve = replay(path, "--curve", "--svg", svg)["curve"]
    ratios = [point["hit_ratio"] for point in curve]
    assert ratios == sorted(ratios)
    blocks = sum(map(len, requests))
    for point in curve[::4]:
        exact = lru_hits(requests, point["capacity_blocks"]) / blocks
        assert point["hit_ratio"] == pytest.approx(exact, abs=0.01), point
    root = xml.etree.ElementTree.parse(svg).getroot()
    line = root.find("{http://www.w3.org/2000/svg}polyline")
    assert len(line.get("points").split()) == len(curve)


def test_bad_usage(trace, tmp_path):
    path, _ = trace
    assert quire_cli.run("replay", "--trace", path, "--sessions", "3").exit_code == 2
    assert quire_cli.run("replay", "--trace", path, "--policy", "mru").exit_code == 2
    assert quire_cli.run("replay", "--trace", path, "--svg", tmp_path / "x.svg").exit_code == 2
    done = quire_cli.run("replay", "--trace", path, "--curve", "--svg", tmp_path / "no" / "x.svg")
    assert done.exit_code != 0 and "x.svg" in done.stderr and "No such file" in done.stderr, done.describe()
