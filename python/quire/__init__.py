"""Quire: a KV cache for LLM inference, paged, shared by prefix, within a hard budget.

    cache = quire.Cache(layers=2, kv_heads=2, head_dim=64, hot_bytes=64 << 20)
    plan = cache.acquire(prompt, identity)          # pins the longest cached prefix
    sequence = cache.open(plan)                     # starts with it, has room for the rest
    sequence.append(layer, key, value)              # [tokens, heads, dim], NumPy or torch
    out = attention.attend(layer, sequence, queries)
    sequence.commit(tokens)                         # visible; whole blocks are shared

Threads: objects may be used from any thread; the GIL is let go while the engine works. Failures are
exceptions of ``quire.Error``, and the objects are as they were before the call.

``quire.engine`` runs models on the cache, ``quire.transformers`` puts it under Hugging Face models, ``quire.store`` is a store of opaque
blocks, ``quire.lmcache`` puts that under LMCache. Each is imported where it is first named.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from ._aio import load_async
from ._arrays import ReadOnlyArray
from ._errors import (
    BusyError,
    CancelledError,
    CorruptError,
    DeadlineError,
    Error,
    InvalidArgumentError,
    IoError,
    NoSpaceError,
    NotFoundError,
    TooLargeError,
    UnsupportedError,
)
from ._quire import (
    CODECS,
    Attention,
    Cache,
    DiskStore,
    Identity,
    LayerGroup,
    Owner,
    Plan,
    Registry,
    Sequence,
    SharedBudget,
    Ticket,
    View,
    __version__,
    gather_padded,
)
from ._types import (
    BlockStoreStats,
    CacheEntry,
    CacheStats,
    Codecs,
    DiskStoreStats,
    EraseReport,
    FreeRuns,
    LoadProgress,
    OwnerStats,
    RegistryStats,
    SequenceStats,
    SlotStats,
    TenantStats,
)

if TYPE_CHECKING:
    from . import engine, llama_cpp, lmcache, store, transformers, vllm

_MODULES = ("engine", "llama_cpp", "lmcache", "store", "transformers", "vllm")


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


__all__ = [
    "Attention",
    "BlockStoreStats",
    "BusyError",
    "CODECS",
    "Cache",
    "CacheEntry",
    "CacheStats",
    "CancelledError",
    "Codecs",
    "CorruptError",
    "DeadlineError",
    "DiskStore",
    "DiskStoreStats",
    "EraseReport",
    "Error",
    "FreeRuns",
    "Identity",
    "InvalidArgumentError",
    "IoError",
    "LayerGroup",
    "LoadProgress",
    "NoSpaceError",
    "NotFoundError",
    "Owner",
    "OwnerStats",
    "Plan",
    "ReadOnlyArray",
    "Registry",
    "RegistryStats",
    "Sequence",
    "SequenceStats",
    "SharedBudget",
    "SlotStats",
    "TenantStats",
    "Ticket",
    "TooLargeError",
    "UnsupportedError",
    "View",
    "__version__",
    "gather_padded",
    "load_async",
]
