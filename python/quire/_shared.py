"""One DiskStore for each directory, for all of this process that ask for it by its path."""

from __future__ import annotations

import contextlib
import os
import threading

from ._errors import InvalidArgumentError, IoError, NoSpaceError
from ._quire import DiskStore


class _Shared:
    def __init__(self, store: DiskStore, cap_bytes: int):
        self.store, self.cap_bytes, self.leases = store, cap_bytes, 0


_open: dict[tuple[int, str], _Shared] = {}  # by process, as a forked child has a copy, and directory
_lock = threading.Lock()


class Lease:
    """Keeps the store of a directory open, for who made it, until `end`."""

    def __init__(self, directory: str | os.PathLike[str], cap_bytes: int):
        """Raises: as DiskStore; InvalidArgumentError it is open here with another cap."""
        self._key = (os.getpid(), os.path.realpath(directory))
        with _lock:
            shared = _open.get(self._key)
            if shared is None:
                shared = _Shared(DiskStore(directory, cap_bytes=cap_bytes), cap_bytes)
                _open[self._key] = shared
            if shared.cap_bytes != cap_bytes:
                raise InvalidArgumentError(
                    f"the store in {self._key[1]!r} is open in this process with a cap of "
                    f"{shared.cap_bytes} bytes, not {cap_bytes}: close what uses it first")
            if shared.leases > 0:  # what others published so far is there for this one
                with contextlib.suppress(IoError, NoSpaceError):
                    shared.store.flush()
            shared.leases += 1
        self.store = shared.store
        self._ended = False

    def end(self) -> None:
        """The last one flushes and closes the store; twice is once. Raises: IoError,
        NoSpaceError."""
        with _lock:
            if self._ended:
                return
            self._ended = True
            shared = _open[self._key]
            shared.leases -= 1
            if shared.leases > 0:
                return
            del _open[self._key]
        self.store.close()
