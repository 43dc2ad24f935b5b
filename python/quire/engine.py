"""A model with its cache and its sessions: Quire's own engine.

    engine = quire.engine.Engine("models/tiny", store="DIR", hot_bytes=64 << 20)
    print(engine.ask("It is a truth", max_tokens=32).read().reused_tokens)
    with engine.open_session("talk", temperature=0.7) as session:    # outlives the process
        for event in session.turn("Once upon a time", max_tokens=64):
            print(event.text, end="", flush=True)

Threads: objects may be used from any thread; the GIL is let go while the engine computes.
"""

from __future__ import annotations

from ._engine import Answer, Engine, Event, Lease, Session
from ._types import EngineCounters, EngineStats, LoadedAdapter, SequenceEntry, StoredSession

__all__ = ["Answer", "Engine", "EngineCounters", "EngineStats", "Event", "Lease", "LoadedAdapter",
           "SequenceEntry", "Session", "StoredSession"]
