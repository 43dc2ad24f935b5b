"""An engine with its own model puts Quire under its attention; a second session finds the first."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

import quire

LAYERS, KV_HEADS, QUERY_HEADS, DIM = 4, 2, 8, 64


def project(tokens: list[int], layer: int, heads: int) -> NDArray[np.float32]:
    """Stands for the model: K, V or Q of some tokens in one layer, [tokens, heads, DIM]."""
    i = np.arange(heads * DIM).reshape(heads, DIM)
    numbers = (np.array(tokens)[:, None, None] * 31 + i * 7 + layer * 13) % 97
    return (numbers / 97 - 0.5).astype(np.float32)


def main() -> None:
    cache = quire.Cache(layers=LAYERS, kv_heads=KV_HEADS, head_dim=DIM, codec="f16",
                        hot_bytes=64 << 20)
    attention = quire.Attention(threads=2)
    identity = quire.Identity(hashlib.blake2b(b"the weights", digest_size=32).digest())
    prompt = list(range(1000, 1100))
    outs = []
    for _ in range(2):
        plan = cache.acquire(prompt, identity)
        print(f"reused {plan.resident_tokens:3} of {len(prompt)} tokens, the rest is {plan.reason}")
        with cache.open(plan) as sequence:
            new = prompt[sequence.length:]
            for layer in range(LAYERS):
                rows = project(new, layer, KV_HEADS)
                sequence.append(layer, rows, rows)
                out = attention.attend(layer, sequence, project(new, layer, QUERY_HEADS))
            sequence.commit(new)
            outs.append(out[-1])
    print("the bits are", "the same" if np.array_equal(outs[0], outs[1]) else "different")


if __name__ == "__main__":
    main()
