"""Caches on a store: what a later process finds, damage, loads from threads and asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import DIM, KV_HEADS, QUERY_HEADS, append, compute, digest, make_cache, rows

import quire
from quire._shared import Lease

PROMPT = list(range(300, 370))  # 4 whole blocks


def identity_of(store):
    return quire.Identity(digest("weights"), domain="d", domain_secret=store.secret())


def fill(directory, **options):
    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        with make_cache(store=store, **options) as cache:
            compute(cache, identity_of(store), PROMPT).close()
            store.flush()  # before the cache ends, which takes what is not written with it


def test_an_encrypted_directory_needs_its_key(tmp_path):
    key = bytes(range(32))
    with quire.DiskStore(tmp_path / "store", cap_bytes=64 << 20, key=key) as store:
        secret = store.secret()
    assert not (tmp_path / "store" / "SECRET").exists()
    for wrong in ({}, {"key": bytes(32)}, {"key": b"short"}, {"keys_command": "cat #"}):
        with pytest.raises(quire.InvalidArgumentError):
            quire.DiskStore(tmp_path / "store", cap_bytes=64 << 20, **wrong)
    with quire.DiskStore(tmp_path / "store", cap_bytes=64 << 20, key=key) as store:
        assert store.secret() == secret


@pytest.mark.parametrize("codec", ["f32", "int8"])
def test_another_cache_loads_what_the_first_published(tmp_path, codec):
    directory = str(tmp_path / "store")
    fill(directory, codec=codec)
    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        cache = make_cache(store=store, codec=codec)
        plan = cache.acquire(PROMPT, identity_of(store))
        assert (plan.resident_tokens, plan.loadable_tokens) == (0, 64)
        assert plan.reason == "not_loaded"
        with cache.load(plan, timeout_s=60) as ticket:
            assert plan.closed and ticket.wait(60) and ticket.done
            assert ticket.progress["blocks"] == ticket.progress["blocks_ready"] == 4
            plan = ticket.take()
        assert plan.resident_tokens == 64
        sequence = cache.open(plan)
        if codec == "f32":
            np.testing.assert_array_equal(sequence.gather(1, "key"),
                                          rows(PROMPT[:64], 1, KV_HEADS, "key").transpose(1, 0, 2))
        assert store.stats()["records_loaded"] == 4
        assert cache.stats()["loaded_total"] == 4


def test_the_front_is_computed_while_the_end_is_read(tmp_path):
    directory = str(tmp_path / "store")
    fill(directory)
    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        cache = make_cache(store=store)
        identity = identity_of(store)
        ticket = cache.load(cache.acquire(PROMPT, identity), from_end=True)
        front = cache.open(ticket.front(32))
        append(front, PROMPT[:32])
        front.commit(PROMPT[:32])
        ticket.meet(32)
        plan = ticket.take()
        assert plan.resident_tokens == 64
        np.testing.assert_array_equal(cache.open(plan).gather(1, "key"),
                                      rows(PROMPT[:64], 1, KV_HEADS, "key").transpose(1, 0, 2))
        again = make_cache(store=store)
        ticket = again.load(again.acquire(PROMPT, identity))
        assert ticket.wait(60)
        assert ticket.progress["meet_tokens"] <= 64 and ticket.progress["elapsed_us"] > 0
        with pytest.raises(quire.InvalidArgumentError, match="from_end"):
            ticket.front(32)
        with pytest.raises(quire.InvalidArgumentError, match="from_end"):
            ticket.meet(32)


def test_what_follows_is_computed_as_layers_come(tmp_path):
    """Whether the caller sees the first layers before the last ones is the disk's to say."""
    directory = str(tmp_path / "store")
    fill(directory)
    want = rows(PROMPT[:64], 1, KV_HEADS, "key").transpose(1, 0, 2)
    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        cache = make_cache(store=store)
        identity = identity_of(store)
        ticket = cache.load(cache.acquire(PROMPT, identity), by_layer=2)
        arriving = None
        while arriving is None and not ticket.done:
            try:
                arriving = cache.open(ticket.arriving())
            except quire.BusyError:
                pass
        if arriving is not None:
            assert len(arriving) == 64
            assert all(arriving.await_layer(layer, 60) for layer in range(2))
            np.testing.assert_array_equal(arriving.gather(1, "key"), want)
            append(arriving, PROMPT)
            arriving.commit(PROMPT[64:])
        assert ticket.wait(60)
        assert ticket.progress["layers_ready"] == 2
        with pytest.raises(quire.BusyError, match="ended"):
            ticket.arriving()
        sequence = cache.open(ticket.take())
        assert sequence.await_layer(0)
        np.testing.assert_array_equal(sequence.gather(1, "key")[:, :64], want)
        again = make_cache(store=store)
        with pytest.raises(quire.InvalidArgumentError, match="from_end and by_layer"):
            again.load(again.acquire(PROMPT, identity), from_end=True, by_layer=2)
        with pytest.raises(quire.InvalidArgumentError, match="9 slices"):
            again.load(again.acquire(PROMPT, identity), by_layer=9)
        with pytest.raises(quire.UnsupportedError, match="by layer"):
            again.load(again.acquire(PROMPT, identity)).arriving()


