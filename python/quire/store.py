"""A store of opaque blocks on a local disk: bytes by (namespace, key), under a hard cap, found
again after a restart. What it promises is in docs/embedding.md ("A store of blocks") and
docs/durability.md.

    with quire.store.BlockStore("DIR", cap_bytes=8 << 30) as store:
        store.put("key", data)           # durable when it returns
        data = store.get("key")          # bytes, or None
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from quire import _library

FOREVER = 2**64 - 1

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


class Result(NamedTuple):
    """The end of one block's request. `length`: of the block that was read; for `exists`, most that
    it may have."""

    outcome: Outcome
    length: int


class StoreError(Exception):
    """A failure of the store: `code` is its name, for example "busy"."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class DeadlineError(StoreError, TimeoutError):
    """A batch did not end in time; it goes on."""


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("message", ctypes.c_char * 508)]


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("directory", ctypes.c_char_p),
                ("bytes_cap", ctypes.c_uint64), ("block_bytes_max", ctypes.c_uint64),
                ("commit_interval_us", ctypes.c_uint64), ("scrub_bytes_per_s", ctypes.c_uint64),
                ("disk_requests_max", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


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
          "puts_failed", "hits", "misses", "gets_failed", "removed", "disk_full")


class _Stats(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in _STATS]


class _Buffer(ctypes.Structure):  # Py_buffer
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_Buffer)]
_release_buffer.restype = None
_WRITABLE = 1  # PyBUF_WRITABLE; without it the bytes need only be contiguous


class _Pinned:
    """Bytes of a Python object that stay where they are until the store has ended with them."""

    def __init__(self, source: Any, writable: bool) -> None:
        self._buffer = _Buffer()
        _get_buffer(source, ctypes.byref(self._buffer), _WRITABLE if writable else 0)
        self.address = self._buffer.buf
        self.length = self._buffer.len

    def release(self) -> None:
        _release_buffer(ctypes.byref(self._buffer))


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
        "flush": [handle, number, error],
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
    return key.encode() if isinstance(key, str) else bytes(key)


