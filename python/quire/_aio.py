"""Loads for programs of asyncio."""

from __future__ import annotations

import asyncio

from ._quire import Cache, Plan

_POLL_S = 0.05  # between looks at a cancelled task


async def load_async(cache: Cache, plan: Plan, *, timeout_s: float | None = None) -> Plan:
    """``cache.load(plan)`` and ``take()`` beside the event loop; cancelling the task ends the load.

    Raises: as Cache.load.
    """
    with cache.load(plan, timeout_s=timeout_s) as ticket:
        while not await asyncio.to_thread(ticket.wait, _POLL_S):
            pass
        return ticket.take()
