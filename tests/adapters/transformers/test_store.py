"""attach(store=DIR): what one process computed, a later one finds; damage is computed again."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import Forwards, generate, make_model, padded, prompt

import quire
from quire.transformers import attach

KV = [None, "f16", "int8", "nf4"]


def run(model, directory, kv=None):
    """A prompt and a padded batch; their tokens and the statistics."""
    ids, (batch, mask) = prompt(100), padded([60, 37])
    with attach(model, hot_bytes=50_000_000, kv=kv, store=directory, store_bytes=100_000_000) as cache:
        one = generate(model, ids, cache=cache.for_prompt(ids))
        two = generate(model, batch, mask, cache.for_prompt(batch, mask))
        return [one.tolist(), two.tolist()], cache.stats()


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gpt-oss", "bloom"])
def test_restart(name, kv, tmp_path):
    model = make_model(name)
    miss, first = run(model, tmp_path / "store", kv)
    hit, second = run(model, tmp_path / "store", kv)
    assert miss == hit
    # A window beside full attention: what the last block's tokens saw is not loaded, so the first
    # hit cannot be probed and is computed anew; the third row needs other blocks than the second.
    loaded, hit_tokens = (96 + 48 + 32, 48 + 32) if name == "gpt-oss" else (96 + 48, 96 + 48 + 32)
    assert (first["hit_tokens"], second["loaded_tokens"]) == (0, loaded)
    assert second["hit_tokens"] == hit_tokens and second["store"]["records_loaded"] > 0
    if kv is None:
        ids = prompt(100)
        assert hit[0] == generate(model, ids).tolist()


@pytest.mark.parametrize("name", ["qwen3", "bloom"])
def test_two_processes_one_after_the_other(tmp_path, name):
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[2])\n"
        "from test_store import *\n"
        "tokens, stats = run(make_model(sys.argv[3]), sys.argv[1])\n"
        "print(json.dumps([tokens, stats['hit_tokens'], stats['loaded_tokens']]))\n")
    outs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "store"),
                               str(pathlib.Path(__file__).parent), name],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outs.append(json.loads(done.stdout))
    base = generate(make_model(name), prompt(100)).tolist()
    assert outs[0][0] == outs[1][0] and outs[0][0][0] == base
    assert (outs[0][2], outs[1][2]) == (0, 96 + 48)


@pytest.mark.parametrize("kv", [None, "int8"])
def test_damage_is_computed_again(tmp_path, kv):
    model, directory = make_model("llama"), tmp_path / "store"
    miss, _ = run(model, directory, kv)
    segment = max((path for path in directory.rglob("*") if path.is_file()),
                  key=lambda path: len(path.read_bytes().strip(b"\0")))
    data = bytearray(segment.read_bytes())
    written = len(data.rstrip(b"\0"))
    for at in range(written // 4, written, 40_000):  # in several records
        data[at] ^= 0xff
    segment.write_bytes(data)
    with Forwards() as tokens:
        again, stats = run(model, directory, kv)
    assert miss == again
    assert stats["loaded_tokens"] < 96 + 48 and max(tokens) > 4
    assert stats["store"]["loads_failed"] > 0
    repaired, stats = run(model, directory, kv)
    assert repaired == miss and stats["loaded_tokens"] == 96 + 48


def test_other_weights_share_no_record(tmp_path):
    run(make_model("llama"), tmp_path / "store")
    _, stats = run(make_model("llama", seed=1), tmp_path / "store")
    assert stats["loaded_tokens"] == 0


def test_models_share_a_store(tmp_path):
    with quire.DiskStore(str(tmp_path / "store"), cap_bytes=1 << 28) as store:
        for _ in range(2):
            caches = [attach(make_model(name), hot_bytes=50_000_000, store=store)
                      for name in ("llama", "mistral")]
            ids = prompt(50)
            for cache in caches:
                assert torch.equal(generate(cache.model, ids, cache=cache.for_prompt(ids)),
                                   generate(cache.model, ids))
                cache.close()
        assert [cache._counts["loaded_tokens"] for cache in caches] == [48, 48]
        assert not store.closed


def test_a_store_in_use_is_shared_in_one_process_and_refused_in_others(llama, tmp_path):
    ids = prompt(50)
    cache = attach(llama, hot_bytes=50_000_000, store=str(tmp_path / "store"), store_bytes=100_000_000)
    generate(llama, ids, cache=cache.for_prompt(ids))
    cache = attach(llama, hot_bytes=50_000_000, store=tmp_path / "store", store_bytes=100_000_000)  # a cell, run again
    gc.collect()
    generate(llama, ids, cache=cache.for_prompt(ids))
    assert cache.stats()["loaded_tokens"] == 48
    other = subprocess.run([sys.executable, "-c", "import quire, sys; quire.DiskStore(sys.argv[1])",
                            tmp_path / "store"], capture_output=True, text=True)
    assert "BusyError" in other.stderr
    with pytest.raises(quire.InvalidArgumentError, match="cap"):
        attach(llama, hot_bytes=50_000_000, store=tmp_path / "store", store_bytes=200_000_000)
    cache.close()
    with pytest.raises(quire.InvalidArgumentError, match="int9"):
        attach(llama, kv="int9", store=tmp_path / "store", store_bytes=100_000_000)
    assert os.path.isdir(tmp_path / "store")
    with attach(llama, hot_bytes=50_000_000, store=tmp_path / "store", store_bytes=100_000_000):
        pass  # the refused ones let go of it


def test_caches_of_several_models_pay_from_one_budget(llama):
    budget = quire.SharedBudget(1 << 20)
    caches = [attach(model, hot_bytes=50_000_000, shared_budget=budget)
              for model in (llama, make_model("mistral"))]
    ids = prompt(50)
    for cache in caches:
        before = budget.used_bytes
        generate(cache.model, ids, cache=cache.for_prompt(ids))
        assert before < budget.used_bytes <= budget.bytes
        cache.close()
