"""The tokens of one call of generate, for programs of asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

import quire

if TYPE_CHECKING:
    from ._attach import AttachedCache


class _Streamer(BaseStreamer):  # type: ignore[misc]
    """Hands on what `generate` says, but for the prompt, which comes first."""

    def __init__(self, hand_on: Callable[[int], None]):
        self._hand_on = hand_on
        self._prompt_came = False

    def put(self, value: torch.Tensor) -> None:
        """Some token ids, on the thread of `generate`."""
        if not self._prompt_came:
            self._prompt_came = True
            return
        for token in value.flatten().tolist():
            self._hand_on(token)

    def end(self) -> None:
        """Nothing: the thread's end says it."""


class _StopWhen(StoppingCriteria):  # type: ignore[misc]
    """Ends `generate` after its next token."""

    def __init__(self, event: threading.Event):
        self._event = event

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), self._event.is_set(), dtype=torch.bool)


async def stream(
    owner: AttachedCache, input_ids: Any, attention_mask: Any, options: dict[str, Any]
) -> AsyncIterator[int]:
    """See AttachedCache.stream."""
    ids = torch.atleast_2d(torch.as_tensor(input_ids))
    if ids.shape[0] != 1:
        raise quire.InvalidArgumentError(f"stream takes one prompt, not {ids.shape[0]}")
    for name in ("streamer", "past_key_values"):
        if name in options:
            raise quire.InvalidArgumentError(f"stream has a {name} of its own")
    mask = torch.ones_like(ids) if attention_mask is None else torch.atleast_2d(
        torch.as_tensor(attention_mask))
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[int | None] = asyncio.Queue()
    stop = threading.Event()

    def hand_on(token: int | None) -> None:
        loop.call_soon_threadsafe(came.put_nowait, token)

    def work() -> None:
        try:
            past = owner.for_prompt(ids, mask)
            try:
                criteria = [*options.pop("stopping_criteria", ()), _StopWhen(stop)]
                owner.model.generate(
                    ids, attention_mask=mask, past_key_values=past, streamer=_Streamer(hand_on),
                    stopping_criteria=StoppingCriteriaList(criteria), **options)
            finally:
                past.close()
        finally:
            hand_on(None)

    worker = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        while (token := await came.get()) is not None:
            yield token
        await worker  # raises what `work` raised
    finally:
        stop.set()
        if not worker.done():
            await asyncio.wait([worker])
        if not worker.cancelled():
            worker.exception()  # it was raised above, or nobody listens any more
