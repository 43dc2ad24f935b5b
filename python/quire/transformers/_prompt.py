"""The cache that one call of generate uses: a sequence of Quire for each row of the batch.

Columns are those of the padded batch. Row r's tokens begin at column pad[r], and what Quire has of
them ends at column live[r]: before that the row is neither written nor attended, whatever the model
computes there for the sake of other rows.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

import quire

from ._model import CODEC_OF

if TYPE_CHECKING:
    from ._attach import AttachedCache


@dataclasses.dataclass
class Row:
    """One row of the batch."""

    sequence: quire.Sequence
    fingerprint: bytes | None  # of what computes it; None: of no matter
    pad: int  # columns before its first token
    live: int  # column of the first token that Quire did not have
    prefix: list[int]  # the tokens of columns [pad, live)
    pending: list[int] = dataclasses.field(default_factory=list)  # written, not yet committed

    def commit(self, count: int) -> None:
        """Commits the first `count` pending tokens."""
        if count > 0:
            self.sequence.commit(self.pending[:count])
            del self.pending[:count]

    def cut(self, column: int) -> None:
        """Forgets the tokens from `column` on. What Quire had of the prompt stays."""
        length = max(column, self.live) - self.pad
        keep = max(0, length - self.sequence.length)
        del self.pending[keep:]
        self.sequence.rollback(length)

    def fork(self) -> Row:
        """A second one; nothing may be pending."""
        return Row(self.sequence.fork(), self.fingerprint, self.pad, self.live, self.prefix)


@dataclasses.dataclass
class Step:
    """One forward of the model: the columns it computes."""

    begin: int
    end: int
    ids: torch.Tensor  # [rows, end - begin]
    masks: list[tuple[int, Any]] = dataclasses.field(default_factory=list)  # (window, mask) checked


def copies(
    layer: int, role: str, rows: list[tuple[quire.Sequence, int]], end: int, dtype: torch.dtype
) -> torch.Tensor:
    """K or V of a layer as a tensor [rows, heads, end, dim]; each row has zeros before its pad."""
    made = []
    for sequence, pad in rows:
        values = torch.from_numpy(sequence.gather(layer, role, 0, max(end - pad, 0)))
        made.append(torch.nn.functional.pad(values, (0, 0, min(pad, end), 0)))
    return torch.stack(made).to(dtype)


class PromptLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a PromptCache."""

    is_sliding = False  # columns are never dropped: the window is the kernel's affair
    is_croppable = True

    def __init__(self, cache: PromptCache, index: int, window: int):
        super().__init__()
        self._cache = weakref.ref(cache)
        self.index, self.window = index, window
        self.columns = 0  # written
        self.attended = 0  # columns that were attended or skipped
        self.value: torch.Tensor | None = None  # what update returned last
        self.is_initialized = True

    @property
    def cache(self) -> PromptCache:
        cache = self._cache()
        if cache is None:
            raise quire.InvalidArgumentError("the cache of this layer is gone")
        return cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the blocks are there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the rows [batch, heads, tokens, dim] of this layer, without those Quire has."""
        cache = self.cache
        step = cache.running_step(self)
        if key_states.dtype not in CODEC_OF or key_states.device.type != "cpu":
            raise quire.UnsupportedError(f"K of {key_states.dtype} on {key_states.device}")
        if key_states.shape[0] != len(cache.rows) or key_states.shape[2] != step.end - step.begin:
            raise quire.InvalidArgumentError(
                f"layer {self.index} writes {tuple(key_states.shape)}, but the model was called "
                f"with {tuple(step.ids.shape)} tokens"
            )
        keys, values = key_states.detach().transpose(1, 2), value_states.detach().transpose(1, 2)
        for row, key, value in zip(cache.rows, keys, values):
            skip = row.live - step.begin
            if skip <= 0:
                row.sequence.append(self.index, key, value)
            elif skip < len(key):
                row.sequence.append(self.index, key[skip:], value[skip:])
        self.columns = step.end
        if cache.owner.copies:
            self.attended = step.end
            rows = [(row.sequence, row.pad) for row in cache.rows]
            return (copies(self.index, "key", rows, step.end, key_states.dtype),
                    copies(self.index, "value", rows, step.end, value_states.dtype))
        key_states.quire = self  # how attention finds the blocks
        self.value = value_states
        return key_states, value_states

    def attend(
        self, query: torch.Tensor, mask: torch.Tensor | None, scale: float | None,
        **of_heads: torch.Tensor,
    ) -> torch.Tensor:
        """Queries [batch, heads, tokens, dim] over what is written; [batch, tokens, heads, dim].

        of_heads: sink_logits and alibi_slopes, as Attention.attend has them.
        """
        cache = self.cache
        step = cache.step
        if step is None or self.columns != step.end:
            raise quire.InvalidArgumentError("attention outside a forward of the attached model")
        cache.check_mask(step, self.window, mask)
        queries = query.detach().transpose(1, 2).to(torch.float32).contiguous()
        skips = [min(max(row.live - step.begin, 0), step.end - step.begin) for row in cache.rows]
        width = queries.shape[3] if self.value is None else self.value.shape[3]
        out = queries.new_zeros((*queries.shape[:3], width))
        self.value = None
        live = [r for r, skip in enumerate(skips) if skip < step.end - step.begin]
        cache.owner.attention.attend_batch(
            self.index,
            [cache.rows[r].sequence for r in live],
            [queries[r, skips[r]:] for r in live],
            [out[r, skips[r]:] for r in live],
            first_positions=[step.begin + skips[r] - cache.rows[r].pad for r in live],
            scale=scale,
            **of_heads,
        )
        self.attended = step.end
        return out.to(query.dtype)

    def get_seq_length(self) -> int:
        """Columns that are cached."""
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a mask covers."""
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        """No maximum but the budget."""
        return -1


