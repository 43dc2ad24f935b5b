"""What Quire must know of a model: the shape of K and V, and what computes them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.cache_utils import get_layer_types_and_kwargs

import quire

if TYPE_CHECKING:
    from ._trial import Shape

CODEC_OF = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}

# Of config fields that change what attention computes, and that Quire's kernels do not have.
_NOT_SUPPORTED = (
    "attn_logit_softcapping",
    "kv_lora_rank",
    "kv_sharing_modes",
    "attention_chunk_size",
)

def base_model(model: Any) -> Any:
    """The model itself, where peft has put its own around it."""
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise quire.UnsupportedError(
            f"{model.active_peft_config.peft_type}: K and V depend on more than the tokens")
    return model.get_base_model()


def takes(model: Any, name: str) -> bool:
    """Whether the model's forward has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


def compute_type(model: Any) -> str:
    """The codec that holds the model's K and V as they are."""
    codec = CODEC_OF.get(model.dtype)
    if codec is None:
        raise quire.UnsupportedError(f"a model of {model.dtype}; float32, float16 and bfloat16 are")
    return codec


def text_config(model: Any) -> Any:
    """The config of the decoder. Raises: UnsupportedError names what Quire's kernels lack."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "generate"):
        raise quire.UnsupportedError(f"{type(model).__name__} is no model that generates")
    if model.config.is_encoder_decoder:
        raise quire.UnsupportedError("an encoder-decoder model")
    if model.device.type != "cpu":
        raise quire.UnsupportedError(f"a model on {model.device}: Quire's kernels are the CPU's")
    config = model.config.get_text_config(decoder=True)
    for name in _NOT_SUPPORTED:
        if getattr(config, name, None):
            raise quire.UnsupportedError(f"config.{name} is {getattr(config, name)}")
    if getattr(config, "is_causal", True) is False:
        raise quire.UnsupportedError("config.is_causal is False")
    return config


def query_heads(model: Any) -> int:
    """Of a layer of full attention."""
    return int(text_config(model).num_attention_heads)


def layer_windows(model: Any) -> list[int]:
    """The window of each layer in tokens, 0 for full attention."""
    config = text_config(model)
    windows = []
    for kind, options in zip(*get_layer_types_and_kwargs(config)):
        if kind not in ("full_attention", "sliding_attention"):
            raise quire.UnsupportedError(f"a layer of type {kind}")
        windows.append(int(options.get("sliding_window") or 0))
    return windows


def layer_groups(windows: list[int], shapes: list[Shape]) -> list[quire.LayerGroup]:
    """The layers that share a window and a shape."""
    kinds = list(zip(windows, shapes))
    return [
        quire.LayerGroup(
            [layer for layer, of in enumerate(kinds) if of == kind],
            kv_heads=kind[1].heads,
            head_dim=kind[1].key_dim,
            value_dim=kind[1].value_dim,
            window_tokens=kind[0],
        )
        for kind in dict.fromkeys(kinds)
    ]


def tokens_max(model: Any) -> int | None:
    """The length beyond which the model computes K of all tokens in another way; None: none."""
    config = text_config(model)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = list(rope.values()) if all(isinstance(of, dict) for of in rope.values()) else [rope]
    # A dynamic rope goes back to its own frequencies below that length, not at it.
    return min(((of.get("original_max_position_embeddings") or config.max_position_embeddings)
                - (of["rope_type"] == "dynamic")
                for of in kinds if of.get("rope_type") in ("dynamic", "longrope")), default=None)


def arithmetic() -> str:
    """What computes K and V here: other versions and processors may give other bits."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__} {capability} transformers {transformers.__version__}"
