"""Models that attach() takes by what they do, not by their configs, and what it says of the others."""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import generate, make_model, padded, prompt
from transformers import DynamicCache

import quire
from quire.transformers import attach

TINY = dict(vocab_size=500, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
            pad_token_id=0, bos_token_id=1, eos_token_id=None)


def make(name, **config):
    torch.manual_seed(0)
    model = getattr(transformers, name + "ForCausalLM")(
        getattr(transformers, name + "Config")(**config))
    for weight in model.parameters():
        weight.data.mul_(4)
    return model.eval()


def mimo(**config):
    return make("MiMoV2Flash", **{
        **TINY, "head_dim": 24, "v_head_dim": 16, "layer_types": ["full_attention"] * 2,
        "mlp_layer_types": ["dense"] * 2, **config})


def with_sinks(model):
    """A random model whose sinks take a good part of the weights, another one for each head."""
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):
            weight.data.normal_(mean=2.0)
    return model


IN_PLACE = {
    "GPTBigCode, one head of K and V": lambda: make(
        "GPTBigCode", vocab_size=500, n_embd=64, n_layer=2, n_head=4, n_positions=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=None),
    "MiMo-V2, V of another width": mimo,
    "GPT-OSS, sinks": lambda: with_sinks(make(
        "GptOss", **TINY, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        layer_types=["full_attention"] * 2)),
    "GPT-OSS, sinks and windows": lambda: with_sinks(make(
        "GptOss", **TINY, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=24)),
    "Granite with sinks": lambda: with_sinks(make(
        "GraniteSWA", **TINY, layer_types=["full_attention"] * 2)),
    "MiMo-V2 with sinks in one layer": lambda: with_sinks(mimo(
        layer_types=["full_attention", "sliding_attention"], sliding_window=24)),
    # ALiBi: 6 heads, so that slopes are no powers of two.
    "Bloom": lambda: make(
        "Bloom", vocab_size=500, hidden_size=96, n_layer=2, n_head=6, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=None, pad_token_id=0),
    "MPT": lambda: make(
        "Mpt", vocab_size=500, d_model=96, n_layers=2, n_heads=6, expansion_ratio=2,
        max_seq_len=512, use_cache=True, bos_token_id=1, eos_token_id=None, pad_token_id=0),
}
COPIES = {  # their layers attend by themselves
    "DiffLlama": lambda: make("DiffLlama", **TINY),
    "Falcon, one head of K and V": lambda: make(
        "Falcon", vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=1, eos_token_id=None, pad_token_id=0),
    "Falcon with ALiBi": lambda: make(
        "Falcon", vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        alibi=True, bos_token_id=1, eos_token_id=None, pad_token_id=0),
    "GPT-J": lambda: make(
        "GPTJ", vocab_size=500, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=512,
        bos_token_id=1, eos_token_id=None, pad_token_id=0),
}


WORK = {**IN_PLACE, **COPIES}


@pytest.mark.parametrize("name", WORK)
def test_shapes_are_those_of_the_forward(name):
    model, ids = WORK[name](), prompt(60)
    base = generate(model, ids)
    with attach(model, hot_bytes=50_000_000) as cache:
        assert cache.copies == (name in COPIES)
        outs = [generate(model, ids, cache=cache.for_prompt(ids)) for _ in range(2)]
        assert cache.stats()["hit_tokens"] == 48
        assert cache.stats()["probes"] == 1 and cache.stats()["probes_failed"] == 0
        rows, mask = padded([50, 37])
        batch = [generate(model, rows, mask, cache.for_prompt(rows, mask)) for _ in range(2)]
        beams = generate(model, ids, cache=cache.for_prompt(ids), num_beams=2)
    assert torch.equal(outs[0], base) and torch.equal(outs[1], base)
    assert torch.equal(batch[0], generate(model, rows, mask)) and torch.equal(*batch)
    assert torch.equal(beams, generate(model, ids, num_beams=2))


@pytest.mark.parametrize("name", [name for name in IN_PLACE if "inks" in name or name in (
    "Bloom", "MPT")])