def test_memory_alone_is_a_store_too():
    with quire.DiskStore("", warm_bytes=8 << 20) as store:
        identity = identity_of(store)
        with make_cache(store=store) as cache:
            compute(cache, identity, PROMPT).close()
            store.flush()
        cache = make_cache(store=store)
        assert cache.load(cache.acquire(PROMPT, identity)).take().resident_tokens == 64
        assert store.stats()["warm_loads"] > 0


def test_ctrl_c_is_heard_while_a_store_is_flushed(tmp_path):
    """The signal comes early in a flush of many bytes, and is heard before all of them are durable."""
    with (quire.DiskStore(tmp_path / "store", cap_bytes=1 << 30, commit_interval_s=600) as store,
          quire.Cache(layers=2, kv_heads=8, head_dim=128, codec="f32",
                      hot_bytes=160 << 20, store=store) as cache):
        zeros = np.zeros((4096, 8, 128), np.float32)

        def publish(first):
            tokens = [first] * len(zeros)
            with cache.open(cache.acquire(tokens, identity_of(store)),
                            reserve_tokens=len(zeros)) as sequence:
                for layer in range(2):
                    sequence.append(layer, zeros, zeros)
                sequence.commit(tokens)

        publish(0)
        begin = time.monotonic()
        store.flush()
        whole_s = time.monotonic() - begin
        thread = threading.main_thread().ident
        for attempt in range(1, 10):
            publish(attempt)
            timer = threading.Timer(whole_s / 8, signal.pthread_kill, (thread, signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                store.flush()
                timer.join()  # it was faster this time
                time.sleep(60)
            if store.stats()["records"] < 256 * (attempt + 1):
                break
        else:
            pytest.fail("it was heard when all was durable, each time")
        written = store.stats()["records_written"]
        store.flush()  # what was interrupted goes on
        assert store.stats()["records_written"] >= written
        assert store.stats()["records"] == 256 * (attempt + 1)


def test_another_process_finds_it(tmp_path):
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[2])\n"
        "from test_disk_store import *\n"
        "with quire.DiskStore(sys.argv[1], cap_bytes=64 << 20) as store:\n"
        "    cache = make_cache(store=store)\n"
        "    plan = cache.acquire(PROMPT, identity_of(store))\n"
        "    found = plan.loadable_tokens\n"
        "    sequence = cache.open(cache.load(plan).take())\n"
        "    new = PROMPT[sequence.length:]\n"
        "    append(sequence, new); sequence.commit(new)\n"
        "    print(json.dumps([found, float(sequence.gather(0, 'value').sum())]))\n")
    outs = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", program, tmp_path / "store",
                              pathlib.Path(__file__).parent], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        outs.append(json.loads(run.stdout))
    assert [found for found, _ in outs] == [0, 64] and outs[0][1] == outs[1][1]


def test_damage_is_a_miss(tmp_path):
    directory = tmp_path / "store"
    fill(str(directory))
    largest = max((path for path in directory.rglob("*") if path.is_file()),
                  key=lambda path: len(path.read_bytes().strip(b"\0")))
    expected = rows(PROMPT[16:32], 0, KV_HEADS, "key").astype(np.float32).transpose(1, 2, 0)
    data = bytearray(largest.read_bytes())
    at = data.find(np.ascontiguousarray(expected[0]).tobytes())  # keys lie by dim, then token
    assert at > 0, "the second block's keys are not where this test looks for them"
    data[at + 100] ^= 1
    largest.write_bytes(data)
    with quire.DiskStore(str(directory), cap_bytes=64 << 20) as store:
        cache = make_cache(store=store)
        plan = cache.load(cache.acquire(PROMPT, identity_of(store))).take()
        assert plan.resident_tokens == 16 and plan.reason == "load_failed"
        assert store.stats()["loads_failed"] >= 1


