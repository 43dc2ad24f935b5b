"""The NumPy array over blocks in place."""

from __future__ import annotations

from typing import Any

import numpy as np


class ReadOnlyArray(np.ndarray[Any, np.dtype[Any]]):
    """Bytes of the cache, in place: read-only, and pinned while the array or a slice of it lives.

    Other sequences read the same bytes, so nobody may write to them. NumPy sees to that. DLPack is
    refused, because some consumers (torch) ignore its read-only flag. What NumPy computes from such
    an array has memory of its own, and DLPack takes it.
    """

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any:
        if not self.flags.writeable:
            raise BufferError(
                "these bytes are read-only and shared, and the consumer might write to them: "
                "take View.copy(), Sequence.gather() or a copy of this array"
            )
        return super().__dlpack__(*arguments, **options)
