"""attach() tries a model on a few tokens: what it caches, and whether its logits stay the same.

A config does not say how many heads a model caches, nor whether its attention goes through the
function that transformers lets others replace; a forward does.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import DynamicCache

import quire

from . import _model

_TOKENS = 9  # the last one in a forward of its own
# How far the logits may be off, as a share of their norm.
_LOGITS = {"f32": 0.02, "f16": 0.1, "bf16": 0.3}
_LOGITS_QUANTIZED = 0.5


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one layer caches of a token."""

    heads: int
    key_dim: int
    value_dim: int


class _Recorder(DynamicCache):  # type: ignore[misc]
    """Transformers' own cache, and what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[int, list[tuple[Any, Any]]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Also notes the shapes."""
        self.writes.setdefault(layer_idx, []).append((key_states.shape, value_states.shape))
        made: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs)
        return made


def tokens_of(config: Any) -> torch.Tensor:
    """Some token ids [1, tokens] that mean nothing special to the model."""
    special: set[int] = set()
    for name, value in vars(config).items():
        if name.endswith("_token_id") and value is not None:
            special.update(value if isinstance(value, list) else [value])
    ids = [i for i in range(int(config.vocab_size)) if i not in special]
    return torch.tensor([(ids * _TOKENS)[:_TOKENS]])


def refuse_compiled(model: Any) -> None:
    """Raises: UnsupportedError the forward is compiled."""
    forward = vars(model).get("forward")
    if (hasattr(forward, "_torchdynamo_orig_callable") or hasattr(model, "_orig_mod")
            or getattr(model, "_compiled_call_impl", None) is not None):
        raise quire.UnsupportedError(
            "a compiled model: torch.compile cannot trace Quire's blocks; attach the model as it "
            "was before")


def run(
    model: Any, ids: torch.Tensor, cache: Any, ends: tuple[int, ...] = (_TOKENS - 1, _TOKENS)
) -> torch.Tensor:
    """Forwards that end at these tokens; the logits [forwards, vocabulary] of the last of each.

    Raises: UnsupportedError, any failure.
    """
    logits = []
    try:
        with torch.no_grad():
            for begin, end in zip((0, *ends), ends):
                options = {}
                if _model.takes(model, "position_ids"):
                    options["position_ids"] = torch.arange(begin, end)[None]
                out = model(
                    input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True,
                    attention_mask=torch.ones((1, end), dtype=torch.long), **options)
                logits.append(out.logits[0, -1].float())
    except quire.Error:
        raise
    except Exception as error:
        raise quire.UnsupportedError(
            f"{type(model).__name__} failed on a few tokens: {type(error).__name__}: {error!s:.200}"
        ) from error
    return torch.stack(logits)


def own(model: Any, ids: torch.Tensor, layers: int) -> tuple[list[Shape], torch.Tensor]:
    """What each layer caches, and the logits, of the model by itself. Raises: UnsupportedError."""
    refuse_compiled(model)
    name = type(model).__name__
    if not _model.takes(model, "past_key_values"):
        raise quire.UnsupportedError(f"{name} takes no past_key_values: it has no cache of K and V")
    recorder = _Recorder()
    logits = run(model, ids, recorder)
    difference = _difference(run(model, ids, DynamicCache(), (_TOKENS,))[0], logits[1])
    if not difference <= _LOGITS_QUANTIZED:
        raise quire.UnsupportedError(
            f"{name} computes other tokens from a cache than at once ({difference:.1%} off): its "
            "tokens see what follows them")
    shapes = []
    for layer in range(layers):
        writes = recorder.writes.get(layer, [])
        if len(writes) != 2 or recorder.writes.keys() - range(layers):
            raise quire.UnsupportedError(
                f"{name} writes K and V {len(writes)} times in two forwards in layer {layer}; its "
                f"config has {layers} layers, and {len(recorder.writes)} of them cache")
        (key, value), _ = writes
        if len(key) != 4 or len(value) != 4 or key[:3] != value[:3] or key[2] != _TOKENS - 1:
            raise quire.UnsupportedError(
                f"{name} caches K of shape {tuple(key)} and V of {tuple(value)}")
        shapes.append(Shape(key[1], key[3], value[3]))
    return shapes, logits


def compare(
    model: Any, logits: torch.Tensor, expected: torch.Tensor, compute: str, quantized: bool
) -> None:
    """Raises: UnsupportedError the model gives other logits through Quire."""
    difference = _difference(logits, expected)
    if not difference <= (_LOGITS_QUANTIZED if quantized else _LOGITS[compute]):
        raise quire.UnsupportedError(
            f"{type(model).__name__} gives other logits through Quire ({difference:.1%} off): it "
            "does not attend as its config and its calls say")


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / (other.norm() + 1e-30))