def test_other_caches_get_the_models_own_attention(name):
    model = IN_PLACE[name]()
    before = {type(module) for module in model.modules()}
    rows, mask = padded([50, 37])
    base = generate(model, rows, mask)
    with attach(model, hot_bytes=50_000_000) as cache:
        assert torch.equal(generate(model, rows, mask), base)
        past = DynamicCache(config=model.config)
        assert torch.equal(generate(model, rows, mask, past, prefill_chunk_size=16), base)
        assert cache.stats()["published_blocks"] == 0
    assert {type(module) for module in model.modules()} == before
    assert torch.equal(generate(model, rows, mask), base)


def test_other_sinks_are_another_model():
    model, ids = IN_PLACE["GPT-OSS, sinks"](), prompt(60)
    with attach(model, hot_bytes=50_000_000) as cache:
        generate(model, ids, cache=cache.for_prompt(ids))
        sinks = model.model.layers[0].self_attn.sinks
        sinks.data[1] += 2.0
        for hits in (0, 48):
            assert torch.equal(generate(model, ids, cache=cache.for_prompt(ids)),
                               generate(model, ids))
            assert cache.stats()["hit_tokens"] == hits


@pytest.mark.parametrize("name", ["MPT", "GPT-OSS, sinks", "GPT-J"])
def test_generate_without_its_cache_is_refused(name):
    model, ids = WORK[name](), prompt(40)
    with attach(model, hot_bytes=50_000_000) as cache:
        with pytest.raises(quire.UnsupportedError, match="use_cache=True"):
            generate(model, ids, cache=cache.for_prompt(ids), use_cache=False)
        assert torch.equal(generate(model, ids, cache=cache.for_prompt(ids)), generate(model, ids))


def test_bloom_in_half_precision_attends_by_itself():
    """It rounds its bias to its own type: 8 bits of a position."""
    model = IN_PLACE["Bloom"]().to(torch.bfloat16)
    with attach(model, hot_bytes=50_000_000) as cache:
        assert cache.copies


