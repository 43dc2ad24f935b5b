"""LMCache's second level on a quire.store.BlockStore: the class that its `native_plugin` adapter
loads. docs/adapters/lmcache.md has a start to copy.

    --l2-adapter '{"type": "native_plugin", "module_path": "quire.lmcache",
                   "class_name": "QuireStore",
                   "adapter_params": {"directory": "DIR", "cap_bytes": 100000000000,
                                      "namespace": "ENGINE VERSION / MODEL REVISION / DTYPE / CHUNK"}}'
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from quire._names import former
from quire.store import BlockStore, Outcome, Result

_STORED = (Outcome.OK, Outcome.PRESENT)

Completion = tuple[int, bool, str, list[bool] | None]
# Tells the end of a batch: (ok, error, a flag for each key or None).
_End = Callable[[list[Result]], tuple[bool, str, list[bool] | None]]


class QuireStore:
    """What LMCache asks of a connector: bytes by key, in batches that end on an event descriptor.

    Any thread may call any method. Buffers are used until their batch was drained; LMCache keeps
    them so long.
    """

    @former(cap_gb="cap_bytes", block_mb_max="block_bytes_max",
            commit_interval_ms="commit_interval_s", scrub_mb_per_s="scrub_bytes_per_s")
    def __init__(self, directory: str, *, namespace: str, cap_bytes: int = 8 << 30,
                 block_bytes_max: int = 0, commit_interval_s: float = 0.02,
                 scrub_bytes_per_s: int = 8 << 20, memory_bytes: int = 256 << 20,
                 accepts_puts: bool = True, keys: str | None = None,
                 keys_command: str = "") -> None:
        """Opens the store in a directory, or makes one.

        namespace: everything that decides the bytes of a block besides LMCache's key (model name,
        rank, chunk hash): the engine and its version, the weights, the dtype, the chunk size. It
        has no default: with one, new weights under the old name would find the old blocks.
        accepts_puts: LMCache is told that a block is stored when it can be found; a crash may cost
        the last ones (stats: puts_lost). The rest is as in quire.store.BlockStore.
        """
        if not namespace.strip():
            raise ValueError("an empty namespace names no weights: docs/adapters/lmcache.md")
        self._store = BlockStore(directory, cap_bytes=cap_bytes, block_bytes_max=block_bytes_max,
                                 commit_interval_s=commit_interval_s,
                                 scrub_bytes_per_s=scrub_bytes_per_s, memory_bytes=memory_bytes,
                                 accepts_puts=accepts_puts, namespace=namespace, keys=keys,
                                 keys_command=keys_command)
        self._ends: dict[int, _End] = {}  # of batches under way
        self._lock = threading.Lock()  # a batch is not drained before its end is known

    def event_fd(self) -> int:
        """Readable when drain_completions has something."""
        return self._store.event_fd()

    def submit_batch_get(self, keys: Sequence[str], bufs: Sequence[Any]) -> int:
        """A block counts as loaded when it has just its buffer's length."""
        lengths = [memoryview(buffer).nbytes for buffer in bufs]

        def end(results: list[Result]) -> tuple[bool, str, list[bool]]:
            loaded = [result.outcome == Outcome.OK and result.length == length
                      for result, length in zip(results, lengths)]
            missed = len(loaded) - sum(loaded)
            return not missed, f"{missed} of {len(loaded)} blocks missed" if missed else "", loaded

        with self._lock:
            return self._begun(self._store.submit_get(keys, bufs), end)

    def submit_batch_set(self, keys: Sequence[str], bufs: Sequence[Any]) -> int:
        """A block that is there already counts as stored: a key names its bytes for good."""
        with self._lock:
            return self._begun(self._store.submit_put(keys, bufs), _stored)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        with self._lock:
            return self._begun(self._store.submit_exists(keys), _flags)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        with self._lock:
            return self._begun(self._store.submit_remove(keys), _flags)

    def drain_completions(self) -> list[Completion]:
        """The batches that ended: (number, ok, error, a flag for each key or None)."""
        with self._lock:
            return [(number, *self._ends.pop(number)(results))
                    for number, results in self._store.drain()]

    def close(self) -> None:
        """Ends what is under way and makes it durable."""
        self._store.close()

    def _begun(self, number: int, end: _End) -> int:
        self._ends[number] = end
        return number


def _flags(results: list[Result]) -> tuple[bool, str, list[bool]]:
    failed = [result.outcome.name.lower() for result in results
              if result.outcome not in (Outcome.OK, Outcome.ABSENT)]
    return not failed, failed[0] if failed else "", [r.outcome == Outcome.OK for r in results]


def _stored(results: list[Result]) -> tuple[bool, str, None]:
    failed = [result.outcome.name.lower() for result in results if result.outcome not in _STORED]
    said = f"{len(failed)} of {len(results)} blocks were not stored: {failed[0]}" if failed else ""
    return not failed, said, None
