"""What the tests share: a small model's cache, its rows, and attention in plain NumPy."""

from __future__ import annotations

import hashlib
import threading
import time

import numpy as np
import pytest

import quire

LAYERS, KV_HEADS, QUERY_HEADS, DIM = 2, 2, 4, 32


def digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=32).digest()


def rows(tokens, layer, heads, role, dtype=np.float32):
    """Stands for the model: [tokens, heads, DIM], a function of token, layer and role alone."""
    made = np.empty((len(tokens), heads, DIM), np.float32)
    for i, token in enumerate(tokens):
        seed = (int(token) * 31 + layer * 7 + {"key": 1, "value": 2, "query": 3}[role]) % (1 << 31)
        made[i] = np.random.default_rng(seed).standard_normal((heads, DIM)) / 2
    return made.astype(dtype)


def attention(queries, keys, values, first_position):
    """queries [rows, query_heads, DIM], keys and values [kv_heads, tokens, DIM]."""
    out = np.empty_like(queries)
    group = queries.shape[1] // keys.shape[0]
    for row in range(queries.shape[0]):
        seen = first_position + row + 1
        for head in range(queries.shape[1]):
            scores = keys[head // group, :seen] @ queries[row, head] / np.sqrt(DIM)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[head // group, :seen] / weights.sum()
    return out


def append(sequence, tokens, dtype=np.float32):
    for layer in range(LAYERS):
        sequence.append(layer, rows(tokens, layer, KV_HEADS, "key", dtype),
                        rows(tokens, layer, KV_HEADS, "value", dtype))


def compute(cache, identity, tokens, **options):
    """A sequence that has all of `tokens`, computed as far as the cache lacks them."""
    sequence = cache.open(cache.acquire(tokens, identity), **options)
    missing = list(tokens[sequence.length:])
    append(sequence, missing)
    sequence.commit(missing)
    return sequence


def make_cache(**options):
    options = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": DIM, "codec": "f32",
               "hot_bytes": 4 << 20, **options}
    return quire.Cache(**options)


@pytest.fixture
def cache():
    return make_cache()


@pytest.fixture
def identity():
    return quire.Identity(digest("weights"), position_encoding="rope:theta=10000")


def longest_stall(call):
    """Of another thread while a call runs, as a share of the call's time."""
    longest, done = [0.0], threading.Event()

    def count():
        before = time.monotonic()
        while not done.is_set():
            time.sleep(0.0002)
            now = time.monotonic()
            longest[0] = max(longest[0], now - before)
            before = now

    counter = threading.Thread(target=count)
    counter.start()
    try:
        time.sleep(0.01)
        start = time.monotonic()
        call()
        seconds = time.monotonic() - start
    finally:
        done.set()
        counter.join()
    return longest[0] / seconds