REFUSED = {
    "DiffLlama with a window": (lambda: make("DiffLlama", **TINY, sliding_window=16),
                                "other values than those it caches"),
    "RWKV": (lambda: make("Rwkv", vocab_size=50, hidden_size=32, num_hidden_layers=2,
                          attention_hidden_size=32, intermediate_size=64), "past_key_values"),
    "CPMAnt": (lambda: make("CpmAnt", vocab_size=50, hidden_size=32, num_hidden_layers=2,
                            num_attention_heads=2, dim_head=16, dim_ff=32), "CpmAntForCausalLM"),
    "OpenAI GPT": (lambda: transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(
        vocab_size=50, n_embd=32, n_layer=2, n_head=2)).eval(), "past_key_values"),
    "XLM": (lambda: transformers.XLMWithLMHeadModel(transformers.XLMConfig(
        vocab_size=50, emb_dim=32, n_layers=2, n_heads=2)).eval(), "past_key_values"),
    "XLNet": (lambda: transformers.XLNetLMHeadModel(transformers.XLNetConfig(
        vocab_size=50, d_model=32, n_layer=2, n_head=2, d_inner=32)).eval(), "past_key_values"),
    "ProphetNet": (lambda: make(
        "ProphetNet", vocab_size=50, hidden_size=32, num_decoder_layers=2, decoder_ffn_dim=32,
        num_decoder_attention_heads=2, num_encoder_layers=1, num_encoder_attention_heads=2,
        encoder_ffn_dim=32, is_decoder=True, is_encoder_decoder=False, add_cross_attention=False),
        "2 of them cache"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_at_attach(name):
    make_it, reason = REFUSED[name]
    model = make_it()
    before = model.config._attn_implementation
    with pytest.raises(quire.UnsupportedError, match=reason) as raised:
        attach(model, hot_bytes=50_000_000)
    assert str(raised.value) and model.config._attn_implementation == before
    assert not model._forward_pre_hooks and not model._forward_hooks


def test_a_compiled_forward_is_refused(llama):
    compiled = make_model("llama")
    compiled.forward = torch.compile(compiled.forward)
    with pytest.raises(quire.UnsupportedError, match="compile"):
        attach(compiled, hot_bytes=50_000_000)
    with pytest.raises(quire.UnsupportedError, match="compile"):
        attach(torch.compile(llama), hot_bytes=50_000_000)
    ids, model = prompt(20), make_model("llama")
    with attach(model, hot_bytes=50_000_000) as cache:
        model.forward = torch.compile(model.forward)
        with pytest.raises(quire.UnsupportedError, match="compile"):
            generate(model, ids, cache=cache.for_prompt(ids))


def test_dropout_is_refused():
    model = make("GPTBigCode", vocab_size=100, n_embd=32, n_layer=2, n_head=2).train()
    with pytest.raises(quire.UnsupportedError, match="eval"):
        attach(model, hot_bytes=50_000_000)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_beyond_its_original_length_a_rope_is_refused(kind):
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 8.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
        model = make("Phi3", **TINY, original_max_position_embeddings=64, rope_parameters=rope)
    else:
        model = make("Llama", **{**TINY, "max_position_embeddings": 64}, rope_parameters=rope)
    ids, long = prompt(50), prompt(80)
    with attach(model, hot_bytes=50_000_000) as cache:
        for _ in range(2):
            assert torch.equal(generate(model, ids, cache=cache.for_prompt(ids), tokens=14),
                               generate(model, ids, tokens=14))
        assert cache.stats()["hit_tokens"] == 48
        with pytest.raises(quire.UnsupportedError, match="length|beyond"):
            cache.for_prompt(long)
        with pytest.raises(quire.UnsupportedError, match="length|beyond"):
            generate(model, ids, cache=cache.for_prompt(ids), tokens=30)
        generate(model, long)  # without Quire
        assert torch.equal(generate(model, ids, cache=cache.for_prompt(ids), tokens=14),
                           generate(model, ids, tokens=14))


def test_images_are_refused_by_name():
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            image_size=16, patch_size=8),
        text_config=transformers.LlamaConfig(**TINY), image_token_index=499)).eval()
    ids = prompt(40)
    with attach(model, hot_bytes=50_000_000) as cache:
        for _ in range(2):
            assert torch.equal(generate(model, ids, cache=cache.for_prompt(ids)),
                               generate(model, ids))
        assert cache.stats()["hit_tokens"] == 32
        ids[0, 2:6] = 499
        with pytest.raises(quire.UnsupportedError, match="mm_encoder_outputs"):
            generate(model, ids, cache=cache.for_prompt(ids),
                     pixel_values=torch.zeros(1, 3, 16, 16))


def test_a_model_that_changes_while_it_generates_is_refused(llama):
    ids = prompt(40)
    with attach(llama, hot_bytes=50_000_000) as cache, torch.no_grad():
        past = cache.for_prompt(ids)
        llama(ids, past_key_values=past)
        handle = llama.model.layers[0].register_forward_hook(lambda *_: None)
        with pytest.raises(quire.UnsupportedError, match="call for_prompt again"):
            llama(ids[:, :1], past_key_values=past)
        handle.remove()
        llama(ids[:, :1], past_key_values=past)


def test_probes_that_never_agree_end_reuse(llama, monkeypatch):
    ids = prompt(40)
    with attach(llama, hot_bytes=50_000_000) as cache:
        monkeypatch.setattr("quire.transformers._probe._difference", lambda *_: 9.0)
        with pytest.warns(RuntimeWarning, match="weights_changed"):
            for _ in range(6):
                assert torch.equal(generate(llama, ids, cache=cache.for_prompt(ids), tokens=4),
                                   generate(llama, ids, tokens=4))
        assert cache.stats()["hit_tokens"] == 0 and cache.stats()["probes_failed"] == 3
        monkeypatch.undo()
        cache.weights_changed()
        for _ in range(2):
            generate(llama, ids, cache=cache.for_prompt(ids), tokens=4)
        assert cache.stats()["hit_tokens"] == 32