class PromptCache(Cache):  # type: ignore[misc]
    """What `AttachedCache.for_prompt` gives to `generate(past_key_values=...)`.

    It pins its blocks until it is closed or dropped; what it computed stays in the cache, as far as
    there is room. Threads: one at a time.
    """

    def __init__(self, owner: AttachedCache, rows: list[Row], prompt: torch.Tensor):
        self.owner, self.rows = owner, rows
        self.prompt = prompt  # [rows, columns], padded
        self.began = False  # whether the model was called
        self.skipped_columns = min(row.live for row in rows)  # that nobody computes
        self.step: Step | None = None
        self.thread = threading.get_ident()
        super().__init__(
            layers=[PromptLayer(self, i, window) for i, window in enumerate(owner.windows)]
        )
        for layer in self.layers:
            layer.columns = layer.attended = self.skipped_columns

    @property
    def columns(self) -> int:
        """Columns that every layer has."""
        return int(self.layers[0].columns)

    # ---- One forward of the model ----

    def begin(self, ids: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
        """Before a forward: ids are [rows, tokens]; returns the arguments for the model."""
        self._check_open()
        if options.get("use_cache") is False:
            raise quire.UnsupportedError(
                "use_cache=False feeds all tokens again in each forward: call generate with "
                "use_cache=True (the configs of some models, as MPT's, say False)")
        self.thread = threading.get_ident()
        if ids.shape[0] % len(self.rows):
            raise quire.InvalidArgumentError(
                f"the model was called with {ids.shape[0]} rows, the cache has {len(self.rows)}"
            )
        repeats = ids.shape[0] // len(self.rows)
        if self.began:
            self._check_model(repeats)
        else:
            ids, options = self._settle(ids, options, repeats)
        if ids.shape[0] != len(self.rows):
            self.batch_repeat_interleave(repeats)
        self.commit(self.columns)
        begin = self.columns
        self.owner.check_step(ids.shape[1])
        step = Step(begin, begin + ids.shape[1], ids)
        self.owner.check_length(step.end - min(row.pad for row in self.rows))
        if self.owner.copies or not self.owner.takes_positions:
            self._check_padding(options.get("attention_mask"), step.end)
        self._drop_other_prefixes(step)
        positions = self._positions(step, options.get("position_ids"))
        self.step = step
        if positions is not None:
            options = {**options, "position_ids": positions}
        return {**options, "input_ids": ids}

    def _settle(
        self, ids: torch.Tensor, options: dict[str, Any], repeats: int
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Before the first forward, which may run under other adapters, hooks or modes than
        for_prompt did: rows are looked up again where they do, and hits are probed.

        What generate was told to skip and is not there after all is computed.
        """
        promised = self.columns
        self.began = True
        self.rows = self.owner.settle(self, repeats)
        skipped = min(promised, *(row.live for row in self.rows))
        for layer in self.layers:
            layer.columns = layer.attended = skipped
        prompt = self.prompt.repeat_interleave(repeats, dim=0)
        if ids.shape[1] >= prompt.shape[1] and torch.equal(ids[:, :prompt.shape[1]], prompt):
            return self._without_skipped(ids, options)
        if skipped < promised:
            pads = torch.tensor([[row.pad] for row in self.rows]).repeat_interleave(repeats, dim=0)
            self.owner.forward(
                input_ids=prompt[:, skipped:promised], past_key_values=self,
                attention_mask=(torch.arange(promised) >= pads).long())
        return ids, options

    def _without_skipped(
        self, ids: torch.Tensor, options: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The first call may come with the whole prompt, as that of assisted decoding does."""
        skipped = self.columns
        positions = options.get("position_ids")
        if positions is not None and positions.shape[-1] == ids.shape[1]:
            options = {**options, "position_ids": positions[..., skipped:]}
        return ids[:, skipped:], options

    def _check_model(self, repeats: int) -> None:
        """What computes the rows must be what computed their beginnings."""
        if not self.owner.computes(self.rows, repeats):
            raise quire.UnsupportedError(
                "the model is not what it was when this prompt began (weights, adapters, hooks, "
                "autocast or mode): its tokens would be those of neither; call for_prompt again"
            )

    def end(self) -> None:
        """After a forward: what it computed of the prompt is committed, the rest with the next."""
        step = self.step
        if step is None:
            return
        for layer in self.layers:
            if layer.columns != step.end or layer.attended != step.end:
                raise self._went_elsewhere(layer)
        for row, ids in zip(self.rows, step.ids.tolist()):
            row.pending += ids[max(row.live - step.begin, 0):]
        self.step = None
        if step.begin < self.prompt.shape[1]:
            self._check_model(1)
            self.commit(min(step.end, self.prompt.shape[1]))

    def abort(self) -> None:
        """After a forward that raised: what it wrote is forgotten."""
        if self.step is not None and self.rows:
            self._cut(self.step.begin)

    def commit(self, column: int) -> None:
        """Makes the tokens before `column` visible to other prompts."""
        for row in self.rows:
            row.commit(column - row.pad - row.sequence.length)

    def running_step(self, layer: PromptLayer) -> Step:
        """The forward that is under way, which `layer` has not written yet."""
        if self.step is None:
            self._check_open()
            raise quire.InvalidArgumentError(
                "the cache was given to a model that it was not made for, or to a part of it: call "
                "the model that was attached, before the cache is closed"
            )
        before = self.layers[layer.index - 1]
        if layer.index > 0 and before.attended != self.step.end:
            raise self._went_elsewhere(before)
        if layer.columns != self.step.begin:
            raise quire.UnsupportedError(f"layer {layer.index} writes twice in one forward")
        return self.step

    def _went_elsewhere(self, layer: PromptLayer) -> Exception:
        implementation = self.owner.model.config._attn_implementation
        return quire.UnsupportedError(
            f"layer {layer.index} was not computed through Quire (the model's attention "
            f"implementation is {implementation!r}): its tokens would be wrong"
        )

    def _check_open(self) -> None:
        if not self.rows:
            raise quire.InvalidArgumentError("this prompt's cache is closed")

    def _drop_other_prefixes(self, step: Step) -> None:
        """Where a row is fed other tokens than those Quire has for it, what it has ends there."""
        for row, ids in zip(self.rows, step.ids):
            first, last = max(row.pad, step.begin), min(row.live, step.end)
            if first >= last:
                continue
            fed = ids[first - step.begin:last - step.begin].tolist()
            known = row.prefix[first - row.pad:last - row.pad]
            for column, (one, other) in enumerate(zip(fed, known), first):
                if one != other:
                    row.sequence.rollback(column - row.pad)
                    row.live = column
                    break

    def _positions(self, step: Step, given: torch.Tensor | None) -> torch.Tensor | None:
        """Each row counts from its own first token: checks the model's, or makes them (None: fine).

        Else K would depend on the padding, and a prompt would not be found in another batch. Some
        models count otherwise where nothing is given, which generate never does.
        """
        if not self.owner.takes_positions and all(row.pad == 0 for row in self.rows):
            return None
        columns = torch.arange(step.begin, step.end)
        pads = torch.tensor([[row.pad] for row in self.rows])
        expected = columns - pads
        if given is None:
            return expected.clamp(min=0)
        lives = torch.tensor([[max(row.live, row.pad)] for row in self.rows])
        if given.ndim != 2 or given.shape[1] != len(columns):
            raise quire.UnsupportedError(f"position_ids of shape {tuple(given.shape)}")
        if ((given != expected) & (columns >= lives)).any():
            raise quire.UnsupportedError(
                "position_ids that do not count each row from its first token: give the "
                "attention mask to for_prompt and to the model"
            )
        return None

    def _check_padding(self, mask: Any, end: int) -> None:
        """The mask may say where the padding is, no more: layers that attend by themselves would take
        more, and without position_ids nothing else says which columns these are."""
        wanted = torch.arange(end) >= torch.tensor([[row.pad] for row in self.rows])
        fits = bool(wanted.all()) if mask is None else (
            isinstance(mask, torch.Tensor) and mask.shape == wanted.shape
            and torch.equal(mask.bool(), wanted))
        if not fits:
            raise self._wrong_mask()

    def check_mask(self, step: Step, window: int, mask: torch.Tensor | None) -> None:
        """The mask must be the one that Quire's kernels apply. Raises: UnsupportedError."""
        if any(mask is seen and window == of for of, seen in step.masks):
            return
        step.masks.append((window, mask))
        live = [row for row in self.rows if row.live < step.end]
        if mask is None:
            if any(row.pad for row in live) or 0 < window < step.end:
                raise self._wrong_mask()
            return
        allowed = mask if mask.dtype == torch.bool else mask == 0
        if mask.ndim != 4 or mask.shape[-2:] != (step.end - step.begin, step.end):
            raise quire.UnsupportedError(f"an attention mask of shape {tuple(mask.shape)}")
        queries = torch.arange(step.begin, step.end)[:, None]
        keys = torch.arange(step.end)[None, :]
        causal = keys <= queries
        if window:
            causal &= keys > queries - window
        for r, row in enumerate(self.rows):
            skip = max(row.live - step.begin, 0)
            there = allowed[r if allowed.shape[0] > 1 else 0, :, skip:]
            wanted = causal[skip:] & (keys >= row.pad) if row.pad else causal[skip:]
            if not torch.equal(there, wanted.expand_as(there)):
                raise self._wrong_mask()

    def _wrong_mask(self) -> Exception:
        return quire.UnsupportedError(
            "the attention mask is not that of the prompt (causal, padded on the left): give one "
            "mask to for_prompt and to the model; other masks are not supported"
        )

    # ---- What generate does to caches ----

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Beams: row i goes on from row beam_idx[i]."""
        self.commit(self.columns)
        left = dict(enumerate(self.rows))
        wanted = beam_idx.tolist()
        rows = []
        for at, i in enumerate(wanted):  # the last one who needs a row takes it, the others fork
            rows.append(left.pop(i) if i not in wanted[at + 1:] else left[i].fork())
        for row in left.values():
            row.sequence.close()
        self.rows = rows

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        count = len(self.rows)
        self.reorder_cache(torch.arange(count).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps some rows."""
        self.reorder_cache(indices)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last -tokens_to_remove columns (rejected speculation)."""
        if tokens_to_remove > 0:
            raise quire.InvalidArgumentError(f"crop({tokens_to_remove}): a negative count")
        self._cut(self.columns + tokens_to_remove)

    def reset(self) -> None:
        """Refused: for_prompt makes a new one."""
        raise quire.UnsupportedError("reset: call for_prompt again")

    def _cut(self, column: int) -> None:
        if column < 0:
            raise quire.InvalidArgumentError(f"crop to {column} columns")
        self.step = None
        for row in self.rows:
            row.cut(column)
        for layer in self.layers:
            layer.columns = layer.attended = column

    # ---- Its end ----

    def flush(self) -> None:
        """Commits all that is written, unless a forward is under way."""
        if self.step is None and self.owner.computes(self.rows):
            self.commit(self.columns)

    def close(self) -> None:
        """Commits what is written, and lets go of the blocks."""
        rows, self.rows = self.rows, []
        whole = self.step is None and any(row.pending for row in rows) and self.owner.computes(rows)
        for row in rows:
            if whole and not row.sequence.closed:
                row.commit(len(row.pending))
            row.sequence.close()

    def __del__(self) -> None:
        if getattr(self, "rows", None):
            self.close()
