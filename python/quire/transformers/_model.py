"""What Quire must know of a model: the shape of K and V, and what computes them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.cache_utils import get_layer_types_and_kwargs

import quire

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


def layer_windows(model: Any) -> list[int]:
    """The window of each layer in tokens, 0 for full attention."""
    config = text_config(model)
    windows = []
    for kind, options in zip(*get_layer_types_and_kwargs(config)):
        if kind not in ("full_attention", "sliding_attention"):
            raise quire.UnsupportedError(f"a layer of type {kind}")
        windows.append(int(options.get("sliding_window") or 0))
    return windows


def layer_groups(model: Any) -> list[quire.LayerGroup]:
    """The layers by window, with the KV heads and head_dim of the config."""
    config = text_config(model)
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    windows = layer_windows(model)
    return [
        quire.LayerGroup(
            [layer for layer, of in enumerate(windows) if of == window],
            kv_heads=kv_heads,
            head_dim=head_dim,
            window_tokens=window,
        )
        for window in sorted(set(windows))
    ]


def arithmetic() -> str:
    """What computes K and V here: other versions and processors may give other bits."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__} {capability} transformers {transformers.__version__}"
