"""generate gives the same tokens on base, miss and hit, whatever way it decodes."""

from __future__ import annotations

import threading

import pytest
import torch
from conftest import Forwards, clear, generate, make_model, padded, prompt
from transformers import LlamaConfig, LlamaForCausalLM

import quire
from quire.transformers import attach

WAYS = {
    "greedy": {},
    "chunked prefill": {"prefill_chunk_size": 32},
    "beams": {"num_beams": 3},
    "beams of a batch": {"num_beams": 3, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("way", WAYS)
def test_base_miss_and_hit(model, way):
    ids = prompt(100)
    base = generate(model, ids, **WAYS[way])
    with attach(model, hot_bytes=50_000_000) as cache:
        miss = generate(model, ids, cache=cache.for_prompt(ids), **WAYS[way])
        assert cache.stats()["hit_tokens"] == 0
        with Forwards() as tokens:
            hit = generate(model, ids, cache=cache.for_prompt(ids), **WAYS[way])
        assert cache.stats()["hit_tokens"] == cache.stats()["skipped_tokens"] == 96
        assert max(tokens) <= 4 + 3  # what was left of the prompt, and candidates
    assert torch.equal(base, miss) and torch.equal(base, hit)


def one(seed):
    ids = prompt(70, seed)
    return ids, torch.ones_like(ids)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gpt-oss"])
def test_half_precision(name, dtype):
    model = make_model(name, dtype)
    margin = {torch.float16: 0.03, torch.bfloat16: 0.1}[dtype]
    subjects = [clear(model, one, 8, margin),
                clear(model, lambda seed: padded([40, 29], 1000 + seed), 5, margin)]
    with attach(model, hot_bytes=50_000_000) as cache:
        assert cache.stats()["kv"] == {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
        for _ in range(2):
            for ids, mask, base in subjects:
                tokens = base.shape[1] - ids.shape[1]
                got = generate(model, ids, mask, cache.for_prompt(ids, mask), tokens)
                assert torch.equal(base, got)
        assert cache.stats()["hit_tokens"] == 64 + 32 + 16


@pytest.mark.parametrize("codec", quire.CODECS)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt-oss", "bloom"])
def test_every_codec_gives_a_hit_the_tokens_of_the_miss(name, codec):
    model = make_model(name)
    ids, (batch, mask) = prompt(75), padded([60, 37, 44])
    with attach(model, hot_bytes=50_000_000, kv=codec) as cache:
        tokens = [generate(model, ids, cache=cache.for_prompt(ids)) for _ in range(2)]
        assert torch.equal(*tokens) and cache.stats()["hit_tokens"] == 64
        rows = [generate(model, batch, mask, cache.for_prompt(batch, mask)) for _ in range(2)]
        assert torch.equal(*rows) and cache.stats()["hit_tokens"] == 64 + 48 + 32 + 32
        beams = [generate(model, ids, cache=cache.for_prompt(ids), num_beams=3) for _ in range(2)]
        assert torch.equal(*beams)
        looked_up = generate(model, ids, cache=cache.for_prompt(ids), prompt_lookup_num_tokens=3)
        assert looked_up.shape == tokens[0].shape
        if codec in ("f32", "f16", "bf16"):  # the engine's own tokens
            ids, mask, base = clear(model, one, 8, 0.1 if codec == "bf16" else 0.03)
            for _ in range(2):
                got = generate(model, ids, mask, cache.for_prompt(ids, mask), 8)
                assert torch.equal(got, base)


@pytest.mark.parametrize("lengths", [(60, 44), (60, 37), (33, 60, 7)])
def test_a_padded_batch(model, lengths):
    ids, mask = padded(lengths)
    base = generate(model, ids, mask)
    with attach(model, hot_bytes=50_000_000) as cache:
        miss = generate(model, ids, mask, cache.for_prompt(ids, mask))
        first = cache.stats()
        assert first["hit_tokens"] == 0 and first["deduplicated_total"] > 0  # rows share a prefix
        hit = generate(model, ids, mask, cache.for_prompt(ids, mask))
        assert cache.stats()["hit_tokens"] == sum((n - 1) // 16 * 16 for n in lengths)
        beams = generate(model, ids, mask, cache.for_prompt(ids, mask), num_beams=2)
    assert torch.equal(base, miss) and torch.equal(base, hit)
    assert torch.equal(beams, generate(model, ids, mask, num_beams=2))


def test_a_prompt_is_found_in_other_batches(model):
    ids, mask = padded([60, 37])
    alone = ids[1:, 23:]
    with attach(model, hot_bytes=50_000_000) as cache:
        generate(model, alone, cache=cache.for_prompt(alone))
        with Forwards() as tokens:
            batch = generate(model, ids, mask, cache.for_prompt(ids, mask))
        assert cache.stats()["hit_tokens"] == 32 + 32  # the long row begins with the short one
        assert cache.stats()["skipped_tokens"] == 32 + 9 and tokens[0] == 60 - 32
    assert torch.equal(batch, generate(model, ids, mask))


def test_the_second_turn_of_a_chat(model):
    ids = prompt(70)
    with attach(model, hot_bytes=50_000_000) as cache:
        answer = generate(model, ids, cache=cache.for_prompt(ids))
        turn = torch.cat([answer, prompt(9, seed=3)], 1)
        with Forwards() as tokens:
            second = generate(model, turn, cache=cache.for_prompt(turn))
        assert tokens[0] == 99 - 80 and cache.stats()["hit_tokens"] == 80  # the answer's block too
    assert torch.equal(second, generate(model, turn))


@pytest.mark.parametrize("kv", [None, "int8"])
def test_an_assistant_s_tokens_are_rolled_back(llama, kv):
    torch.manual_seed(5)
    assistant = LlamaForCausalLM(LlamaConfig(**{**llama.config.to_dict(), "num_hidden_layers": 1}))
    assistant.eval().load_state_dict(llama.state_dict(), strict=False)
    ids = prompt(60)
    base = generate(llama, ids, assistant_model=assistant)
    assert torch.equal(base, generate(llama, ids))
    with attach(llama, hot_bytes=50_000_000, kv=kv) as cache:
        outs = [generate(llama, ids, cache=cache.for_prompt(ids), assistant_model=assistant)
                for _ in range(2)]
    assert torch.equal(*outs)
    if kv is None:
        assert torch.equal(base, outs[0])


def test_rows_of_a_batch_share_memory(llama):
    ids = prompt(160).repeat(4, 1)
    with attach(llama, hot_bytes=50_000_000) as cache:
        generate(llama, ids, cache=cache.for_prompt(ids))
        stats = cache.stats()
        assert stats["published_blocks"] == (160 + 19) // 16
        assert stats["deduplicated_total"] == 3 * stats["published_blocks"]


def test_the_model_may_be_called_without_generate(llama):
    ids, mask = padded([50, 41])
    with torch.no_grad(), attach(llama, hot_bytes=50_000_000) as cache:
        base = llama(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
        first = llama(ids, attention_mask=mask, past_key_values=cache.for_prompt(ids, mask))
        past = cache.for_prompt(ids, mask)
        second = llama(input_ids=ids, attention_mask=mask, past_key_values=past)
        assert second.logits.shape[1] == 50 - past.skipped_columns == 50 - 9 - 32
        torch.testing.assert_close(first.logits[:, -1], base.logits[:, -1], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(second.logits[:, -1], base.logits[:, -1], rtol=1e-4, atol=1e-3)


def test_other_tokens_than_those_of_the_prompt(llama):
    ids, mask = padded([60, 37])
    other = ids.clone()
    other[0, 40:] = prompt(20, seed=9)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad(), attach(llama, hot_bytes=50_000_000) as cache:
        generate(llama, ids[:1], cache=cache.for_prompt(ids[:1]))
        past = cache.for_prompt(ids, mask)
        assert (past.skipped_columns, [row.live for row in past.rows]) == (48, [48, 55])
        past.crop(-16)  # another text goes on at column 32
        begin = past.columns
        logits = llama(other[:, begin:], attention_mask=mask, past_key_values=past).logits
        wanted = llama(other, attention_mask=mask, position_ids=positions).logits
        torch.testing.assert_close(logits[:, -1], wanted[:, -1], rtol=1e-4, atol=1e-3)


def test_threads_generate_at_once(llama):
    prompts = [torch.cat([prompt(64), prompt(10, seed=n)], 1) for n in range(4)]
    bases = [generate(llama, ids) for ids in prompts]
    outs, errors = {}, []
    with attach(llama, hot_bytes=50_000_000) as cache:
        def work(number):
            try:
                for _ in range(3):
                    ids = prompts[number]
                    outs[number] = generate(llama, ids, cache=cache.for_prompt(ids))
                    assert torch.equal(outs[number], bases[number])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors and cache.stats()["hit_tokens"] >= 4 * 2 * 64
