"""K and V of a training run's earlier chunks, held by an owner of a quire.Registry.

A sequence longer than one forward pass is trained chunk by chunk: each chunk attends to the K and V of
those before it, through which no gradient flows.

    owner = registry.training("lora-a", run=1, checkpoint_layers=[1, 3])
    kv = quire.training.OwnerKv(owner, model, checkpoint_layers=[1, 3])
    for chunk in tokens.split(512):
        loss = model(input_ids=chunk[None], labels=..., past_key_values=kv, use_cache=True).loss
        loss.backward()
        kv.commit(chunk.tolist())
    optimizer.step()
    kv.clear()              # the weights have moved: nothing of before may be read again

Needs torch and transformers (5.23 was tried).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from . import Owner
from ._errors import InvalidArgumentError, UnsupportedError

__all__ = ["OwnerKv"]


class OwnerKv(Cache):  # type: ignore[misc]
    """What transformers' models take as past_key_values: one text, whose earlier chunks `owner` holds.

    model: a decoder of transformers, or peft's around one, whose layers have full attention.
    checkpoint_layers: those of the owner. They hold their inputs of earlier chunks instead of K and V, and
    compute K and V again with the same operations on the same shapes, so all bits are as if they were held;
    dropout must be off there.

    Raises: UnsupportedError the model has layers of another kind.
    Threads: one at a time, the model's.
    """

    def __init__(self, owner: Owner, model: torch.nn.Module, *,
                 checkpoint_layers: Sequence[int] = ()) -> None:
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        decoder = inner.get_decoder()
        kinds = set(getattr(decoder.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UnsupportedError(f"layers of kinds {', '.join(sorted(kinds))}: only full_attention can be trained")
        for index in checkpoint_layers:
            if not 0 <= index < len(decoder.layers):
                raise InvalidArgumentError(f"checkpoint layer {index}: the model has {len(decoder.layers)}")
        self.owner = owner
        super().__init__(layers=[
            _RecomputedLayer(owner, module) if index in checkpoint_layers else _OwnedLayer(owner, index)
            for index, module in enumerate(decoder.layers)])

    def commit(self, tokens: Sequence[int]) -> None:
        """The chunk that the model has just read is an earlier one from now on. Raises: as Owner.commit;
        UnsupportedError the model read it without this cache."""
        if not all(layer.was_asked for layer in self.layers):
            raise UnsupportedError("the model read this chunk without its cache, as it does with the activation "
                                   "checkpointing of transformers: use checkpoint_layers instead")
        self.owner.commit(list(tokens))
        for layer in self.layers:
            layer.end_chunk()

    def clear(self) -> None:
        """Back to no tokens, after an optimizer step for example."""
        self.owner.clear()
        for layer in self.layers:
            layer.drop()

    def close(self) -> None:
        """The model's layers are no longer watched; what the owner holds stays."""
        for layer in self.layers:
            layer.close()


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer: `earlier` is what it has of committed chunks, [1, heads, tokens, dim] each."""

    is_sliding = False

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self.owner = owner
        self.was_asked = False  # in the chunk under way
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if key_states.shape[0] != 1:
            raise UnsupportedError(f"a batch of {key_states.shape[0]} texts: an owner holds one")
        self.hold(key_states, value_states)
        self.was_asked = True
        keys, values = self.earlier(key_states.dtype)
        return (torch.cat([*keys, key_states], dim=-2), torch.cat([*values, value_states], dim=-2))

    def hold(self, key: torch.Tensor, value: torch.Tensor) -> None:
        raise NotImplementedError

    def earlier(self, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        raise NotImplementedError

    def end_chunk(self) -> None:
        """The chunk under way is an earlier one from now on."""
        self.was_asked = False

    def drop(self) -> None:
        """Of all chunks."""
        self.was_asked = False

    def close(self) -> None:
        """Its module is watched no longer."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """There is nothing to initialize."""

    def get_seq_length(self) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.length + query_length, 0


class _OwnedLayer(_Layer):
    """A layer whose K and V the owner holds."""

    def __init__(self, owner: Owner, index: int) -> None:
        super().__init__(owner)
        self.index = index

    def hold(self, key: torch.Tensor, value: torch.Tensor) -> None:
        if self.was_asked:  # torch.utils.checkpoint computes the layer again
            return
        rows = [of[0].detach().transpose(0, 1) for of in (key, value)]
        self.owner.append(self.index, *rows)

    def earlier(self, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        length = self.owner.length
        if length == 0:
            return [], []
        found = [torch.from_numpy(self.owner.gather(self.index, role, 0, length))[None].to(dtype)
                 for role in ("key", "value")]
        return [found[0]], [found[1]]


class _Computed(Exception):
    """Ends a layer's forward as soon as it has computed K and V."""


class _Computing:
    """In place of a cache: what a layer gives it are K and V."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        raise _Computed(key_states, value_states)


class _RecomputedLayer(_Layer):
    """A layer whose K and V are computed again, from what it was given in each chunk."""

    def __init__(self, owner: Owner, module: torch.nn.Module) -> None:
        super().__init__(owner)
        self.module = module
        self.chunks: list[tuple[torch.Tensor, dict[str, Any]]] = []
        self.chunk: tuple[torch.Tensor, dict[str, Any]] | None = None  # under way
        self.is_computing = False
        self.watch = module.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("past_key_values")
        if self.is_computing or not isinstance(cache, OwnerKv) or self not in cache.layers:
            return
        hidden = args[0] if args else kwargs["hidden_states"]
        others = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        self.chunk = (hidden.detach(), others)

    def hold(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Its input is held instead."""

    def earlier(self, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        computed = [self.compute(*chunk) for chunk in self.chunks]
        return [key for key, value in computed], [value for key, value in computed]

    def compute(self, hidden: torch.Tensor, others: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        self.is_computing = True
        try:
            with torch.no_grad():
                self.module(hidden, **{**others, "past_key_values": _Computing()})
        except _Computed as computed:
            key, value = computed.args
            return key, value
        finally:
            self.is_computing = False
        raise UnsupportedError(f"{type(self.module).__name__} gives its cache no K and V")

    def end_chunk(self) -> None:
        super().end_chunk()
        if self.chunk is not None:
            self.chunks.append(self.chunk)
        self.chunk = None

    def drop(self) -> None:
        super().drop()
        self.chunks.clear()
        self.chunk = None

    def close(self) -> None:
        self.watch.remove()
