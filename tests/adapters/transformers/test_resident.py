"""Prompts that memory does not hold: the store has their front, and attention reads it back."""

from __future__ import annotations

import pytest
import torch
from conftest import generate, make_model, prompt

import quire
from quire.transformers import attach

TOKENS = 8000
HOT = 5 << 20  # less than half of the prompt: 3 layers x 2 heads x 32 x K and V x 4 bytes a token
OPTIONS = {"prefill_chunk_size": 64}


@pytest.mark.parametrize("name, kv", [("llama", None), ("llama", "int8"), ("qwen3-mixed", None),
                                      ("qwen3-mixed", "int8"), ("gpt-oss", "int8"), ("bloom", None)])
def test_the_tokens_are_those_of_a_cache_that_holds_all(tmp_path, name, kv):
    model, ids = make_model(name), prompt(TOKENS)
    with attach(model, hot_bytes=64 << 20, kv=kv) as cache:
        with attach(model, hot_bytes=HOT // 2, kv=kv) as small, pytest.raises(quire.TooLargeError):
            small.for_prompt(ids)
        whole = generate(model, ids, cache=cache.for_prompt(ids), **OPTIONS)
    hot = HOT if kv is None else 3 << 20
    if name == "bloom":  # three times as many heads
        hot *= 2
    for found in (False, True):  # a second process's view: memory is empty, the store is not
        with attach(model, hot_bytes=hot, kv=kv, store=tmp_path / "store", resident_tokens=256,
                    step_tokens=64) as cache:
            past = cache.for_prompt(ids)
            assert torch.equal(generate(model, ids, cache=past, **OPTIONS), whole)
            assert past.rows[0].sequence.stats()["tokens_streamed"] > TOKENS // 4
            assert cache.stats()["hot_bytes_used"] <= hot
            assert (cache.stats()["hit_tokens"] > TOKENS // 2) == found


def test_a_second_question_about_the_same_text(tmp_path):
    model, text = make_model("llama"), prompt(TOKENS - 500)
    with attach(model, hot_bytes=64 << 20) as cache, attach(
            model, hot_bytes=HOT, store=tmp_path / "store", resident_tokens=256, step_tokens=64) as other:
        for question in ([[11, 12, 13]], [[21, 22]]):
            ids = torch.cat([text, torch.tensor(question)], 1)
            expected = generate(model, ids, cache=cache.for_prompt(ids), **OPTIONS)
            assert torch.equal(generate(model, ids, cache=other.for_prompt(ids), **OPTIONS), expected)
        assert other.stats()["hit_tokens"] > TOKENS // 2


def test_what_cannot_stream_is_refused_by_name(tmp_path):
    model, ids = make_model("llama"), prompt(TOKENS)
    with pytest.raises(quire.InvalidArgumentError, match="needs a store"):
        attach(model, hot_bytes=HOT, resident_tokens=256)
    with attach(model, hot_bytes=HOT, store=tmp_path / "store", resident_tokens=256, step_tokens=64) as cache:
        with pytest.raises(quire.InvalidArgumentError, match="pass prefill_chunk_size=64"):
            generate(model, ids, cache=cache.for_prompt(ids))
        with pytest.raises(quire.Error):  # beams fork a context that is not in memory
            generate(model, ids, cache=cache.for_prompt(ids), num_beams=2, **OPTIONS)
        # The cache goes on after both.
        assert generate(model, ids, cache=cache.for_prompt(ids), **OPTIONS).shape[1] == TOKENS + 20
