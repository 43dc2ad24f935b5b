"""What Quire must know of a model: the shape of K and V, what computes them, a fingerprint."""

from __future__ import annotations

import hashlib
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
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
# Of config fields that name the model or this process, and decide no value.
_NO_VALUES = ("_name_or_path", "name_or_path", "transformers_version", "architectures")


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


def _tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0])


def _digest(item: tuple[str, torch.Tensor]) -> bytes:
    name, tensor = item
    made = hashlib.blake2b(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=32)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() > 0:
        made.update(flat.view(torch.uint8).numpy())
    return made.digest()


_known: weakref.WeakKeyDictionary[Any, tuple[Any, bytes]] = weakref.WeakKeyDictionary()


def fingerprint(model: torch.nn.Module) -> bytes:
    """32 bytes over every weight and the config; computed once per model and state of its weights.

    An in-place change that torch counts (an optimizer's step, copy_, load_state_dict) and other
    tensors in place of these give another fingerprint. Writing through ``.data`` of a weight is not
    counted: attach the model again in another process, or touch the weights with ``copy_``.
    """
    tensors = _tensors(model)
    state = [(name, tensor.data_ptr(), tensor._version) for name, tensor in tensors]
    known = _known.get(model)
    if known is not None and known[0] == state:
        return known[1]
    config = {
        name: value for name, value in model.config.to_dict().items() if name not in _NO_VALUES
    }
    made = hashlib.blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=32)
    made.update(type(model).__qualname__.encode())
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for digest in pool.map(_digest, tensors):
            made.update(digest)
    _known[model] = (state, made.digest())
    return made.digest()