class _Batch:
    """What a batch under way uses, so that nothing of it moves or goes before its end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys: list[bytes] = []
        self.pinned: list[_Pinned] = []

    def release(self) -> None:
        for pinned in self.pinned:
            pinned.release()
        self.pinned.clear()


class BlockStore:
    """A store in a directory. Any thread may call any method; other threads of Python run
    meanwhile.

    Keys are texts or bytes, blocks anything with a contiguous buffer. A key names its bytes for
    good: `put` leaves a block that is there as it is.

    `put`, `get` and the like wait. `submit_*` return the number of a batch at once; take its
    results with `wait`, or with `drain` when `event_fd` is readable. Use one of the two ways on one
    store.
    """

    def __init__(self, directory: Any, *, cap_bytes: int = 8 << 30, block_bytes_max: int = 0,
                 commit_interval_us: int = 20_000, scrub_bytes_per_s: int = 8 << 20,
                 disk_requests_max: int = 64, namespace: str = "") -> None:
        """Opens the store in a directory, or makes one.

        cap_bytes: of all its files together, never exceeded. block_bytes_max: longest block; 0: 64
        MiB, or a sixteenth of the cap where that is less. commit_interval_us: what a crash may
        lose. scrub_bytes_per_s: read again in the background to find damage; 0: nothing. namespace:
        where calls that name none go.

        Raises StoreError: invalid_argument, busy (another process has it), unsupported, no_space,
        io.
        """
        self._library = _load()
        self._namespace = namespace
        self._batches: dict[int, _Batch] = {}
        self._lock = threading.Lock()
        error = _Error()
        options = _Options(size=ctypes.sizeof(_Options), directory=str(directory).encode(),
                           bytes_cap=cap_bytes, block_bytes_max=block_bytes_max,
                           commit_interval_us=commit_interval_us,
                           scrub_bytes_per_s=scrub_bytes_per_s or FOREVER,
                           disk_requests_max=disk_requests_max)
        if min(cap_bytes, commit_interval_us, disk_requests_max) < 1:
            raise StoreError("invalid_argument", "a cap, interval or number of requests below 1")
        handle = ctypes.c_void_p()
        self._check(self._library.quire_store_open(ctypes.byref(options), ctypes.byref(handle),
                                                   ctypes.byref(error)), error)
        self._handle = handle
        # Frees the handle when the object goes or the program ends; that waits for what is under
        # way, and the batches' bytes stay until then.
        self._free = weakref.finalize(self, _end, self._library, handle, self._batches,
                                      os.getpid())

    # -- Blocks, waiting ---------------------------------------------------------------------------

    def put(self, key: Key, data: Any, *, namespace: str | None = None) -> bool:
        """Writes one block, durable when it returns. False: it was there and stays as it is.

        Raises StoreError: too_large, no_space, io, closed."""
        return self.put_many([key], [data], namespace=namespace)[0]

    def put_many(self, keys: Sequence[Key], blocks: Sequence[Any], *,
                 namespace: str | None = None) -> list[bool]:
        """As `put`, for many at once; raises for the first that failed when all have ended."""
        results = self.wait(self.submit_put(keys, blocks, namespace=namespace))
        for result in results:
            if result.outcome not in (Outcome.OK, Outcome.PRESENT):
                raise StoreError(result.outcome.name.lower(), "a block was not stored")
        return [result.outcome == Outcome.OK for result in results]

    def get(self, key: Key, *, namespace: str | None = None) -> bytes | None:
        """One block, or None where there is none (or a damaged one).

        Raises StoreError: io, too_large, closed."""
        found = self.wait(self.submit_exists([key], namespace=namespace))[0]
        if found.outcome == Outcome.ABSENT:
            return None
        _raise_for(found)
        out = bytearray(found.length)
        length = self.get_into(key, out, namespace=namespace)
        return None if length is None else bytes(memoryview(out)[:length])

    def get_into(self, key: Key, out: Any, *, namespace: str | None = None) -> int | None:
        """Reads one block into a writable buffer; its length, or None where there is none.

        Raises StoreError: too_small (the buffer), io, too_large, closed."""
        result = self.wait(self.submit_get([key], [out], namespace=namespace))[0]
        if result.outcome in (Outcome.ABSENT, Outcome.DAMAGED):
            return None
        _raise_for(result)
        return result.length

    def exists(self, key: Key, *, namespace: str | None = None) -> bool:
        """Whether the index has a block; reading it may still find it damaged."""
        result = self.wait(self.submit_exists([key], namespace=namespace))[0]
        if result.outcome != Outcome.ABSENT:
            _raise_for(result)
        return result.outcome == Outcome.OK

    def remove(self, key: Key, *, namespace: str | None = None) -> bool:
        """Forgets one block for good. False: it was not there.

        Raises StoreError: io, closed."""
        result = self.wait(self.submit_remove([key], namespace=namespace))[0]
        if result.outcome != Outcome.ABSENT:
            _raise_for(result)
        return result.outcome == Outcome.OK

    def flush(self) -> None:
        """Returns when everything handed in before is durable or failed."""
        self.wait(self.submit_flush())

    # -- Batches -----------------------------------------------------------------------------------

    def submit_put(self, keys: Sequence[Key], blocks: Sequence[Any], *,
                   namespace: str | None = None) -> int:
        """Hands in blocks to write; their bytes must not change until the batch ends."""
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

    def submit_flush(self) -> int:
        number, error = ctypes.c_uint64(), _Error()
        with self._lock:
            self._check(self._library.quire_store_flush(self._handle, ctypes.byref(number),
                                                        ctypes.byref(error)), error)
            self._batches[number.value] = _Batch(0)
        return number.value

    def wait(self, batch: int, timeout_s: float | None = None) -> list[Result]:
        """Waits for the end of a batch and takes its results, in the order of its blocks.

        Raises DeadlineError; StoreError not_found where there is no such batch, or it was taken."""
        with self._lock:
            known = self._batches.get(batch)
        if known is None:
            raise StoreError("not_found", f"no batch {batch}, or it was taken")
        timeout_us = FOREVER if timeout_s is None else max(0, int(timeout_s * 1e6))
        results, error = (_Result * known.count)(), _Error()
        self._check(self._library.quire_store_wait(self._handle, batch, timeout_us, results,
                                                   known.count, ctypes.byref(error)), error)
        return self._take(batch, results)

    def drain(self) -> list[tuple[int, list[Result]]]:
        """Takes the batches that ended, as (number, results), in the order in which they ended."""
        drained: list[tuple[int, list[Result]]] = []
        number, count, error = ctypes.c_uint64(), ctypes.c_size_t(), _Error()
        with self._lock:
            longest = max((batch.count for batch in self._batches.values()), default=0)
        results = (_Result * longest)()
        while True:
            with self._lock:  # a batch is known before it can be taken
                if any(batch.count > longest for batch in self._batches.values()):
                    longest = max(batch.count for batch in self._batches.values())
                    results = (_Result * longest)()
                self._check(self._library.quire_store_next(
                    self._handle, ctypes.byref(number), results, longest, ctypes.byref(count),
                    ctypes.byref(error)), error)
            if number.value == 0:
                return drained
            drained.append((number.value, self._take(number.value, results[:count.value])))

    def event_fd(self) -> int:
        """A descriptor for poll and event loops: readable when `drain` may have something. It is
        the store's: do not read or close it."""
        return int(self._library.quire_store_event_fd(self._handle))

    # -- The store ---------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Numbers of the store; quire.h says what each one is."""
        stats, error = _Stats(size=ctypes.sizeof(_Stats)), _Error()
        self._check(self._library.quire_store_get_stats(self._handle, ctypes.byref(stats),
                                                        ctypes.byref(error)), error)
        return {name: getattr(stats, name) for name in _STATS}

    def close(self) -> None:
        """Ends everything that was handed in, makes it durable and lets go of the directory. Other
        calls may go on meanwhile; what they hand in from now on ends with Outcome.CLOSED. Batches
        that ended can still be taken."""
        error = _Error()
        self._check(self._library.quire_store_close(self._handle, ctypes.byref(error)), error)

    def __enter__(self) -> "BlockStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- Inside ------------------------------------------------------------------------------------

    def _name(self, namespace: str | None) -> bytes:
        name = (self._namespace if namespace is None else namespace).encode()
        if b"\0" in name:
            raise StoreError("invalid_argument", "a namespace with a NUL")
        return name

    def _check(self, code: int, error: _Error) -> None:
        if code == 0:
            return
        name = self._library.quire_code_name(code).decode()
        kind = DeadlineError if name == "deadline" else StoreError
        raise kind(name, error.message.decode(errors="replace"))

    def _submit_blocks(self, call: str, keys: Sequence[Key], buffers: Sequence[Any],
                       namespace: str | None, writable: bool) -> int:
        if len(keys) != len(buffers):
            raise ValueError(f"{len(keys)} keys, {len(buffers)} blocks")
        batch = _Batch(len(keys))
        try:
            blocks = (_Block * len(keys))()
            for block, key, buffer in zip(blocks, keys, buffers):
                block.key, block.key_bytes = self._keep(batch, key)
                pinned = _Pinned(buffer, writable)
                batch.pinned.append(pinned)
                block.data, block.data_bytes = pinned.address, pinned.length
            return self._hand_in(call, batch, blocks, namespace)
        except BaseException:
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
        with self._lock:  # nobody takes the batch before it is known
            self._check(function(self._handle, name, blocks, batch.count, ctypes.byref(number),
                                 ctypes.byref(error)), error)
            batch.keys.clear()  # read during the call only
            self._batches[number.value] = batch
        return number.value

    def _take(self, number: int, results: Iterable[_Result]) -> list[Result]:
        with self._lock:
            batch = self._batches.pop(number)
        batch.release()
        return [Result(Outcome(result.outcome), result.bytes) for result in results]


def _raise_for(result: Result) -> None:
    if result.outcome != Outcome.OK:
        raise StoreError(result.outcome.name.lower(), "the block could not be read or changed")


def _end(library: ctypes.CDLL, handle: ctypes.c_void_p, batches: dict[int, _Batch],
         process: int) -> None:
    if os.getpid() != process:
        return  # a fork: the store's thread is in the other process
    library.quire_store_free(handle)
    for batch in batches.values():
        batch.release()
