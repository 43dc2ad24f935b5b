"""Bloom and MPT: layers that add ALiBi's bias and attend by themselves, on Quire's blocks in place.

They call no function that transformers lets others replace. So the attention modules of an attached
model get a class of their own, which does what theirs does, but attends through Quire where the
cache is Quire's; with other caches the model's own forward runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import quire


def _layer(cache: Any, index: int) -> Any:
    """The layer of a cache of Quire's; None: another cache."""
    layers = getattr(cache, "layers", ())
    layer = layers[index] if index < len(layers) else None
    return layer if hasattr(layer, "attend") else None


def _check(dropout: float, training: bool, output_attentions: bool = False) -> None:
    if training and dropout:
        raise quire.UnsupportedError(f"attention with dropout={dropout}: call model.eval()")
    if output_attentions:
        raise quire.UnsupportedError("attention with output_attentions=True")


@functools.cache
def _bloom_slopes(heads: int) -> torch.Tensor:
    from transformers.models.bloom import modeling_bloom

    return modeling_bloom._get_alibi_slopes(heads, torch.device("cpu"))


def _bloom(
    self: Any, hidden_states: torch.Tensor, residual: torch.Tensor, alibi: torch.Tensor,
    attention_mask: torch.Tensor | None, layer_past: Any = None, use_cache: bool = False,
    output_attentions: bool = False, **options: Any,
) -> Any:
    """BloomAttention.forward."""
    layer = _layer(layer_past, self.layer_idx)
    if layer is None:
        return type(self).__base__.forward(
            self, hidden_states, residual, alibi, attention_mask, layer_past=layer_past,
            use_cache=use_cache, output_attentions=output_attentions, **options)
    _check(self.hidden_dropout, self.training, output_attentions)
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    layer_past.update(key, value, self.layer_idx)
    out = layer.attend(query, attention_mask, self.inv_norm_factor,
                       alibi_slopes=_bloom_slopes(self.num_heads))
    return self.dense(out.flatten(2)) + residual, None


def _seen(masked: torch.Tensor | None) -> torch.Tensor | None:
    """MPT's mask the other way round: one tensor for all layers, so that it is checked once."""
    if masked is None:
        return None
    if not hasattr(masked, "quire"):
        masked.quire = ~masked
    made: torch.Tensor = masked.quire
    return made


def _mpt(
    self: Any, hidden_states: torch.Tensor, position_bias: torch.Tensor,
    past_key_values: Any = None, attention_mask: torch.Tensor | None = None, **options: Any,
) -> Any:
    """MptAttention.forward; position_bias: [heads, 1, tokens], a slope from each to the next."""
    layer = _layer(past_key_values, self.layer_idx)
    if layer is None:
        return type(self).__base__.forward(
            self, hidden_states, position_bias, past_key_values=past_key_values,
            attention_mask=attention_mask, **options)
    _check(self.attn_dropout_p, self.training)
    qkv = self.Wqkv(hidden_states)
    if self.clip_qkv:
        qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = (
        rows.unflatten(2, (self.n_heads, -1)).transpose(1, 2) for rows in qkv.chunk(3, dim=2))
    past_key_values.update(key, value, self.layer_idx)
    out = layer.attend(query, _seen(attention_mask), self.softmax_scale,
                       alibi_slopes=position_bias[:, 0, -1] - position_bias[:, 0, -2])
    return self.out_proj(out.flatten(2)), None


_FORWARDS: dict[str, Callable[..., Any]] = {
    "transformers.models.bloom.modeling_bloom.BloomAttention": _bloom,
    "transformers.models.mpt.modeling_mpt.MptAttention": _mpt,
}


def _attends_as_here(module: Any, model: Any) -> bool:
    if not hasattr(module, "slow_but_exact"):  # MPT
        return True
    # Bloom rounds its bias to the model's type, which only f32 forgives.
    exact = module.pretraining_tp > 1 and module.slow_but_exact
    return model.dtype == torch.float32 and not exact


@functools.cache
def _class_on_quire(kind: type, forward: Callable[..., Any]) -> type:
    return type(kind.__name__, (kind,), {
        "forward": forward, "__module__": __name__, "__qualname__": kind.__qualname__})


def replace(model: Any) -> list[Any]:
    """Gives such attention modules of the model their class; returns them, for restore."""
    replaced = []
    for module in model.modules():
        kind = type(module)
        forward = _FORWARDS.get(f"{kind.__module__}.{kind.__qualname__}")
        if forward is not None and _attends_as_here(module, model):
            module.__class__ = _class_on_quire(kind, forward)
            replaced.append(module)
    return replaced


def restore(modules: list[Any]) -> None:
    """Takes back what replace did."""
    for module in modules:
        module.__class__ = type(module).__base__
