"""SGLang's hierarchical cache on a quire.store.BlockStore: pages of K and V as its host pool has
them, found again after a restart and by other engines. docs/adapters/sglang.md.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "quire", "module_path": "quire.sglang",
        "class_name": "QuireHiCacheStorage", "interface_v1": 1, "store": "unix:/run/quire/store"}'
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName

from quire._errors import Error, InvalidArgumentError, UnsupportedError
from quire._warnings import Warnings
from quire._weights import identity_of, process_start_s
from quire.store import ENCRYPTION, BlockStore, Outcome, Result

from . import _identity
from ._pages import Pages

__all__ = ["QuireHiCacheStorage"]

_log = logging.getLogger("quire.sglang")

_OPTIONS = {"store", "cap_bytes", *ENCRYPTION}
_SGLANGS_OPTIONS = {"backend_name", "module_path", "class_name", "interface_v1", "allocator"}
_PIECE_BYTES = 32 << 20  # that one call of the store reads or writes, and at least one record
_PIECES_MAX = 4  # at once

# A page and its records: its key, and views of its parts.
_Page = tuple[str, list[torch.Tensor]]


class QuireHiCacheStorage(HiCacheStorage):  # type: ignore[misc]
    """What `--hicache-storage-backend dynamic` names. Each rank of SGLang makes one.

    Options, beside those of SGLang: `store`, "unix:PATH" of a store that is served, or a directory
    where the engine has one rank; of such a directory `cap_bytes` of all files (8 GiB), and `keys` (a
    file) or `keys_command`, which encrypt it.

    A record is one part of a page: K or V of all layers of a rank, or MLA's latents. SGLang's
    threads read and write pages while it computes; calls return when their pages are moved.

    Raises, when the engine starts: UnsupportedError what cannot be kept, by its name;
    InvalidArgumentError the configuration; what BlockStore raises. Later a store that fails costs
    hits, never an answer.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self._config = storage_config
        self._runner = _identity.model_runner()
        _identity.check(storage_config, self._runner)
        self._warnings = Warnings(_log)
        self._namespace = ""  # nothing is found or stored
        self._store = _open_store(storage_config.extra_config or {}, self._runner.server_args)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pages = Pages(mem_pool_host)
        self._watch = _identity.watch(self._runner)
        self._watch.remember()
        facts, why_not = _identity.facts(self._config, self._runner, process_start_s())
        if why_not:
            _log.warning("quire: %s, so what it holds may not be what was loaded. Nothing is "
                         "found or stored until the engine starts again", why_not)
            return
        identity = identity_of([facts, self._pages.facts()])
        self._namespace = f"sglang {identity} {_identity.rank_of(self._config)}"

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV:
            raise UnsupportedError("quire.sglang does not keep models with a second cache "
                                   f"({host_pool_name}): sliding windows, states, drafts")

    # -- Pages of the host pool --------------------------------------------------------------------

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many pages from the first on are there."""
        if not self._is_usable():
            return 0
        with self._warnings.failing_softly("looking up pages"):
            records = [record for key in keys for record in self._records(key)]
            found = self._store.wait(self._store.submit_exists(records,
                                                               namespace=self._namespace))
            run = itertools.takewhile(lambda result: result.outcome == Outcome.OK, found)
            return len(list(run)) // self._pages.part_count
        return 0

    def batch_get_v1(self, keys: Sequence[str], host_indices: torch.Tensor,
                     extra_info: Any = None) -> list[bool]:
        """host_indices: rows of the pool, those of one page after the other."""
        return self._get(list(zip(keys, self._parts_at(host_indices), strict=True)))

    def batch_set_v1(self, keys: Sequence[str], host_indices: torch.Tensor,
                     extra_info: Any = None) -> list[bool]:
        return self._set(list(zip(keys, self._parts_at(host_indices), strict=True)))

    # -- Pages as tensors --------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: torch.Tensor | None = None,
            target_sizes: Any = None) -> torch.Tensor | None:
        """A page in one piece, in the tensor that is given or a new one; None: it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str],
                  target_locations: Sequence[torch.Tensor | None] | None = None,
                  target_sizes: Any = None) -> list[torch.Tensor | None]:
        pages = [self.mem_pool_host.get_dummy_flat_data_page() if page is None else page
                 for page in target_locations or [None] * len(keys)]
        got = self._get([(key, self._pages.split(page)) for key, page in zip(keys, pages)])
        return [page if ok else None for page, ok in zip(pages, got)]

    def set(self, key: str, value: torch.Tensor | None = None,
            target_location: torch.Tensor | None = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [target_location if value is None else value])

    def batch_set(self, keys: Sequence[str], values: Sequence[Any] | None = None,
                  target_locations: Sequence[Any] | None = None, target_sizes: Any = None) -> bool:
        pages = values if values is not None else target_locations or []
        return all(self._set([(key, self._pages.split(page.contiguous()))
                              for key, page in zip(keys, pages, strict=True)]))

    # -- The store ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forgets the pages of this rank for good."""
        if self._namespace:
            with self._warnings.failing_softly("erasing pages"):
                self._store.erase(self._namespace)

    def close(self) -> None:
        """Waits until what was handed in is durable."""
        with self._warnings.failing_softly("making pages durable"):
            self._store.flush()
            self._store.close()

    # -- Inside ------------------------------------------------------------------------------------

    def _is_usable(self) -> bool:
        if self._namespace and self._watch.changed(thorough=False):
            self._namespace = ""
            _log.warning("quire: the model's weights were changed. Nothing is found or stored "
                         "until the engine starts again")
        return bool(self._namespace)

    def _records(self, key: str) -> list[str]:
        return [f"{key}.{part}" for part in range(self._pages.part_count)]

    def _parts_at(self, host_indices: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        return (self._pages.parts(index) for index in host_indices[::self._pages.tokens].tolist())

    def _set(self, pages: list[_Page]) -> list[bool]:
        """Only what is not there is copied, where it must be, and handed to the store."""
        stored = [False] * len(pages)
        if not self._is_usable():
            return stored
        with self._warnings.failing_softly("saving pages"):
            names = [record for key, _ in pages for record in self._records(key)]
            parts = [part for _, page in pages for part in page]
            found = self._store.wait(self._store.submit_exists(names, namespace=self._namespace))
            ok = [result.outcome == Outcome.OK for result in found]

            def submit(piece: list[int]) -> int:
                return self._store.submit_put([names[at] for at in piece],
                                              [parts[at] for at in piece],
                                              namespace=self._namespace)

            missing = [at for at, is_there in enumerate(ok) if not is_there]
            for piece, results in self._transfer(missing, submit):
                for at, result in zip(piece, results):
                    ok[at] = result.outcome in (Outcome.OK, Outcome.PRESENT)
                    if not ok[at]:
                        self._warnings.tell("saving pages", result.outcome.name.lower())
            stored = self._whole(ok)
        return stored

    def _get(self, pages: list[_Page]) -> list[bool]:
        got = [False] * len(pages)
        if not self._is_usable():
            return got
        with self._warnings.failing_softly("loading pages"):
            names = [record for key, _ in pages for record in self._records(key)]
            parts = [part for _, page in pages for part in page]
            outs: dict[int, torch.Tensor] = {}
            ok = [False] * len(parts)

            def submit(piece: list[int]) -> int:
                for at in piece:
                    outs[at] = parts[at] if parts[at].is_contiguous() else (
                        torch.empty(parts[at].shape, dtype=parts[at].dtype))
                return self._store.submit_get([names[at] for at in piece],
                                              [outs[at] for at in piece],
                                              namespace=self._namespace)

            for piece, results in self._transfer(list(range(len(names))), submit):
                for at, result in zip(piece, results):
                    out = outs.pop(at)
                    ok[at] = self._is_whole(names[at], result)
                    if ok[at] and out is not parts[at]:
                        parts[at].copy_(out)
            got = self._whole(ok)
        return got

    def _is_whole(self, name: str, result: Result) -> bool:
        if result.outcome == Outcome.OK and result.length == self._pages.part_bytes:
            return True
        if result.outcome in (Outcome.OK, Outcome.TOO_SMALL):  # it is none of ours
            with self._warnings.failing_softly("removing a foreign page"):
                self._store.remove(name, namespace=self._namespace)
        return False

    def _whole(self, parts: list[bool]) -> list[bool]:
        """Of each page, whether all of its parts are."""
        count = self._pages.part_count
        return [all(parts[at:at + count]) for at in range(0, len(parts), count)]

    def _transfer(self, records: list[int], submit: Callable[[list[int]], int],
                  ) -> Iterator[tuple[list[int], list[Result]]]:
        """Hands records to the store in pieces, some at once. Whatever fails, none is under way
        afterwards: SGLang gives its pages to others then."""
        size = max(1, _PIECE_BYTES // self._pages.part_bytes)
        under_way: deque[tuple[list[int], int]] = deque()
        try:
            for begin in range(0, len(records), size):
                if len(under_way) == _PIECES_MAX:
                    piece, batch = under_way.popleft()
                    yield piece, self._store.wait(batch)
                piece = records[begin:begin + size]
                under_way.append((piece, submit(piece)))
            while under_way:
                piece, batch = under_way.popleft()
                yield piece, self._store.wait(batch)
        finally:
            for _, batch in under_way:
                self._store.wait(batch)


def _open_store(options: dict[str, Any], args: Any) -> BlockStore:
    unknown = set(options) - _OPTIONS - _SGLANGS_OPTIONS
    if unknown:
        raise InvalidArgumentError(f"extra config: {sorted(unknown)[0]} is not known")
    store = options.get("store")
    if not store:
        raise InvalidArgumentError(
            'extra config names no store: {"store": "unix:PATH"}, or a directory')
    encryption = {each: options[each] for each in ENCRYPTION if each in options}
    if store.startswith("unix:"):
        return BlockStore(store, **encryption)
    if args.tp_size * args.pp_size * args.dp_size > 1:
        raise InvalidArgumentError(
            f"store: {store!r} is a directory, which one process owns, but the engine has several "
            "ranks. Run `quire store serve DIR --socket PATH` and name unix:PATH")
    return BlockStore(store, cap_bytes=options.get("cap_bytes", 8 << 30), accepts_puts=True,
                      **encryption)
