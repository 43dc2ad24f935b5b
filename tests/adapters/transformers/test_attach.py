"""What attach changes and gives back, whose blocks are whose, and what is refused."""

from __future__ import annotations

import gc

import pytest
import torch
from conftest import generate, make_model, padded, prompt
from transformers import Gemma2Config, Gemma2ForCausalLM, T5Config, T5ForConditionalGeneration

import quire
from quire.transformers import _identity, attach


def test_the_model_is_given_back(llama):
    before = llama.config._attn_implementation
    cache, other = attach(llama, hot_bytes=50_000_000), attach(llama, hot_bytes=50_000_000, kv="int8")
    ids = prompt(40)
    assert llama.config._attn_implementation == "quire"
    assert torch.equal(generate(llama, ids), generate(llama, ids, cache=cache.for_prompt(ids)))
    generate(llama, ids, cache=other.for_prompt(ids))
    cache.close()
    cache.close()
    assert torch.equal(generate(llama, ids, cache=other.for_prompt(ids)),
                       generate(llama, ids, cache=other.for_prompt(ids)))
    other.close()
    assert llama.config._attn_implementation == before
    assert not llama._forward_pre_hooks and not llama._forward_hooks
    assert "generate_batch" not in llama.__dict__
    attach(llama, hot_bytes=50_000_000)  # dropped at once
    gc.collect()
    assert llama.config._attn_implementation == before


def test_other_weights_find_nothing():
    model = make_model("llama")
    ids = prompt(64)
    with attach(model, hot_bytes=50_000_000) as cache:
        generate(model, ids, cache=cache.for_prompt(ids))
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.add_(1e-3)
        base = generate(model, ids)
        assert torch.equal(base, generate(model, ids, cache=cache.for_prompt(ids)))
        assert cache.stats()["hit_tokens"] == 0
        generate(model, ids, cache=cache.for_prompt(ids))
        assert cache.stats()["hit_tokens"] == 48


def test_weights_are_hashed_once(monkeypatch):
    model, hashed = make_model("llama"), []
    digest = _identity._digest
    monkeypatch.setattr(_identity, "_digest", lambda item: hashed.append(item[0]) or digest(item))
    ids = prompt(20)
    for kv in (None, "int8"):
        with attach(model, hot_bytes=50_000_000, kv=kv) as cache:
            for _ in range(3):
                generate(model, ids, cache=cache.for_prompt(ids), tokens=2)
    tensors = [*model.parameters(), *model.buffers(), model.model.rotary_emb.original_inv_freq]
    assert len(hashed) == len(set(hashed)) == len(set(map(id, tensors)))
    model.model.layers[0].mlp.up_proj.weight.data.add_(1e-6)
    with attach(model, hot_bytes=50_000_000) as cache:
        cache.for_prompt(ids)
    assert hashed[len(set(hashed)):] == [".model.layers.0.mlp.up_proj.weight"]


def test_equal_models_are_equal_in_every_process():
    def fingerprint(model):
        watch = _identity.watch_of(model)
        return watch.fingerprints(watch.look(), 1)[0]

    assert fingerprint(make_model("llama")) == fingerprint(make_model("llama"))
    assert fingerprint(make_model("llama")) != fingerprint(make_model("llama", seed=1))


def test_memory_is_what_the_codec_promises(llama):
    ids = prompt(512)
    values = 512 * 3 * 2 * 2 * 32  # tokens, layers, K and V, heads, dim
    for codec in ("f32", "f16", "int8", "nf4"):
        with attach(llama, hot_bytes=50_000_000, kv=codec) as cache:
            past = cache.for_prompt(ids)
            generate(llama, ids, cache=past, tokens=2)
            past.close()
            stats = cache.stats()
            per_value = 8 * stats["sealed"]["slots_used"] * stats["sealed"]["slot_bytes"] / values
            codes = int(quire.CODECS[codec])  # and the scales of a row, at dim 32 instead of 128
            promised = codes + (quire.CODECS[codec] - codes) * 128 / 32
            assert per_value == pytest.approx(promised, rel=0.01)


def test_a_full_budget_is_an_error_and_nothing_else(llama):
    with attach(llama, hot_bytes=600_000) as cache:
        ids = prompt(100)
        held = cache.for_prompt(ids)
        generate(llama, ids, cache=held)
        with pytest.raises(quire.NoSpaceError):
            held_too = [cache.for_prompt(prompt(300, seed=n)) for n in range(9)]
            del held_too
        held.close()
        again = generate(llama, ids, cache=cache.for_prompt(ids))
        assert torch.equal(again, generate(llama, ids))


