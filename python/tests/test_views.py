"""Blocks in place: read-only and pinned for NumPy, copies for everybody else."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from conftest import DIM, KV_HEADS, compute, make_cache, rows

import quire

PROMPT = list(range(200, 240))


@pytest.mark.parametrize("codec,dtype", [("f32", np.float32), ("f16", np.float16)])
def test_numpy_sees_the_bytes_in_place(codec, dtype, identity):
    cache = make_cache(codec=codec)
    sequence = compute(cache, identity, PROMPT)
    view = sequence.view(1, "key", 16)
    assert (len(view), view.first_token, view.tokens) == (2, 16, 24)
    block, last = view.numpy(0), view.numpy(1)
    assert block.dtype == dtype and block.shape == (KV_HEADS, 16, DIM) and last.shape[1] == 8
    expected = rows(PROMPT[16:32], 1, KV_HEADS, "key", dtype).transpose(1, 0, 2)
    np.testing.assert_array_equal(block, expected)
    assert np.shares_memory(block, sequence.view(1, "key", 16).numpy(0))
    np.testing.assert_array_equal(view.copy(0), expected)


def test_published_bytes_cannot_be_written(cache, identity):
    block = compute(cache, identity, PROMPT).view(0, "value").numpy(0)
    before = block.copy()
    with pytest.raises(ValueError, match="read-only"):
        block[0, 0, 0] = 1
    with pytest.raises(ValueError):
        block.flags.writeable = True
    with pytest.raises(ValueError):
        block[0].setflags(write=True)
    with pytest.raises(BufferError, match="copy"):
        np.from_dlpack(block)
    with pytest.raises(BufferError):
        np.from_dlpack(block[0, :2])
    assert np.from_dlpack(block + 1).flags.c_contiguous  # memory of its own
    np.testing.assert_array_equal(block, before)


def test_torch_gets_copies_and_no_way_to_write(cache, identity):
    torch = pytest.importorskip("torch")
    sequence = compute(cache, identity, PROMPT)
    view = sequence.view(0, "key")
    tensor = torch.from_dlpack(view.copy(0))
    tensor.zero_()
    assert view.numpy(0).any()
    with pytest.raises(BufferError):
        torch.from_dlpack(view.numpy(0))
    with pytest.raises(BufferError):
        torch.utils.dlpack.from_dlpack(view.numpy(0)[0])


def test_bf16_goes_by_copy(identity):
    torch = pytest.importorskip("torch")
    cache = make_cache(codec="bf16")
    sequence = cache.open(cache.acquire(PROMPT, identity))
    for layer in range(2):
        key, value = (torch.from_numpy(rows(PROMPT, layer, KV_HEADS, role)).bfloat16()
                      for role in ("key", "value"))
        sequence.append(layer, key, value)
    sequence.commit(torch.tensor(PROMPT))
    view = sequence.view(1, "value")
    assert torch.equal(torch.from_dlpack(view.copy(0)), value[:16].transpose(0, 1))
    with pytest.raises(quire.UnsupportedError, match="bfloat16"):
        view.numpy(0)


def test_an_array_pins_its_block(identity):
    cache = make_cache(hot_bytes=1 << 20)
    sequence = compute(cache, identity, PROMPT)
    array = sequence.view(0, "key").numpy(0)[1]  # a slice alone
    kept = array.copy()
    sequence.close()
    gc.collect()
    cache.evict(1000)
    for fill in range(30):  # more than the budget has room for: everything else is written anew
        compute(cache, identity, list(range(fill * 1000, fill * 1000 + 100))).close()
    assert cache.stats()["evicted_total"] > 0
    np.testing.assert_array_equal(array, kept)
    del array
    gc.collect()
    cache.evict(1000)
    assert cache.stats()["sealed"]["slots_used"] == 0


def test_a_contiguous_sequence_is_one_array(identity):
    cache = make_cache(layout="head_major", placement="first_fit")
    sequence = cache.open(cache.acquire(PROMPT, identity, reuse=False), contiguous=True)
    for layer in range(2):
        sequence.append(layer, rows(PROMPT, layer, KV_HEADS, "key"),
                        rows(PROMPT, layer, KV_HEADS, "value"))
    sequence.commit(PROMPT)
    np.testing.assert_array_equal(sequence.view(0, "value").array(),
                                  rows(PROMPT, 0, KV_HEADS, "value").transpose(1, 0, 2))


def test_encoded_blocks_are_not_shown(identity):
    sequence = compute(make_cache(codec="int8"), identity, PROMPT)
    with pytest.raises(quire.UnsupportedError):
        sequence.view(0, "key")
