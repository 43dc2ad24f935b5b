"""Quire: a KV cache for LLM inference, paged, shared by prefix, within a hard budget.

    cache = quire.Cache(layers=2, kv_heads=2, head_dim=64, hot_bytes=64 << 20)
    plan = cache.acquire(prompt, identity)          # pins the longest cached prefix
    sequence = cache.open(plan)                     # starts with it, has room for the rest
    sequence.append(layer, key, value)              # [tokens, heads, dim], NumPy or torch
    out = attention.attend(layer, sequence, queries)
    sequence.commit(tokens)                         # visible; whole blocks are shared

Threads: objects may be used from any thread; the GIL is let go while the engine works. Failures are
exceptions of ``quire.Error``, and the objects are as they were before the call.
``quire.transformers`` puts the cache under Hugging Face models.
"""

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
    Plan,
    Sequence,
    SharedBudget,
    Ticket,
    View,
    __version__,
    gather_padded,
)

__all__ = [
    "CODECS",
    "Attention",
    "BusyError",
    "Cache",
    "CancelledError",
    "CorruptError",
    "DeadlineError",
    "DiskStore",
    "Error",
    "Identity",
    "InvalidArgumentError",
    "IoError",
    "LayerGroup",
    "NoSpaceError",
    "NotFoundError",
    "Plan",
    "ReadOnlyArray",
    "Sequence",
    "SharedBudget",
    "Ticket",
    "TooLargeError",
    "UnsupportedError",
    "View",
    "__version__",
    "gather_padded",
    "load_async",
]