def test_loads_of_asyncio(tmp_path):
    directory = str(tmp_path / "store")
    fill(directory)

    async def both(cache, identity):
        plans = await asyncio.gather(*(quire.load_async(cache, cache.acquire(PROMPT, identity))
                                       for _ in range(2)))
        other = make_cache(store=store)
        task = asyncio.create_task(quire.load_async(other, other.acquire(PROMPT, identity)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = await quire.load_async(other, other.acquire(PROMPT, identity))
        assert again.resident_tokens == 64
        return [plan.resident_tokens for plan in plans]

    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        cache = make_cache(store=store)
        assert asyncio.run(both(cache, identity_of(store))) == [64, 64]


def test_a_directory_is_any_path_and_a_former_name_is_refused(tmp_path):
    for path in (tmp_path / "store", str(tmp_path / "text"), os.fsencode(tmp_path / "bytes")):
        with quire.DiskStore(path, cap_bytes=32 << 20) as store:
            assert store.stats()["bytes_cap"] == 32 << 20
        assert os.path.isdir(path)
    with pytest.raises(TypeError, match="cap_bytes: int"):
        quire.DiskStore(tmp_path / "old", bytes_cap=64 << 20)
    for wrong in (None, 5, str(tmp_path / "a\0b")):
        with pytest.raises((TypeError, ValueError)):
            quire.DiskStore(wrong)


def test_what_is_refused(tmp_path):
    directory = str(tmp_path / "store")
    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        with pytest.raises(quire.BusyError):
            quire.DiskStore(directory, cap_bytes=64 << 20)
        cache = make_cache(store=store)
        ticket = cache.load(cache.acquire(PROMPT, identity_of(store)))
        plan = ticket.take()
        with pytest.raises(quire.InvalidArgumentError, match="taken"):
            ticket.take()
        with pytest.raises(quire.InvalidArgumentError, match="another cache"):
            make_cache().load(plan)
        with pytest.raises(quire.InvalidArgumentError, match="seconds"):
            cache.load(plan, timeout_s=-1)
        assert plan.resident_tokens == 0
    with pytest.raises(quire.InvalidArgumentError, match="closed"):
        store.flush()
    store.close()
    with pytest.raises(quire.InvalidArgumentError, match="cap"):
        quire.DiskStore(directory, cap_bytes=1)


def test_one_process_shares_the_store_of_a_path(tmp_path):
    first = Lease(tmp_path / "store", 64 << 20)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    second = Lease(str(tmp_path / "link"), 64 << 20)
    assert first.store is second.store
    with pytest.raises(quire.InvalidArgumentError, match="cap of 67108864 bytes, not 33554432"):
        Lease(tmp_path / "store", 32 << 20)
    first.end()
    first.end()
    assert not second.store.closed
    with pytest.raises(quire.BusyError):
        quire.DiskStore(tmp_path / "store")
    second.end()
    assert second.store.closed
    Lease(tmp_path / "store", 64 << 20).end()


def test_what_is_expected_is_read_ahead(tmp_path):
    directory = str(tmp_path / "store")
    fill(directory)
    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        cache = make_cache(store=store)
        assert cache.prefetch(PROMPT, identity_of(store)) == 64
        end = time.monotonic() + 60
        while cache.acquire(PROMPT, identity_of(store)).resident_tokens < 64:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert cache.prefetch(PROMPT, identity_of(store)) == 0
        with pytest.raises(quire.NotFoundError):
            cache.prefetch(PROMPT, identity_of(store), tenant=7)


def test_a_context_that_memory_does_not_hold_is_attended_to(tmp_path):
    """hot_bytes hold half of it; the bits are those of a cache that holds all of it."""
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, 1000, 4000)]
    queries = np.random.default_rng(2).standard_normal((2, QUERY_HEADS, DIM)).astype(np.float32)
    whole = make_cache(hot_bytes=32 << 20)
    with quire.DiskStore(str(tmp_path / "store"), cap_bytes=256 << 20) as store:
        identity = identity_of(store)
        cache = make_cache(store=store, hot_bytes=2 << 20)
        with pytest.raises(quire.TooLargeError):
            cache.open(cache.acquire(tokens, identity))
        with pytest.raises(quire.InvalidArgumentError, match="query_heads"):
            cache.open(cache.acquire(tokens, identity), resident_tokens=256)
        options = {"resident_tokens": 256, "query_heads": QUERY_HEADS, "step_tokens": 32}
        sequences = [cache.open(cache.acquire(tokens, identity), **options),
                     whole.open(whole.acquire(tokens, identity))]
        for at in range(0, len(tokens), 32):
            step = tokens[at:at + 32]
            for sequence in sequences:
                append(sequence, step)
                sequence.commit(step)
        assert sequences[0].stats()["tokens_streamed"] > 2000
        attention = quire.Attention(2)
        for layer in range(2):
            outs = [attention.attend(layer, sequence, queries) for sequence in sequences]
            np.testing.assert_array_equal(*outs)
        with pytest.raises(quire.InvalidArgumentError, match="two tasks"):
            outs = [np.empty_like(queries), np.empty_like(queries)]
            attention.attend_batch(0, [sequences[0]] * 2, [queries] * 2, outs)
