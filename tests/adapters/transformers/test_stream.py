"""stream(): tokens of generate for asyncio."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch
from conftest import Forwards, generate, prompt
from transformers import StoppingCriteria

import quire
from quire.transformers import attach


async def collect(tokens):
    return [token async for token in tokens]


def new_tokens(model, ids, count):
    return generate(model, ids, tokens=count)[0, ids.shape[1]:].tolist()


def test_the_tokens_are_those_of_generate(model):
    ids = prompt(70)
    expected = new_tokens(model, ids, 12)
    with attach(model, hot_bytes=50_000_000) as cache:
        for form in (ids, ids[0], ids[0].tolist()):
            assert asyncio.run(collect(cache.stream(form, max_new_tokens=12,
                                                    do_sample=False))) == expected
        assert cache.stats()["hit_tokens"] == 2 * 64
        lookup = cache.stream(ids, max_new_tokens=12, do_sample=False, prompt_lookup_num_tokens=3)
        assert asyncio.run(collect(lookup)) == expected


def test_streams_of_one_loop_run_at_once(llama):
    prompts = [torch.cat([prompt(64), prompt(9, seed=n)], 1) for n in range(4)]
    expected = [new_tokens(llama, ids, 16) for ids in prompts]

    async def all_of_them(cache):
        gaps = [time.monotonic()]

        async def tick():
            while True:
                await asyncio.sleep(0.001)
                gaps.append(time.monotonic())

        ticker = asyncio.create_task(tick())
        answers = await asyncio.gather(*(
            collect(cache.stream(ids, max_new_tokens=16, do_sample=False)) for ids in prompts))
        ticker.cancel()
        return answers, len(gaps)

    with attach(llama, hot_bytes=50_000_000) as cache:
        answers, ticks = asyncio.run(all_of_them(cache))
    assert answers == expected
    assert ticks > 3, "the event loop stood still"


@pytest.mark.parametrize("how", ["leave", "cancel"])
def test_a_stream_that_nobody_hears_ends(llama, how):
    ids = prompt(40)

    async def leave(cache):
        tokens = cache.stream(ids, max_new_tokens=2000, do_sample=False)
        async for _ in tokens:
            break
        await tokens.aclose()

    async def cancel(cache):
        task = asyncio.create_task(collect(
            cache.stream(ids, max_new_tokens=2000, do_sample=False)))
        while cache.stats()["sequences"] == 0:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with attach(llama, hot_bytes=50_000_000) as cache:
        with Forwards() as forwards:
            asyncio.run((leave if how == "leave" else cancel)(cache))
        assert len(forwards) < 1000
        assert cache.stats()["sequences"] == 0, "it let go of its blocks"
        again = asyncio.run(collect(cache.stream(ids, max_new_tokens=5, do_sample=False)))
        assert cache.stats()["hit_tokens"] == 32
    assert again == new_tokens(llama, ids, 5)


def test_the_caller_s_own_criteria_hold_too(llama):
    class AfterThree(StoppingCriteria):
        def __call__(self, input_ids, scores, **options):
            return torch.full((1,), input_ids.shape[1] >= 33)

    with attach(llama, hot_bytes=50_000_000) as cache:
        tokens = asyncio.run(collect(cache.stream(
            prompt(30), max_new_tokens=20, do_sample=False, stopping_criteria=[AfterThree()])))
    assert len(tokens) == 3


def test_failures_reach_the_caller(llama):
    with attach(llama, hot_bytes=600_000) as cache:
        with pytest.raises((quire.NoSpaceError, quire.TooLargeError)):
            asyncio.run(collect(cache.stream(prompt(3000), max_new_tokens=2)))
        with pytest.raises(quire.InvalidArgumentError, match="one prompt"):
            asyncio.run(collect(cache.stream(prompt(8, rows=2), max_new_tokens=2)))
        with pytest.raises(quire.InvalidArgumentError, match="streamer"):
            asyncio.run(collect(cache.stream(prompt(8), streamer=None)))
        with pytest.raises(ValueError, match="streamer"):
            asyncio.run(collect(cache.stream(prompt(8), num_beams=2, max_new_tokens=2)))
        assert cache.stats()["sequences"] == 0
