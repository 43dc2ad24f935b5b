"""A store of opaque blocks on a local disk: bytes by (namespace, key), under a hard cap, found
again after a restart. What it promises is in docs/embedding.md ("A store of blocks") and
docs/durability.md.

    with quire.store.BlockStore("DIR", cap_bytes=8 << 30) as store:
        store.put("key", data)           # durable when it returns; with accepts_puts: found
        data = store.get("key")          # bytes, or None

One process owns a directory. Others use it by its socket: `quire store serve DIR --socket PATH`,
and `BlockStore("unix:PATH")`.
"""

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, cast

from quire import _library
from quire._buffers import Pinned
from quire._errors import BY_CODE, DeadlineError, Error, InvalidArgumentError, NotFoundError
from quire._names import former
from quire._types import BlockStoreStats, NamespaceUsage

__all__ = ["BlockStore", "DeadlineError", "Outcome", "Result", "StoreError"]

StoreError = Error  # the former name of what calls of a store raise

FOREVER = 2**64 - 1
ENCRYPTION = ("keys", "keys_command")  # of BlockStore, as options of engines may name them

Key = str | bytes | bytearray | memoryview


class Outcome(IntEnum):
    """How a request about one block ended; quire.h says more about each."""

    OK = 0
    PRESENT = 1
    ABSENT = 2
    DAMAGED = 3
    TOO_SMALL = 4
    TOO_LARGE = 5
    NO_SPACE = 6
    IO = 7
    CLOSED = 8
    UNREACHABLE = 9


class Result(NamedTuple):
    """The end of one block's request. `length`: of the block that was read; for `exists`, most that
    it may have."""

    outcome: Outcome
    length: int


_FAILURES = {  # by the code of the error that a call raises
    Outcome.DAMAGED: ("corrupt", "is damaged"),
    Outcome.TOO_SMALL: ("invalid_argument", "is longer than the buffer that it is read into"),
    Outcome.TOO_LARGE: ("too_large", "is longer than block_bytes_max, or than a segment"),
    Outcome.NO_SPACE: ("no_space", "has no room: the disk is full"),
    Outcome.IO: ("io", "was not read or written: the disk failed"),
    Outcome.UNREACHABLE: ("io", "was not reached: the process that serves the store is not there"),
    Outcome.CLOSED: ("invalid_argument", "was not handed in: the store is closed"),
}

_DEADLINE = 9  # QUIRE_DEADLINE
_WAIT_STEP_S = 0.05  # of a wait, so that Ctrl-C is heard


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("message", ctypes.c_char * 508)]


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("directory", ctypes.c_char_p),
                ("bytes_cap", ctypes.c_uint64), ("block_bytes_max", ctypes.c_uint64),
                ("commit_interval_us", ctypes.c_uint64), ("scrub_bytes_per_s", ctypes.c_uint64),
                ("disk_requests_max", ctypes.c_uint32), ("accepts_puts", ctypes.c_uint32),
                ("memory_bytes", ctypes.c_uint64), ("keys_file", ctypes.c_char_p),
                ("keys_command", ctypes.c_char_p), ("key", ctypes.c_char_p)]


class _Key(ctypes.Structure):
    _fields_ = [("key", ctypes.c_void_p), ("key_bytes", ctypes.c_size_t)]


class _Block(ctypes.Structure):  # quire_put_block and quire_get_block
    _fields_ = [("key", ctypes.c_void_p), ("key_bytes", ctypes.c_size_t),
                ("data", ctypes.c_void_p), ("data_bytes", ctypes.c_size_t)]


class _Result(ctypes.Structure):
    _fields_ = [("outcome", ctypes.c_int32), ("reserved", ctypes.c_uint32),
                ("bytes", ctypes.c_uint64)]


_STATS = ("blocks", "bytes", "bytes_cap", "bytes_live", "block_bytes_max", "memory_bytes",
          "bytes_written", "bytes_read", "evicted", "damaged", "puts", "puts_present",
          "puts_failed", "hits", "misses", "gets_failed", "removed", "disk_full", "puts_lost",
          "memory_hits", "clients")
