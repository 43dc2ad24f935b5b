"""Threads of Python that call at once, asyncio, and the GIL."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from conftest import DIM, KV_HEADS, LAYERS, QUERY_HEADS, append, compute, digest, longest_stall, make_cache, rows

import quire

THREADS = 6


def at_once(work, count=THREADS):
    """Runs work(number) on so many threads that begin together; raises what one of them raised."""
    barrier = threading.Barrier(count)

    def begin(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [done.result() for done in [pool.submit(begin, i) for i in range(count)]]


def test_threads_share_a_cache(identity):
    cache = make_cache(hot_bytes=1 << 20)
    prefixes = [[p * 1000 + i for i in range(48)] for p in range(3)]

    def serve(number):
        kernels, chance = quire.Attention(), random.Random(number)
        for step in range(25):
            prompt = chance.choice(prefixes) + [number * 100 + step]
            try:
                sequence = compute(cache, identity, prompt)
            except quire.NoSpaceError:
                continue  # the others hold it all at this moment
            queries = rows(prompt[-1:], 1, QUERY_HEADS, "query")
            out = kernels.attend(1, sequence, queries)
            fork = sequence.fork() if step % 3 == 0 else None
            np.testing.assert_array_equal(
                sequence.gather(1, "key", 16, 32),
                rows(prompt[16:32], 1, KV_HEADS, "key").transpose(1, 0, 2))
            if fork is not None:
                np.testing.assert_array_equal(out, kernels.attend(1, fork, queries))
            sequence.close()
        return True

    assert all(at_once(serve))
    stats = cache.stats()
    assert stats["sequences"] == 0 and stats["hit_tokens"] > 0 and cache.verify()[1] == 0


def test_writers_of_one_sequence_take_turns(cache, identity):
    sequence = cache.open(cache.acquire([1], identity), reserve_tokens=400)

    def write(number):
        for _ in range(20):
            sequence.append(0, *(rows([1], 0, KV_HEADS, role) for role in ("key", "value")))
            assert sequence.cursor(0) >= sequence.length
        return True

    assert all(at_once(write))
    assert sequence.cursor(0) == 20 * THREADS


def test_attention_and_writers_do_not_meet(cache, identity):
    sequences = [compute(cache, identity, [n] * 20, reserve_tokens=200) for n in range(3)]
    kernels = quire.Attention(threads=2)

    def work(number):
        for _ in range(30):
            if number % 2:
                order = sequences if number % 4 == 1 else sequences[::-1]
                queries = [rows([9], 0, QUERY_HEADS, "query") for _ in order]
                outs = [np.zeros_like(q) for q in queries]
                kernels.attend_batch(0, order, queries, outs)
                assert all(np.isfinite(out).all() for out in outs)
            else:
                token = [number]
                sequences[number // 2].append(
                    0, *(rows(token, 0, KV_HEADS, role) for role in ("key", "value")))
        return True

    assert all(at_once(work))
    assert [sequence.cursor(0) for sequence in sequences] == [50, 50, 50]


def test_closing_while_others_read(identity):
    for _ in range(10):
        cache = make_cache()
        sequence = compute(cache, identity, list(range(64)))
        views = []

        def use(number):
            try:
                for step in range(20):
                    if number == 0 and step == 10:
                        sequence.close()
                    elif number == 1 and step == 15:
                        cache.close()
                    elif number % 2:
                        views.append(sequence.view(0, "key").numpy(1))
                    else:
                        assert sequence.gather(0, "value").shape == (KV_HEADS, 64, DIM)
            except quire.InvalidArgumentError as error:
                assert "closed" in str(error)
            return True

        assert all(at_once(use))
        expected = rows(range(16, 32), 0, KV_HEADS, "key").transpose(1, 0, 2)
        for array in views:
            np.testing.assert_array_equal(array, expected)


def test_a_plan_is_opened_once(cache, identity):
    for _ in range(20):
        plan = cache.acquire(list(range(40)), identity)

        def open_it(_):
            try:
                return cache.open(plan)
            except quire.InvalidArgumentError:
                return None

        assert sum(made is not None for made in at_once(open_it)) == 1


def test_the_gil_is_free_while_the_engine_works(identity):
    tokens = list(range(2000))
    cache = make_cache(hot_bytes=64 << 20)
    sequence = cache.open(cache.acquire(tokens, identity), step_tokens=2048)
    some = np.zeros((len(tokens), KV_HEADS, DIM), np.float32)
    for layer in range(LAYERS):
        sequence.append(layer, some, some)
    sequence.commit(tokens)
    queries = np.zeros((1900, 64, DIM), np.float32)
    shares = [longest_stall(lambda: quire.Attention().attend(0, sequence, queries)) for _ in range(5)]
    assert min(shares) < 1 / 3, f"another thread stood still for {min(shares):.2f} of it at best"


def test_asyncio_overlaps_requests(cache, identity):
    async def serve(number):
        prompt = [number % 2] * 33 + [number]
        sequence = await asyncio.to_thread(compute, cache, identity, prompt)
        queries = rows(prompt[-1:], 0, QUERY_HEADS, "query")
        return await asyncio.to_thread(quire.Attention().attend, 0, sequence, queries)

    async def all_of_them():
        return await asyncio.gather(*(serve(i) for i in range(8)))

    outs = asyncio.run(all_of_them())
    assert all(np.isfinite(out).all() for out in outs) and len(outs) == 8
