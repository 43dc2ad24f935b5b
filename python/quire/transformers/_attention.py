"""The attention function "quire": over Quire's blocks in place, or torch's own for other caches."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import quire

NAME = "quire"

# Arguments of attention functions that change the result, and that Quire's kernels do not have.
_REFUSED = ("softcap", "position_bias", "head_mask", "output_attentions", "cu_seq_lens_q")


def _check(
    module: Any, layer: Any, dropout: float, is_causal: Any, options: dict[str, Any]
) -> None:
    for name in _REFUSED:
        if options.get(name) is not None and options[name] is not False:
            value = "" if isinstance(options[name], torch.Tensor) else f"={options[name]!r:.60}"
            raise quire.UnsupportedError(f"attention with {name}{value}")
    if dropout:
        raise quire.UnsupportedError(f"attention with dropout={dropout}: call model.eval()")
    if (is_causal if is_causal is not None else getattr(module, "is_causal", True)) is False:
        raise quire.UnsupportedError("attention that is not causal")
    window = options.get("sliding_window", layer.window)
    if (window or 0) != layer.window:
        raise quire.UnsupportedError(
            f"layer {layer.index} attends with sliding_window={window}, but its config says "
            f"{layer.window or None}"
        )


def _own_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    mask: torch.Tensor | None, **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Attention over another cache's K and V: torch's, or the model's own where it has sinks, which
    torch's lacks."""
    if options.get("s_aux") is None:
        of_torch: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, **options)
        return of_torch
    if mask is None:  # sdpa_mask leaves a causal one out
        rows, columns = query.shape[2], key.shape[2]
        mask = torch.ones((1, 1, rows, columns), dtype=torch.bool).tril(columns - rows)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(
            ~mask, torch.finfo(query.dtype).min)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    of_model: tuple[torch.Tensor, Any] = eager(module, query, key, value, mask, **options)
    return of_model


def _sinks(options: dict[str, Any], heads: int) -> dict[str, torch.Tensor]:
    """The sinks' logits as Quire's kernels take them."""
    sinks = options.get("s_aux")
    if sinks is None:
        return {}
    if sinks.shape != (heads,):
        raise quire.UnsupportedError(
            f"attention with s_aux of shape {tuple(sinks.shape)} for {heads} heads")
    return {"sink_logits": sinks.detach().float()}


def quire_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Attention of one layer; `key` is what PromptCache.update returned, or any other cache's."""
    layer = getattr(key, "quire", None)
    if layer is None:
        return _own_attention(module, query, key, value, attention_mask, dropout=dropout,
                              scaling=scaling, is_causal=is_causal, **options)
    if value is not layer.value:
        raise quire.UnsupportedError(
            f"{type(module).__name__} attends with other values than those it caches (layer "
            f"{layer.index})")
    _check(module, layer, dropout, is_causal, options)
    if query.requires_grad and torch.is_grad_enabled():
        raise quire.UnsupportedError("Quire's attention has no gradient: use torch.no_grad()")
    sinks = _sinks(options, query.shape[1])
    return layer.attend(query, attention_mask, scaling, **sinks), None


AttentionInterface.register(NAME, quire_attention)
# The mask is made as for sdpa: torch needs it with other caches, and PromptCache checks it.
AttentionMaskInterface.register(NAME, sdpa_mask)