def test_after_an_exception_in_a_forward(llama):
    ids = prompt(60)
    base = generate(llama, ids)
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("a layer fails")

    with attach(llama, hot_bytes=50_000_000) as cache:
        handle = llama.model.layers[2].register_forward_pre_hook(fail)
        past = cache.for_prompt(ids)
        with pytest.raises(RuntimeError, match="a layer fails"):
            generate(llama, ids, cache=past)
        assert past.columns == 63
        with torch.no_grad():
            llama(base[:, 63:64], past_key_values=past)
        past.close()
        turn = torch.cat([base, prompt(3)], 1)
        assert torch.equal(generate(llama, turn, cache=cache.for_prompt(turn)),
                           generate(llama, turn))
        assert cache.stats()["hit_tokens"] == 64
        handle.remove()


def test_what_is_refused_at_generate(llama):
    ids, mask = padded([40, 30])
    with attach(llama, hot_bytes=50_000_000) as cache:
        with pytest.raises(quire.UnsupportedError, match="generate_batch"):
            llama.generate_batch([[1, 2, 3]])
        with pytest.raises(quire.UnsupportedError, match="mask"):
            generate(llama, ids, mask, cache.for_prompt(ids))  # not told of the padding
        with pytest.raises(quire.UnsupportedError, match="mask"):
            generate(llama, ids, None, cache.for_prompt(ids, mask))
        with pytest.raises(quire.UnsupportedError, match="left"):
            cache.for_prompt(ids.flip(1), mask.flip(1))
        with pytest.raises(quire.UnsupportedError, match="mask"), torch.no_grad():
            bidirectional = torch.ones(1, 1, 40, 40, dtype=torch.bool)
            llama(ids[:1], attention_mask=bidirectional, past_key_values=cache.for_prompt(ids[:1]))
        with pytest.raises(quire.UnsupportedError, match="token ids"), torch.no_grad():
            llama(inputs_embeds=torch.zeros(1, 3, 128), past_key_values=cache.for_prompt([5, 6, 7]))
        with pytest.raises(quire.UnsupportedError, match="gradient"):
            llama(ids[:1], past_key_values=cache.for_prompt(ids[:1]))
        with pytest.raises(quire.UnsupportedError, match="position_ids"), torch.no_grad():
            llama(ids[:1], position_ids=torch.arange(40)[None] + 7,
                  past_key_values=cache.for_prompt(ids[:1]))
        with pytest.raises(quire.InvalidArgumentError, match="3 rows"):
            generate(llama, ids[:1].repeat(3, 1), cache=cache.for_prompt(ids, mask))
        with pytest.raises(quire.InvalidArgumentError, match="part of it"), torch.no_grad():
            llama.model(ids[:1], past_key_values=cache.for_prompt(ids[:1]))
        with pytest.raises(quire.InvalidArgumentError, match="another model"):
            with attach(make_model("qwen3"), hot_bytes=50_000_000) as other:
                generate(llama, ids, mask, other.for_prompt(ids, mask))
        llama.set_attn_implementation("eager")
        with pytest.raises(quire.UnsupportedError, match="eager"):
            generate(llama, ids[:1], cache=cache.for_prompt(ids[:1]))
        llama.set_attn_implementation("quire")
        closed = cache.for_prompt(ids, mask)
        closed.close()
        with pytest.raises(quire.InvalidArgumentError, match="closed"):
            generate(llama, ids, mask, closed)
        good = generate(llama, ids, mask, cache.for_prompt(ids, mask))
    assert torch.equal(good, generate(llama, ids, mask))


def test_what_is_refused_at_attach(llama):
    with pytest.raises(quire.InvalidArgumentError, match="int9"):
        attach(llama, kv="int9")
    with pytest.raises(quire.UnsupportedError, match="encoder-decoder"):
        attach(T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16,
                                                   num_layers=1, num_heads=2)))
    with pytest.raises(quire.UnsupportedError, match="softcapping"):
        attach(Gemma2ForCausalLM(Gemma2Config(
            vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8)))
    with pytest.raises(quire.UnsupportedError, match="float64"):
        attach(make_model("llama", torch.float64))
    assert llama.config._attn_implementation != "quire"
