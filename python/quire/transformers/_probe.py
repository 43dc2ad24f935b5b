"""The probe of a hit: its last block is computed again on the prefix that is cached, and compared.

It sees what nothing tells: weights written through ``.data``, a hook that does something else than
before. A change that moves K and V less than rounding does is not seen here; samples of the weights
see those (_identity.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

import quire

from ._prompt import Row, copies

if TYPE_CHECKING:
    from ._attach import AttachedCache
    from ._identity import Look

# How far a layer's K or V may be from what is stored, as a share of its norm: what rounding may
# become in deep layers, by what computes it, and by the bits of the codec that stores it. Measured
# (docs/lab/transformers.md): 5e-6 in f32; 2e-4 where 16 bits store it, 2e-3 with 8, 0.011 with 4.
_OF_COMPUTE = {"f32": 1e-3, "f16": 0.02, "bf16": 0.1}
_OF_BITS = ((32, 0.0), (16, 0.02), (8, 0.05), (0, 0.25))
_QUANTIZED = 0.5  # activations that are quantized by the range of a whole batch


def tolerance(compute: str, codec: str, look: Look) -> float:
    """Of the differences that `differences` gives."""
    if look.quantized:
        return _QUANTIZED
    computed = max(_OF_COMPUTE[compute], _OF_COMPUTE["bf16"] if look.autocast else 0.0)
    bits = quire.CODECS[codec]
    return max(computed, next(share for least, share in _OF_BITS if bits >= least))


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of the forward: the rows go into sequences that nobody else will see."""

    is_sliding = False

    def __init__(self, owner: AttachedCache, sequences: list[quire.Sequence], start: int, index: int):
        super().__init__()
        self._owner, self._sequences, self._start = owner, sequences, start
        self.index, self.window = index, owner.windows[index]
        self.value: torch.Tensor | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the blocks are there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes [batch, heads, tokens, dim]."""
        keys, values = key_states.detach().transpose(1, 2), value_states.detach().transpose(1, 2)
        for sequence, key, value in zip(self._sequences, keys, values):
            sequence.append(self.index, key, value)
        if self._owner.copies:
            rows, end = [(sequence, 0) for sequence in self._sequences], self._start + keys.shape[1]
            return (copies(self.index, "key", rows, end, key_states.dtype),
                    copies(self.index, "value", rows, end, value_states.dtype))
        key_states.quire = self
        self.value = value_states
        return key_states, value_states

    def attend(
        self, query: torch.Tensor, mask: torch.Tensor | None, scale: float | None,
        **of_heads: torch.Tensor,
    ) -> torch.Tensor:
        """Queries [batch, heads, tokens, dim]; the mask is not needed: the rows have no padding."""
        queries = query.detach().transpose(1, 2).to(torch.float32).contiguous()
        width = self.value.shape[3] if self.value is not None else queries.shape[3]
        out = queries.new_empty((*queries.shape[:3], width))
        self._owner.attention.attend_batch(
            self.index, self._sequences, list(queries), list(out),
            first_positions=[self._start] * len(queries), scale=scale, **of_heads)
        return out.to(query.dtype)

    def get_seq_length(self) -> int:
        """Tokens before the block."""
        return self._start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a mask covers."""
        return self._start + query_length, 0

    def get_max_length(self) -> int:
        """None."""
        return -1


def differences(owner: AttachedCache, rows: list[Row], repeats: int) -> list[tuple[Row, float]]:
    """One row of each distinct hit, with the largest difference of a layer.

    The difference is infinite where a window let go of what the block's tokens saw.
    repeats: of each row in a batch of the model, where peft's adapter_names are set; else 0.
    """
    distinct = {(row.fingerprint, tuple(row.prefix)): row for row in rows if row.prefix}
    by_start: dict[int, list[Row]] = {}
    for row in distinct.values():
        by_start.setdefault(len(row.prefix) - owner.cache.block_tokens, []).append(row)
    found: list[tuple[Row, float]] = []
    for start, members in by_start.items():
        batch = members
        if repeats:  # all rows, in order: those without this hit go along as another one
            batch = [row if any(row is member for member in members) else members[0]
                     for row in rows for _ in range(repeats)]
        found += zip(members, _probe(owner, batch, members, start))
    return found


def _probe(
    owner: AttachedCache, batch: list[Row], members: list[Row], start: int
) -> list[float]:
    end = start + owner.cache.block_tokens
    sequences: list[quire.Sequence] = []
    try:
        for row in batch:
            assert row.fingerprint is not None
            plan = owner.cache.acquire(row.prefix, owner.identity(row.fingerprint))
            if plan.resident_tokens != start:
                plan.close()
                return [float("inf")] * len(members)
            sequences.append(owner.cache.open(
                plan, publish=False, on_full="halt", step_tokens=owner.cache.block_tokens))
        layers = [_Layer(owner, sequences, start, index) for index in range(len(owner.windows))]
        options = {}
        if owner.takes_positions:
            options["position_ids"] = torch.arange(start, end).repeat(len(batch), 1)
        owner.forward(
            input_ids=torch.tensor([row.prefix[start:] for row in batch]),
            attention_mask=torch.ones((len(batch), end), dtype=torch.long),
            past_key_values=Cache(layers=layers), **options)
        at = {id(row): number for number, row in enumerate(batch)}
        return [_difference(row.sequence, sequences[at[id(row)]], start, end, len(layers))
                for row in members]
    finally:
        for sequence in sequences:
            sequence.close()


def _difference(
    stored: quire.Sequence, computed: quire.Sequence, start: int, end: int, layers: int
) -> float:
    worst = 0.0
    for layer in range(layers):
        for role in ("key", "value"):
            old, new = (s.gather(layer, role, start, end) for s in (stored, computed))
            difference = float(np.linalg.norm(new - old) / (np.linalg.norm(old) + 1e-30))
            worst = max(worst, difference if np.isfinite(difference) else float("inf"))
    return worst