_USAGE = ("blocks", "bytes_live", "bytes")


class _Stats(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in _STATS]


class _Usage(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in _USAGE]


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    handle, error = ctypes.c_void_p, ctypes.POINTER(_Error)
    number = ctypes.POINTER(ctypes.c_uint64)
    count = ctypes.c_size_t
    signatures = {
        "open": [ctypes.POINTER(_Options), ctypes.POINTER(handle), error],
        "close": [handle, error],
        "put": [handle, ctypes.c_char_p, ctypes.POINTER(_Block), count, number, error],
        "get": [handle, ctypes.c_char_p, ctypes.POINTER(_Block), count, number, error],
        "exists": [handle, ctypes.c_char_p, ctypes.POINTER(_Key), count, number, error],
        "remove": [handle, ctypes.c_char_p, ctypes.POINTER(_Key), count, number, error],
        "erase": [handle, ctypes.c_char_p, number, error],
        "flush": [handle, number, error],
        "set_limits": [handle, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, error],
        "get_usage": [handle, ctypes.c_char_p, ctypes.POINTER(_Usage), error],
        "wait": [handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(_Result), count, error],
        "next": [handle, number, ctypes.POINTER(_Result), count, ctypes.POINTER(count), error],
        "get_stats": [handle, ctypes.POINTER(_Stats), error],
        "event_fd": [handle],
        "free": [handle],
    }
    for name, arguments in signatures.items():
        function = getattr(library, "quire_store_" + name)
        function.argtypes = arguments
        function.restype = None if name == "free" else ctypes.c_int32
    library.quire_code_name.argtypes = [ctypes.c_int32]
    library.quire_code_name.restype = ctypes.c_char_p
    return library


_loaded: ctypes.CDLL | None = None
_loading = threading.Lock()


def _load() -> ctypes.CDLL:
    global _loaded
    with _loading:
        if _loaded is None:
            _loaded = _declare(_library.load())
        return _loaded


def _key_bytes(key: Key) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"a key is a text or bytes, not {type(key).__name__}")


