"""Requests of one asyncio program share a prompt; the engine works beside the event loop."""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np

import quire

LAYERS, HEADS, DIM = 2, 2, 64
IDENTITY = quire.Identity(hashlib.blake2b(b"the weights", digest_size=32).digest())
SYSTEM_PROMPT = list(range(320))


def answer(cache: quire.Cache, question: list[int]) -> tuple[int, float]:
    """One request, on a thread of its own: how much was found, and a number of its attention."""
    prompt = SYSTEM_PROMPT + question
    with cache.open(cache.acquire(prompt, IDENTITY)) as sequence:
        found = sequence.length
        new = prompt[found:]
        rows = np.repeat(np.array(new, np.float32)[:, None, None] / 400, HEADS, 1)
        rows = np.ascontiguousarray(np.broadcast_to(rows, (len(new), HEADS, DIM)))
        for layer in range(LAYERS):
            sequence.append(layer, rows, rows)
        out = quire.Attention().attend(LAYERS - 1, sequence, rows[-1:])
        sequence.commit(new)
    return found, float(out[0, 0, 0])


async def main() -> None:
    with quire.Cache(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, hot_bytes=32 << 20) as cache:
        await asyncio.to_thread(answer, cache, [1])
        questions = [[n, n + 1, n + 2] for n in range(4)]
        answers = await asyncio.gather(
            *(asyncio.to_thread(answer, cache, question) for question in questions))
        for question, (found, number) in zip(questions, answers):
            print(f"question {question}: {found} tokens were there, {number:.4f}")


if __name__ == "__main__":
    asyncio.run(main())
