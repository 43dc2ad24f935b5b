"""The life of a sequence from Python, and what is refused."""

from __future__ import annotations

import gc
import re
from typing import get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest
from conftest import (DIM, KV_HEADS, LAYERS, QUERY_HEADS, append, attention, compute, digest,
                      make_cache, rows)

import quire

PROMPT = list(range(100, 150))


def test_a_plan_says_where_the_prompt_went_another_way(cache, identity):
    first = compute(cache, identity, PROMPT)
    assert cache.acquire(PROMPT, identity).differs_at is None
    assert cache.acquire(PROMPT[:20] + [1] + PROMPT[21:], identity).differs_at == 20
    first.close()


def test_a_prefix_is_found_and_attention_is_that_of_numpy(cache, identity):
    first = compute(cache, identity, PROMPT)
    second_prompt = PROMPT[:40] + [7, 8, 9]
    plan = cache.acquire(np.array(second_prompt, np.int64), identity)
    assert (plan.resident_tokens, plan.missing_tokens) == (32, 11)
    assert plan.missing[0][1] > 0 and plan.reason == plan.missing[0][0]
    second = cache.open(plan, reserve_tokens=64)
    assert plan.closed and second.length == len(second) == 32
    append(second, second_prompt[32:])
    queries = rows(second_prompt[32:], 1, QUERY_HEADS, "query")
    out = quire.Attention(threads=2).attend(1, second, queries)
    keys = rows(second_prompt, 1, KV_HEADS, "key").transpose(1, 0, 2)
    values = rows(second_prompt, 1, KV_HEADS, "value").transpose(1, 0, 2)
    np.testing.assert_allclose(out, attention(queries, keys, values, 32), rtol=2e-5, atol=2e-6)
    second.commit(np.array(second_prompt[32:], np.int32))
    assert cache.stats()["hit_tokens"] == 32
    np.testing.assert_array_equal(second.gather(1, "key"), keys)
    np.testing.assert_array_equal(first.gather(0, "value", 16, 20),
                                  rows(PROMPT[16:20], 0, KV_HEADS, "value").transpose(1, 0, 2))


@pytest.mark.parametrize("codec", list(quire.CODECS))
def test_every_codec_gives_the_same_bits_on_a_hit(codec, identity):
    cache = make_cache(codec=codec)
    kernels = quire.Attention()
    queries = rows(PROMPT[-1:], 0, QUERY_HEADS, "query")
    outs = []
    for _ in range(2):
        with compute(cache, identity, PROMPT) as sequence:
            outs.append(kernels.attend(0, sequence, queries))
    np.testing.assert_array_equal(outs[0], outs[1])
    assert cache.stats()["hit_tokens"] == 48 and cache.codecs["key"] == codec
    keys = rows(PROMPT, 0, KV_HEADS, "key").transpose(1, 0, 2)
    values = rows(PROMPT, 0, KV_HEADS, "value").transpose(1, 0, 2)
    exact = attention(queries, keys, values, len(PROMPT) - 1)
    error = np.abs(outs[0] - exact).max() / np.abs(exact).max()
    assert error < {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2, "int8": 0.05}.get(codec, 0.5)