class _Batch:
    """What a batch under way uses, so that nothing of it moves or goes before its end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.number = 0  # once the store has it
        self.keys: list[bytes] = []
        self.pinned: list[Pinned] = []

    def release(self) -> None:
        for pinned in self.pinned:
            pinned.release()
        self.pinned.clear()


class BlockStore:
    """A store in a directory. Any thread may call any method; other threads of Python run
    meanwhile.

    Keys are texts or bytes, blocks anything with a buffer, and torch tensors in host memory. A key
    names its bytes for good: `put` leaves a block that is there as it is.

    `put`, `get` and the like wait. `submit_*` return the number of a batch at once; take its
    results with `wait`, or with `drain` when `event_fd` is readable. Use one of the two ways on one
    store.
    """

    @former(commit_interval_us="commit_interval_s")
    def __init__(self, directory: str | bytes | os.PathLike[Any], *, cap_bytes: int = 8 << 30,
                 block_bytes_max: int = 0, commit_interval_s: float = 0.02,
                 scrub_bytes_per_s: int = 8 << 20, disk_requests_max: int = 64,
                 memory_bytes: int = 256 << 20, accepts_puts: bool = False, namespace: str = "",
                 keys: str | os.PathLike[str] | None = None, keys_command: str = "",
                 key: bytes | None = None) -> None:
        """Opens the store in a directory, or makes one; "unix:PATH": the store that another process
        serves at this socket. Everything but namespace is its owner's choice then, and keys are refused.

        cap_bytes: of all its files together, never exceeded. block_bytes_max: longest block; 0: 64
        MiB, or a sixteenth of the cap where that is less. commit_interval_s: what a crash may lose.
        scrub_bytes_per_s: read again in the background to find damage; 0: nothing. memory_bytes:
        of the blocks that were put or read last, which are kept in memory too; 0: none.
        accepts_puts: a put ends when its block can be found, in memory if it has room there; when a
        later `flush` has returned it is durable, or counted in stats()["puts_lost"]. namespace:
        where calls that name none go.
        keys, keys_command, key: one of them encrypts the directory, or opens an encrypted one: a
        file of 32 bytes that its owner alone may read, a command that wraps and unwraps, or 32 bytes
        (docs/encryption.md).

        Raises: InvalidArgumentError, also for keys that are not the directory's; BusyError another
        process has it, or serves as many clients as it may; UnsupportedError a newer version wrote
        it; NotFoundError no such socket; NoSpaceError; IoError.
        """
        commit_interval_us = int(commit_interval_s * 1e6)
        path = os.fsencode(directory)
        if b"\0" in path:
            raise InvalidArgumentError(f"{directory!r}: a path with a NUL")
        if min(cap_bytes, commit_interval_us, disk_requests_max) < 1:
            raise InvalidArgumentError("a cap, interval or number of requests below 1")
        if memory_bytes < 0:
            raise InvalidArgumentError(f"memory_bytes is {memory_bytes}")
        if key is not None and len(key) != 32:
            raise InvalidArgumentError(f"a key of {len(key)} bytes, not 32")
        self._library = _load()
        self._namespace = namespace
        self._directory = os.fsdecode(path)
        self._process = os.getpid()
        self._closed = False
        self._batches: dict[int, _Batch] = {}
        self._left: list[int] = []  # batches that an interrupted call waited for
        self._lock = threading.Lock()
        error = _Error()
        options = _Options(size=ctypes.sizeof(_Options), directory=path,
                           bytes_cap=cap_bytes, block_bytes_max=block_bytes_max,
                           commit_interval_us=commit_interval_us,
                           scrub_bytes_per_s=scrub_bytes_per_s or FOREVER,
                           disk_requests_max=disk_requests_max,
                           accepts_puts=int(accepts_puts), memory_bytes=memory_bytes or FOREVER,
                           keys_file=None if keys is None else os.fsencode(keys),
                           keys_command=keys_command.encode(), key=key)
        handle = ctypes.c_void_p()
        self._check(self._library.quire_store_open(ctypes.byref(options), ctypes.byref(handle),
                                                   ctypes.byref(error)), error)
        self._handle = handle
        # Frees the handle when the object goes; that waits for what is under way, and the batches'
        # bytes stay until then. At the end of the program other threads may be in a call, so the
        # store is closed only.
        self._free = weakref.finalize(self, _end, self._library, handle, self._batches,
                                      self._process)
        self._free.atexit = False
        _open_stores.add(self)

    # -- Blocks, waiting ---------------------------------------------------------------------------

    def put(self, key: Key, data: Any, *, namespace: str | None = None) -> bool:
        """Writes one block, durable when it returns, unless the store accepts_puts. False: it was
        there and stays as it is.

        Raises: TooLargeError; NoSpaceError; IoError; InvalidArgumentError the store is closed.
        After Ctrl-C it goes on behind the caller's back."""
        return self.put_many([key], [data], namespace=namespace)[0]

    def put_many(self, keys: Sequence[Key], blocks: Sequence[Any], *,
                 namespace: str | None = None) -> list[bool]:
        """As `put`, for many at once; raises for the first that failed when all have ended."""
        results = self._finish(self.submit_put(keys, blocks, namespace=namespace))
        for key, result in zip(keys, results):
            if result.outcome != Outcome.PRESENT:
                _raise_for(key, result)
        return [result.outcome == Outcome.OK for result in results]

    def get(self, key: Key, *, namespace: str | None = None) -> bytes | None:
        """One block, or None where there is none (or a damaged one).

        Raises: IoError; TooLargeError; InvalidArgumentError the store is closed."""
        found = self._finish(self.submit_exists([key], namespace=namespace))[0]
        if found.outcome == Outcome.ABSENT:
            return None
        _raise_for(key, found)
        out = bytearray(found.length)
        length = self.get_into(key, out, namespace=namespace)
        return None if length is None else bytes(memoryview(out)[:length])

    def get_into(self, key: Key, out: Any, *, namespace: str | None = None) -> int | None:
        """Reads one block into a writable buffer; its length, or None where there is none.

        Raises: InvalidArgumentError the buffer is too small, or the store is closed; IoError;
        TooLargeError."""
        result = self._finish(self.submit_get([key], [out], namespace=namespace))[0]
        if result.outcome in (Outcome.ABSENT, Outcome.DAMAGED):
            return None
        _raise_for(key, result)
        return result.length

    def exists(self, key: Key, *, namespace: str | None = None) -> bool:
        """Whether the index has a block; reading it may still find it damaged."""
        result = self._finish(self.submit_exists([key], namespace=namespace))[0]
        if result.outcome != Outcome.ABSENT:
            _raise_for(key, result)
        return result.outcome == Outcome.OK

    def remove(self, key: Key, *, namespace: str | None = None) -> bool:
        """Forgets one block for good. False: it was not there.

        Raises: IoError; InvalidArgumentError the store is closed."""
        result = self._finish(self.submit_remove([key], namespace=namespace))[0]
        if result.outcome != Outcome.ABSENT:
            _raise_for(key, result)
        return result.outcome == Outcome.OK

    def erase(self, namespace: str) -> None:
        """Forgets everything in a namespace, for good; durable when it returns. After a `flush` its
        bytes are overwritten.

        Raises: IoError not durable, though nothing of it is found until a restart;
        InvalidArgumentError the store is closed."""
        result = self._finish(self.submit_erase(namespace))[0]
        if result.outcome != Outcome.OK:
            code, said = _FAILURES[result.outcome]
            raise BY_CODE[code](f"namespace {namespace[:80]!r} {said}")

    def flush(self) -> None:
        """Returns when everything handed in before is durable or failed."""
        self._finish(self.submit_flush())

    # -- Batches -----------------------------------------------------------------------------------

    def submit_put(self, keys: Sequence[Key], blocks: Sequence[Any], *,
                   namespace: str | None = None) -> int:
        """Hands in blocks to write; their bytes must not change until the batch ends. (Blocks that
        do not lie in C order are copied here.)"""
        return self._submit_blocks("put", keys, blocks, namespace, writable=False)

    def submit_get(self, keys: Sequence[Key], outs: Sequence[Any], *,
                   namespace: str | None = None) -> int:
        """Hands in writable buffers to read blocks into. Only with Outcome.OK a buffer holds the
        block, in its first `length` bytes; else nothing in it means anything."""
        return self._submit_blocks("get", keys, outs, namespace, writable=True)

    def submit_exists(self, keys: Sequence[Key], *, namespace: str | None = None) -> int:
        return self._submit_keys("exists", keys, namespace)

    def submit_remove(self, keys: Sequence[Key], *, namespace: str | None = None) -> int:
        return self._submit_keys("remove", keys, namespace)

    def submit_erase(self, namespace: str) -> int:
        name = self._name(namespace)
        return self._submit_one(1, lambda *out: self._library.quire_store_erase(
            self._here(), name, *out))

    def submit_flush(self) -> int:
        return self._submit_one(0, lambda *out: self._library.quire_store_flush(
            self._here(), *out))

    def wait(self, batch: int, timeout_s: float | None = None) -> list[Result]:
        """Waits for the end of a batch and takes its results, in the order of its blocks.

        Raises: DeadlineError, and it goes on; NotFoundError no such batch, or it was taken."""
        handle = self._here()
        with self._lock:
            known = self._batches.get(batch)
        if known is None:
            raise NotFoundError(f"no batch {batch}, or it was taken")
        results, error = (_Result * known.count)(), _Error()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _WAIT_STEP_S if end is None else max(0.0, end - time.monotonic())
            step_s = min(left_s, _WAIT_STEP_S)
            code = self._library.quire_store_wait(handle, batch, int(step_s * 1e6), results,
                                                  known.count, ctypes.byref(error))
            if code != _DEADLINE or (end is not None and left_s <= step_s):
                break
        self._check(code, error)
        return self._take(batch, results)

    def drain(self) -> list[tuple[int, list[Result]]]:
        """Takes the batches that ended, as (number, results), in the order in which they ended."""
        drained: list[tuple[int, list[Result]]] = []
        number, count, error = ctypes.c_uint64(), ctypes.c_size_t(), _Error()
        handle = self._here()
        with self._lock:
            longest = max((batch.count for batch in self._batches.values()), default=0)
        results = (_Result * longest)()
        while True:
            with self._lock:  # a batch is known before it can be taken
                if any(batch.count > longest for batch in self._batches.values()):
                    longest = max(batch.count for batch in self._batches.values())
                    results = (_Result * longest)()
                self._check(self._library.quire_store_next(
                    handle, ctypes.byref(number), results, longest, ctypes.byref(count),
                    ctypes.byref(error)), error)
            if number.value == 0:
                return drained
            drained.append((number.value, self._take(number.value, results[:count.value])))

    def event_fd(self) -> int:
        """A descriptor for poll and event loops: readable when `drain` may have something. It is
        the store's: do not read or close it."""
        return int(self._library.quire_store_event_fd(self._here()))

    # -- The store ---------------------------------------------------------------------------------

    def stats(self) -> BlockStoreStats:
        """Numbers of the store; quire.h says what each one is."""
        stats, error = _Stats(size=ctypes.sizeof(_Stats)), _Error()
        self._check(self._library.quire_store_get_stats(self._here(), ctypes.byref(stats),
                                                        ctypes.byref(error)), error)
        return cast(BlockStoreStats, {name: getattr(stats, name) for name in _STATS})

    def set_limits(self, namespace: str, *, quota_bytes: int | None = None,
                   floor_bytes: int = 0) -> None:
        """Limits a namespace, as long as its directory stays open: it has at most quota_bytes of
        files (None: no limit), and others leave it floor_bytes. Both are rounded down to what the
        store recycles at once, twice block_bytes_max by and large.

        Raises: InvalidArgumentError; IoError, DeadlineError the process that serves the store does
        not answer."""
        if (quota_bytes is not None and quota_bytes < 1) or floor_bytes < 0:
            raise InvalidArgumentError("a quota below 1, or a floor below 0")
        error = _Error()
        self._check(self._library.quire_store_set_limits(
            self._here(), self._name(namespace), quota_bytes or 0, floor_bytes,
            ctypes.byref(error)), error)

    def usage(self, namespace: str) -> NamespaceUsage:
        """What one namespace has on disk. Raises: as set_limits."""
        usage, error = _Usage(size=ctypes.sizeof(_Usage)), _Error()
        self._check(self._library.quire_store_get_usage(
            self._here(), self._name(namespace), ctypes.byref(usage), ctypes.byref(error)), error)
        return cast(NamespaceUsage, {name: getattr(usage, name) for name in _USAGE})

    def close(self) -> None:
        """Ends everything that was handed in, makes it durable and lets go of the directory. Other
        calls may go on meanwhile; what they hand in from now on ends with Outcome.CLOSED. Batches
        that ended can still be taken. In a forked child it does nothing."""
        if os.getpid() != self._process:
            return
        error = _Error()
        self._check(self._library.quire_store_close(self._handle, ctypes.byref(error)), error)
        self._closed = True

    def __enter__(self) -> "BlockStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed or os.getpid() != self._process:
            state = "closed" if self._closed else "of another process"
        else:
            stats = self.stats()
            state = f"{stats['blocks']} blocks, {stats['bytes']} of {stats['bytes_cap']} bytes"
        return f"<quire.store.BlockStore: {self._directory!r}, {state}>"

    # -- Inside ------------------------------------------------------------------------------------

    def _name(self, namespace: str | None) -> bytes:
        name = (self._namespace if namespace is None else namespace).encode()
        if b"\0" in name:
            raise InvalidArgumentError("a namespace with a NUL")
        return name

    def _here(self) -> ctypes.c_void_p:
        """The handle, unless this is a process that was forked from the store's."""
        if os.getpid() != self._process:
            raise InvalidArgumentError(
                f"the store in {self._directory!r} is of another process, which this was forked "
                'from: open one here, or start processes by "spawn" or "forkserver"')
        return self._handle

    def _finish(self, batch: int) -> list[Result]:
        """As wait; where that is interrupted, the batch's results are dropped when it ends."""
        try:
            return self.wait(batch)
        except BaseException:
            with self._lock:
                self._left.append(batch)
            raise

    def _drop_left(self) -> None:
        with self._lock:
            left, self._left = self._left, []
        for batch in left:
            try:
                self.wait(batch, 0)
            except DeadlineError:
                self._left.append(batch)
            except NotFoundError:  # it ended just when its caller was interrupted
                self._take(batch, ())

    def _check(self, code: int, error: _Error) -> None:
        if code == 0:
            return
        name = self._library.quire_code_name(code).decode()
        raise BY_CODE.get(name, Error)(error.message.decode(errors="replace"))

    def _submit_one(self, results: int, call: Callable[..., int]) -> int:
        number, error = ctypes.c_uint64(), _Error()
        with self._lock:  # no other thread takes the batch before it is known
            self._check(call(ctypes.byref(number), ctypes.byref(error)), error)
            self._batches[number.value] = _Batch(results)
        return number.value

    def _submit_blocks(self, call: str, keys: Sequence[Key], buffers: Sequence[Any],
                       namespace: str | None, writable: bool) -> int:
        if len(keys) != len(buffers):
            raise InvalidArgumentError(f"{len(keys)} keys, {len(buffers)} blocks")
        batch = _Batch(len(keys))
        try:
            blocks = (_Block * len(keys))()
            for block, key, buffer in zip(blocks, keys, buffers):
                block.key, block.key_bytes = self._keep(batch, key)
                pinned = Pinned(buffer, writable)
                batch.pinned.append(pinned)
                block.data, block.data_bytes = pinned.address, pinned.length
            return self._hand_in(call, batch, blocks, namespace)
        except BaseException:
            if batch.number:
                self._left.append(batch.number)  # the store uses its memory until it ends
            else:
                batch.release()
            raise

    def _submit_keys(self, call: str, keys: Iterable[Key], namespace: str | None) -> int:
        keys = list(keys)
        batch = _Batch(len(keys))
        blocks = (_Key * len(keys))()
        for block, key in zip(blocks, keys):
            block.key, block.key_bytes = self._keep(batch, key)
        return self._hand_in(call, batch, blocks, namespace)

    @staticmethod
    def _keep(batch: _Batch, key: Key) -> tuple[int | None, int]:
        data = _key_bytes(key)
        batch.keys.append(data)
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value, len(data)

    def _hand_in(self, call: str, batch: _Batch, blocks: Any, namespace: str | None) -> int:
        number, error = ctypes.c_uint64(), _Error()
        name = self._name(namespace)
        function = getattr(self._library, "quire_store_" + call)
        handle = self._here()
        if self._left:
            self._drop_left()
        with self._lock:  # no other thread takes the batch before it is known
            try:
                code = function(handle, name, blocks, batch.count, ctypes.byref(number),
                                ctypes.byref(error))
            finally:  # Ctrl-C is heard when a call returns, and the store may have the batch by then
                batch.number = number.value
                if batch.number:
                    self._batches[batch.number] = batch
            self._check(code, error)
            batch.keys.clear()  # read during the call only
        return number.value

    def _take(self, number: int, results: Iterable[_Result]) -> list[Result]:
        with self._lock:
            batch = self._batches.pop(number, None)
        if batch is not None:
            batch.release()
        return [Result(Outcome(result.outcome), result.bytes) for result in results]


def _raise_for(key: Key, result: Result) -> None:
    if result.outcome != Outcome.OK:
        code, said = _FAILURES[result.outcome]
        raise BY_CODE[code](f"block {_key_bytes(key)[:80]!r} {said}")


_open_stores: weakref.WeakSet[BlockStore] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for opened in list(_open_stores):
        opened.close()


def _end(library: ctypes.CDLL, handle: ctypes.c_void_p, batches: dict[int, _Batch],
         process: int) -> None:
    if os.getpid() != process:
        return  # a fork: the store's thread is in the other process
    library.quire_store_free(handle)
    for batch in batches.values():
        batch.release()
