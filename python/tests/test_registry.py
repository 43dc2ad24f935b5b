"""Owners on one budget from Python: training runs keep what they hold, inference gives way."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import quire

LAYERS, HEADS, DIM = 4, 2, 8
SHAPE = {"layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM, "codec": "f32"}
IDENTITY = quire.Identity(bytes(32))


def rows(seed, tokens):
    return np.random.default_rng(seed).standard_normal((tokens, HEADS, DIM)).astype(np.float32)


def feed(owner, tokens, layers=range(LAYERS), seed=0):
    for layer in layers:
        owner.append(layer, rows(seed + layer, len(tokens)), rows(seed + 100 + layer, len(tokens)))
    owner.commit(tokens)


@pytest.fixture
def registry():
    with quire.Registry(hot_bytes=1 << 20, **SHAPE) as made:
        yield made


def test_a_training_run_holds_its_layers_and_checkpoint_layers_nothing(registry):
    tokens = list(range(40))
    whole = registry.training("lora", 1)
    feed(whole, tokens)
    half = registry.training("lora", 2, checkpoint_layers=[1, 3])
    feed(half, tokens, layers=(0, 2))
    assert 2 * half.bytes == whole.bytes and whole.length == half.length == 40
    np.testing.assert_array_equal(half.gather(2, "key"), rows(2, 40).transpose(1, 0, 2))
    np.testing.assert_array_equal(whole.gather(3, "value", 10, 20),
                                  rows(103, 40)[10:20].transpose(1, 0, 2))
    with pytest.raises(quire.InvalidArgumentError, match="checkpoint layer"):
        half.gather(1, "key")
    with pytest.raises(quire.InvalidArgumentError, match="other options"):
        registry.training("lora", 2)
    assert registry.training("lora", 1).name == "training lora/1"
    assert registry.training("lora", 1, version=5).name == "training lora/1@5"
    whole.clear()
    assert whole.length == whole.bytes == 0


def test_views_and_attention_read_an_owner_in_place(registry):
    run = registry.training("lora", 1)
    tokens = list(range(40))
    feed(run, tokens)
    view = run.view(1, "value")
    np.testing.assert_array_equal(view.numpy(1), rows(101, 40)[16:32].transpose(1, 0, 2))

    queries = rows(7, 4)
    attention = quire.Attention()
    with quire.Cache(hot_bytes=1 << 20, **SHAPE) as cache:
        with cache.open(cache.acquire(tokens, IDENTITY)) as sequence:
            feed(sequence, tokens)
            expected = attention.attend(1, sequence, queries)
            earlier = attention.attend(1, sequence, queries, first_position=3)
    np.testing.assert_array_equal(attention.attend(1, run, queries), expected)
    np.testing.assert_array_equal(attention.attend(1, run, queries, first_position=3), earlier)
    with pytest.raises(quire.InvalidArgumentError, match="4 rows from position 37"):
        attention.attend(1, run, queries, first_position=37)
    half = registry.training("lora", 2, checkpoint_layers=[1])
    with pytest.raises(quire.InvalidArgumentError, match="checkpoint layer"):
        attention.attend(1, half, queries)

    run.release()
    with pytest.raises(quire.NotFoundError, match="released"):
        attention.attend(1, run, queries)
    np.testing.assert_array_equal(view.numpy(0), rows(101, 40)[:16].transpose(1, 0, 2))


def test_inference_gives_way_and_training_stays(registry):
    run = registry.training("lora", 1)
    feed(run, list(range(64)))
    owners = []
    for number in range(100):
        owners.append(registry.inference(number, IDENTITY))
        feed(owners[-1], list(range(number, number + 64)), seed=number)
    stats = registry.stats()
    assert stats["bytes_used"] <= stats["budget_bytes"] == 1 << 20
    assert run.length == 64 and not run.evictable
    with pytest.raises(quire.NotFoundError, match="evicted"):
        owners[0].gather(0, "key")
    assert owners[-1].length == 64
    kinds = [owner["kind"] for owner in stats["owners"]]
    assert kinds.count("training") == 1 and len(kinds) < 50
    assert stats.keys() == quire.RegistryStats.__annotations__.keys()
    assert stats["owners"][0].keys() == quire.OwnerStats.__annotations__.keys()
    used = registry.evict_to(0)
    assert used >= run.bytes > 0 and registry.stats()["owners"][0]["owner"] == "training lora/1"
    with pytest.raises(quire.BusyError):
        registry.resize(20_000)
    assert run.release() and not run.release()
    with pytest.raises(quire.NotFoundError, match="released"):
        run.append(0, rows(0, 1), rows(0, 1))
    owners.clear()  # a handle takes a few hundred bytes, after its owner's end too
    del run
    gc.collect()
    assert registry.stats()["bytes_used"] == 0


def test_an_inference_owner_starts_with_what_another_published(registry):
    prompt = list(range(50))
    first = registry.inference(1, IDENTITY)
    feed(first, prompt)
    first.release()
    second = registry.inference(2, IDENTITY, prompt)
    assert second.length == 48
    assert registry.inference(3, IDENTITY, prompt, codec="f16").length == 0


def test_stages_of_a_pipeline_append_at_once(registry):
    run = registry.training("lora", 1)
    tokens = list(range(200))

    def stage(layer):
        for begin in range(0, 200, 10):
            run.append(layer, rows(layer, 200)[begin:begin + 10],
                       rows(100 + layer, 200)[begin:begin + 10])

    threads = [threading.Thread(target=stage, args=(layer,)) for layer in range(LAYERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.commit(tokens)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(run.gather(layer, "key"),
                                      rows(layer, 200).transpose(1, 0, 2))


def test_the_registry_ends_with_its_last_owner():
    registry = quire.Registry(hot_bytes=1 << 20, **SHAPE)
    owner = registry.training("lora", 1)
    registry.close()
    feed(owner, [1, 2, 3])
    assert owner.length == 3 and "training lora/1" in repr(owner)
    assert repr(registry) == "<quire.Registry: closed>"
    with pytest.raises(quire.InvalidArgumentError):
        quire.Registry(hot_bytes=1 << 20, **{**SHAPE, "codec": "int3"})