def test_sinks_and_slopes_of_query_heads(cache, identity):
    kernels = quire.Attention()
    sequence = compute(cache, identity, PROMPT)
    queries = rows(PROMPT[-2:], 0, QUERY_HEADS, "query")
    keys = rows(PROMPT, 0, KV_HEADS, "key").transpose(1, 0, 2).repeat(QUERY_HEADS // KV_HEADS, 0)
    values = rows(PROMPT, 0, KV_HEADS, "value").transpose(1, 0, 2).repeat(
        QUERY_HEADS // KV_HEADS, 0)
    logits = np.linspace(3, -1, QUERY_HEADS, dtype=np.float32)
    slopes = np.linspace(0.1, 1, QUERY_HEADS, dtype=np.float32)
    for sinks, alibi in ((logits, None), (None, slopes), (logits, slopes)):
        out = kernels.attend(0, sequence, queries, sink_logits=sinks, alibi_slopes=alibi)
        for row, at in enumerate((len(PROMPT) - 2, len(PROMPT) - 1)):
            scores = np.einsum("hd,htd->ht", queries[row], keys[:, :at + 1]) / np.sqrt(DIM)
            if alibi is not None:
                scores = scores + alibi[:, None] * (np.arange(at + 1) - at)
            if sinks is not None:
                scores = np.concatenate([scores, sinks[:, None]], 1)
            weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            expected = np.einsum("ht,htd->hd", weights[:, :at + 1], values[:, :at + 1])
            np.testing.assert_allclose(out[row], expected, rtol=2e-5, atol=2e-6)
        batch = [np.empty_like(out)]
        kernels.attend_batch(0, [sequence], [queries], batch, sink_logits=sinks,
                             alibi_slopes=alibi)
        np.testing.assert_array_equal(batch[0], out)
    no_sinks = np.full(QUERY_HEADS, -np.inf, np.float32)
    np.testing.assert_array_equal(kernels.attend(0, sequence, queries, sink_logits=no_sinks),
                                  kernels.attend(0, sequence, queries))
    for name, wrong, words in (("sink_logits", logits[1:], "sink_logits has"),
                               ("alibi_slopes", slopes[None], "alibi_slopes is no array"),
                               ("alibi_slopes", [1.0] * QUERY_HEADS, "alibi_slopes is no array")):
        with pytest.raises(quire.InvalidArgumentError, match=words):
            kernels.attend(0, sequence, queries, **{name: wrong})
        with pytest.raises(quire.InvalidArgumentError, match=words):
            kernels.attend_batch(0, [sequence], [queries], [np.empty_like(out)], **{name: wrong})


def test_a_batch_is_attended_in_one_call(cache, identity):
    kernels = quire.Attention()
    prompts = [PROMPT[:20], PROMPT[:33] + [1]]
    sequences = [compute(cache, identity, prompt) for prompt in prompts]
    queries = [rows(prompt[-2:], 0, QUERY_HEADS, "query") for prompt in prompts]
    outs = [np.empty_like(q) for q in queries]
    kernels.attend_batch(0, sequences, queries, outs)
    for sequence, q, out in zip(sequences, queries, outs):
        np.testing.assert_array_equal(out, kernels.attend(0, sequence, q))
    kernels.attend_batch(0, sequences, queries, outs, first_positions=[3, 30], scale=0.5)
    for sequence, q, out, first in zip(sequences, queries, outs, (3, 30)):
        other = np.empty_like(q)
        given = kernels.attend(0, sequence, q, first_position=first, scale=0.5, out=other)
        assert given is other
        np.testing.assert_array_equal(out, other)


def test_forks_rollbacks_and_selections(cache, identity):
    sequence = compute(cache, identity, PROMPT)
    fork = sequence.fork()
    sequence.rollback(17)
    append(sequence, [5])
    sequence.commit([5])
    assert (sequence.length, fork.length) == (18, 50)
    np.testing.assert_array_equal(
        fork.gather(0, "key"), rows(PROMPT, 0, KV_HEADS, "key").transpose(1, 0, 2))
    selected = fork.select([0, 2])
    assert (selected.length, selected.dropped_tokens) == (34, 16)
    sequence.reset()
    assert sequence.length == 0 and fork.stats()["tokens_used"] == 50


def test_rows_of_any_layout_and_type(identity):
    for dtype, codec in ((np.float32, "f32"), (np.float16, "f16")):
        cache = make_cache(codec=codec)
        plain = compute(cache, identity, PROMPT)
        turned = cache.open(cache.acquire(PROMPT, identity, reuse=False))
        for layer in range(LAYERS):
            heads_first = [
                np.ascontiguousarray(
                    rows(PROMPT, layer, KV_HEADS, role, dtype).transpose(1, 0, 2))
                for role in ("key", "value")]
            turned.append(layer, *(array.transpose(1, 0, 2) for array in heads_first))
        turned.commit(PROMPT)
        for role in ("key", "value"):
            np.testing.assert_array_equal(plain.gather(1, role), turned.gather(1, role))


def test_windows_let_go_and_say_so(identity):
    group = quire.LayerGroup(range(LAYERS), kv_heads=KV_HEADS, head_dim=DIM, window_tokens=20)
    cache = make_cache(layers=0, kv_heads=0, head_dim=0, groups=[group])
    sequence = compute(cache, identity, PROMPT)
    view = sequence.view(0, "key")
    assert not view.has_block(0) and view.has_block(2)
    with pytest.raises(quire.NotFoundError, match="window has passed block 0"):
        view.numpy(0)
    queries = rows(PROMPT[-1:], 0, QUERY_HEADS, "query")
    keys, values = (rows(PROMPT, 0, KV_HEADS, role).transpose(1, 0, 2)[:, -20:]
                    for role in ("key", "value"))
    out = quire.Attention().attend(0, sequence, queries)
    np.testing.assert_allclose(out, attention(queries, keys, values, 19), rtol=2e-5, atol=2e-6)


def test_tenants_pins_and_upkeep(cache, identity):
    tenant = cache.add_tenant("a", quota_bytes=1 << 20)
    assert cache.find_tenant("a") == tenant
    plan = cache.acquire(PROMPT, identity, tenant=tenant)
    sequence = cache.open(plan)
    append(sequence, PROMPT)
    sequence.commit(PROMPT)
    assert cache.acquire(PROMPT, identity).resident_tokens == 0
    assert cache.pin(PROMPT, identity, tenant=tenant, ttl_s=0) == 3
    sequence.close()
    assert cache.evict(100) == 0
    cache.unpin(PROMPT, identity, tenant=tenant)
    assert cache.verify() == (3, 0)
    assert cache.tenant_stats(tenant)["published_blocks"] == 3
    with pytest.raises(quire.InvalidArgumentError):
        cache.set_limits(tenant, quota_bytes=1, floor_bytes=2)
    cache.set_limits(tenant, quota_bytes=2 << 20, floor_bytes=4096)
    stats = cache.tenant_stats(tenant)
    assert (stats["quota_bytes"], stats["floor_bytes"]) == (2 << 20, 4096)
    assert cache.erase(tenant)["blocks"] == 3
    cache.remove_tenant(tenant)
    with pytest.raises(quire.NotFoundError):
        cache.find_tenant("a")
    assert cache.stats()["sealed"]["slots_used"] == 0
    assert cache.trim() >= 0 and "p" not in cache.block_map()


def test_a_shared_budget_outlives_its_name(identity):
    budget = quire.SharedBudget(1 << 20)
    caches = [make_cache(shared_budget=budget) for _ in range(2)]
    sequence = compute(caches[0], identity, PROMPT)
    assert 0 < budget.used_bytes <= budget.bytes
    del budget
    gc.collect()
    compute(caches[1], identity, PROMPT)
    assert sequence.length == 50


def test_handles_end_in_any_order(identity):
    cache = make_cache()
    sequence = compute(cache, identity, PROMPT)
    with sequence.view(0, "key") as view:
        array = view.numpy(1)
    plan = cache.acquire(PROMPT, identity)
    cache.close()
    cache.close()
    assert cache.closed and view.closed
    sequence.close()
    del cache, sequence, view
    gc.collect()
    expected = rows(PROMPT[16:32], 0, KV_HEADS, "key").transpose(1, 0, 2)
    np.testing.assert_array_equal(array, expected)
    assert plan.resident_tokens == 48
    plan.close()
    plan.close()
    with pytest.raises(quire.InvalidArgumentError, match="closed"):
        plan.resident_tokens


def test_refusals_are_exceptions_with_the_engine_s_words(cache, identity):
    with pytest.raises(quire.InvalidArgumentError, match="no codec is named"):
        make_cache(codec="int9")
    with pytest.raises(quire.InvalidArgumentError, match="reject, halt, no_evict, fewer"):
        cache.open(cache.acquire(PROMPT, identity), on_full="sometimes")
    with pytest.raises(quire.InvalidArgumentError, match="32"):
        quire.Identity(b"short")
    with pytest.raises(quire.InvalidArgumentError, match="either layers"):
        quire.Cache(hot_bytes=1 << 20)
    with pytest.raises(quire.InvalidArgumentError):
        cache.acquire([], identity)
    with pytest.raises(quire.NotFoundError):
        cache.acquire(PROMPT, identity, tenant=9)
    with pytest.raises(quire.TooLargeError):
        cache.open(cache.acquire(PROMPT, identity), reserve_tokens=1 << 19)
    with pytest.raises(quire.NoSpaceError):
        quire.Cache(hot_bytes=100, layers=2, kv_heads=2, head_dim=32)
    sequence = compute(cache, identity, PROMPT)
    with pytest.raises(ValueError, match="layer 5 of 2"):
        sequence.cursor(5)
    with pytest.raises(quire.InvalidArgumentError, match=r"\[3, 2, 8\], not \[tokens, 2, 32\]"):
        sequence.append(0, np.zeros((3, 2, 8), np.float32), np.zeros((3, 2, 8), np.float32))
    with pytest.raises(quire.UnsupportedError, match="float32"):
        sequence.append(0, np.zeros((3, 2, 32)), np.zeros((3, 2, 32)))
    with pytest.raises(quire.InvalidArgumentError, match="value"):
        sequence.append(0, np.zeros((3, 2, 32), np.float32))
    with pytest.raises(quire.InvalidArgumentError, match="lie 2 apart"):
        wide = np.zeros((3, 2, 64), np.float32)[:, :, ::2]
        sequence.append(0, wide, wide)
    with pytest.raises(quire.InvalidArgumentError, match="layer 0"):
        sequence.commit([1])
    with pytest.raises(quire.InvalidArgumentError, match="int32"):
        sequence.commit([1 << 40])
    with pytest.raises(quire.InvalidArgumentError):
        sequence.commit(np.zeros((1, 1), np.int64))
    with pytest.raises(quire.InvalidArgumentError, match="rows from position 49"):
        quire.Attention().attend(0, sequence, np.zeros((2, 4, 32), np.float32), first_position=49)
    with pytest.raises(quire.InvalidArgumentError):
        quire.Attention().attend(0, sequence, np.zeros((1, 3, 32), np.float32))
    with pytest.raises(quire.UnsupportedError, match="queries are float64: convert"):
        quire.Attention().attend(0, sequence, np.zeros((1, 4, 32)))
    with pytest.raises(quire.UnsupportedError, match="neither float32"):
        quire.Attention().attend(0, sequence, np.zeros((1, 4, 32), np.int32))
    with pytest.raises(quire.InvalidArgumentError, match="2 axes, not 3"):
        quire.Attention().attend(0, sequence, np.zeros((4, 32), np.float32))
    with pytest.raises(quire.InvalidArgumentError, match="no array"):
        quire.Attention().attend(0, sequence, [[[0.0] * 32] * 4])
    with pytest.raises(quire.UnsupportedError, match="queries are float64"):
        quire.Attention().attend_batch(0, [sequence], [np.zeros((1, 4, 32))],
                                       [np.zeros((1, 4, 32), np.float32)])
    with pytest.raises(quire.InvalidArgumentError, match="writable float32"):
        out = np.zeros((1, 4, 32), np.float32)
        out.flags.writeable = False
        quire.Attention().attend(0, sequence, out, out=out)
    with pytest.raises(quire.InvalidArgumentError, match="another cache"):
        cache.open(make_cache().acquire(PROMPT, identity))
    assert sequence.length == 50


def test_identities_are_values_and_keep_their_secret():
    one = quire.Identity(digest("w"), domain="d", domain_secret=digest("secret"))
    assert one == quire.Identity(digest("w"), domain="d", domain_secret=digest("secret"))
    assert one != quire.Identity(digest("w"), domain="d") and one != "w"
    assert len({one, quire.Identity(digest("w"), domain="d", domain_secret=digest("secret"))}) == 1
    assert not hasattr(one, "domain_secret") and "secret" not in repr(one)


def test_queries_of_other_types_are_converted(cache, identity):
    sequence = compute(cache, identity, PROMPT)
    kernels = quire.Attention()
    half = rows(PROMPT[-2:], 0, QUERY_HEADS, "query", np.float16)
    exact = kernels.attend(0, sequence, half.astype(np.float32))
    turned = np.asfortranarray(half.astype(np.float32))
    for queries in (half, half[:, :, :], turned, np.repeat(half, 2, axis=2)[:, :, ::2]):
        np.testing.assert_array_equal(kernels.attend(0, sequence, queries), exact)
        out = np.zeros_like(exact)
        kernels.attend_batch(0, [sequence], [queries], [out])
        np.testing.assert_array_equal(out, exact)


def test_queries_of_torch_are_converted(cache, identity):
    torch = pytest.importorskip("torch")
    sequence = compute(cache, identity, PROMPT)
    kernels = quire.Attention()
    brain = torch.from_numpy(rows(PROMPT[-2:], 0, QUERY_HEADS, "query")).bfloat16()
    np.testing.assert_array_equal(kernels.attend(0, sequence, brain),
                                  kernels.attend(0, sequence, brain.float()))
    with pytest.raises(quire.UnsupportedError, match="float64"):
        kernels.attend(0, sequence, brain.double())


def test_lives_are_in_seconds(cache, identity):
    sequence = compute(cache, identity, PROMPT)
    assert cache.pin(PROMPT, identity, ttl_s=0.05) == 3
    assert cache.stats()["pinned_blocks"] == 3
    other = make_cache(policy="priority")
    compute(other, identity, PROMPT).retain(priority=10, ttl_s=1.5)
    cache.add_tenant("a", ttl_s=60)
    with pytest.raises(TypeError, match="ttl_s: float"):
        cache.pin(PROMPT, identity, ttl_us=50_000)
    for wrong in (-1, float("nan"), 1e300):
        with pytest.raises(quire.InvalidArgumentError, match="seconds"):
            cache.pin(PROMPT, identity, ttl_s=wrong)


def test_repr_says_the_state(cache, identity, tmp_path):
    budget = quire.SharedBudget(1 << 20)
    assert repr(budget) == "<quire.SharedBudget: 0 of 1048576 bytes used>"
    sequence = compute(cache, identity, PROMPT)
    assert repr(sequence) == "<quire.Sequence: 50 tokens, 3 blocks shared and 1 of its own>"
    assert re.fullmatch(r"<quire.Cache: 2 layers in f32, \d+ of 4194304 bytes, 3 blocks published, "
                        "1 sequences>", repr(cache))
    plan = cache.acquire([*PROMPT, 7], identity)
    assert repr(plan) == "<quire.Plan: 48 tokens resident, 3 missing (partial_block)>"
    view = sequence.view(0, "key")
    assert repr(view) == "<quire.View: 50 tokens in 4 blocks>"
    assert re.fullmatch(r"<quire.Attention: 2 threads, \w+>", repr(quire.Attention(2)))
    assert repr(quire.Identity(digest("w"), adapter="lora", adapter_version=3, domain="d")) == (
        f"<quire.Identity: weights {digest('w').hex()[:12]}..., adapter 'lora' version 3, "
        "domain 'd'>")
    group = quire.LayerGroup([0, 1], kv_heads=2, head_dim=32, window_tokens=20, sink_tokens=4)
    assert repr(group) == ("<quire.LayerGroup: 2 layers, key 2 x 32, value 2 x 32, window of 20 "
                           "after 4 sinks>")
    with quire.DiskStore(tmp_path / "store", cap_bytes=64 << 20) as store:
        assert re.fullmatch(r"<quire.DiskStore: '.*/store', 0 records, \d+ of 67108864 bytes>",
                            repr(store))
        below = make_cache(store=store)
        ticket = below.load(below.acquire(PROMPT, identity))
        assert ticket.wait()
        assert repr(ticket) == "<quire.Ticket: 0 of 0 blocks loaded>"
        ticket.take()
        assert repr(ticket) == "<quire.Ticket: taken>"
        below.close()
    for of in (plan, view, sequence, cache):
        of.close()
    for of in (plan, view, sequence, cache, store):
        assert repr(of) == f"<quire.{type(of).__name__}: closed>"


def test_stats_have_the_fields_of_their_types(cache, identity, tmp_path):
    tenant = cache.add_tenant("a")
    sequence = compute(cache, identity, PROMPT)
    with quire.DiskStore(tmp_path / "store", cap_bytes=64 << 20) as store:
        below = make_cache(store=store)
        ticket = below.load(below.acquire(PROMPT, identity))
        made = [(quire.CacheStats, cache.stats()), (quire.SlotStats, cache.stats()["sealed"]),
                (quire.TenantStats, cache.tenant_stats(tenant)),
                (quire.SequenceStats, sequence.stats()), (quire.DiskStoreStats, store.stats()),
                (quire.LoadProgress, ticket.progress), (quire.EraseReport, cache.erase(tenant)),
                (quire.Codecs, cache.codecs)]
        ticket.close()
        below.close()
    with quire.store.BlockStore(tmp_path / "blocks", cap_bytes=32 << 20) as blocks:
        made.append((quire.BlockStoreStats, blocks.stats()))
    for kind, values in made:
        types = get_type_hints(kind)
        optional = kind.__optional_keys__
        assert set(values) <= set(types)
        assert [name for name in values if name not in optional] == [
            name for name in types if name not in optional], kind.__name__
        for name, value in values.items():
            assert isinstance(value, get_origin(types[name]) or types[name]
                              if not is_typeddict(types[name]) else dict), name


def test_padded_copies(cache, identity):
    sequences = [compute(cache, identity, PROMPT[:n]) for n in (5, 20)]
    padded = quire.gather_padded(sequences, 1, "value", 24)
    assert padded.shape == (2, KV_HEADS, 24, DIM)
    np.testing.assert_array_equal(padded[1, :, :20], sequences[1].gather(1, "value"))
    assert not padded[0, :, 5:].any()
