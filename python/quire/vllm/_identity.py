"""What decides the bytes of a block besides its tokens, what is refused, and whether weights
changed under the engine."""

import gc
import json
from collections.abc import Iterable
from typing import Any

import torch
import vllm
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVQuantMode,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)

from quire._errors import UnsupportedError
from quire._files import file_digest
from quire._weights import Watch, changed_after, described, processor, weight_files

_SPECS = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, SlidingWindowMLASpec)
# Whose weights are all in files of the model's folder.
_LOAD_FORMATS = ("auto", "hf", "mistral", "pt", "safetensors")


def kinds_of(caches: Any) -> list[tuple[str, int | None]]:
    """What vLLM's events say of each cache group: its kind, and its window."""
    return [(get_kv_cache_spec_kind(group.kv_cache_spec).value,
             get_kv_cache_spec_sliding_window(group.kv_cache_spec))
            for group in caches.kv_cache_groups]


def check(config: Any, caches: Any) -> None:
    """Raises UnsupportedError, naming what cannot be kept."""
    parallel = config.parallel_config
    model = config.model_config
    refused = {
        "speculative decoding, whose caches also follow from tokens that were rejected":
            config.speculative_config is not None,
        "context parallelism": max(parallel.decode_context_parallel_size,
                                   parallel.prefill_context_parallel_size) > 1,
        "experts that are spread over engines (expert parallelism with data parallelism)":
            parallel.enable_expert_parallel and parallel.data_parallel_size > 1,
        "workers on several machines, whose files are not seen": parallel.nnodes > 1,
        f"a {model.runner_type} model": model.runner_type != "generate",
        f"load format {config.load_config.load_format}: its weights are not in files of the "
        "model's folder": str(config.load_config.load_format) not in _LOAD_FORMATS,
        "weights in an object store": bool(model.model_weights),
        # Kernels that ignore what is cached before a prompt (MLA on most processors): vLLM turns
        # both off for them, and says so nowhere else.
        "models of which vLLM computes whole prompts alone (neither chunked prefill nor prefix "
        "caching is on)": not (config.scheduler_config.enable_chunked_prefill or
                               config.cache_config.enable_prefix_caching),
    }
    refused |= {f"a cache group with {said}": True for group in caches.kv_cache_groups
                for said in _refused_of(group.kv_cache_spec)}
    if len({group.kv_cache_spec.block_size for group in caches.kv_cache_groups}) > 1:
        refused["cache groups with blocks of different sizes"] = True
    for what, is_so in refused.items():
        if is_so:
            raise UnsupportedError(f"quire.vllm does not keep {what}")


def window_of(group: Any) -> int | None:
    """Tokens that a token of a cache group attends to, itself included; None: all before it."""
    windows = {spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None
               for spec in _layer_specs(group)}
    if len(windows) != 1:
        raise UnsupportedError("quire.vllm does not keep a cache group with several windows")
    return windows.pop()


def _layer_specs(group: Any) -> list[Any]:
    if isinstance(group, UniformTypeKVCacheSpecs):
        return list(group.kv_cache_specs.values())
    return [group]


def _refused_of(group: Any) -> Iterable[str]:
    for spec in _layer_specs(group):
        if type(spec) not in _SPECS:
            yield type(spec).__name__
        elif not spec.prefix_cacheable:
            yield "layers that vLLM's own prefix cache does not keep either"
        elif spec.kv_quant_mode != KVQuantMode.NONE:
            yield f"quantized K and V ({spec.kv_quant_mode.name})"
        elif getattr(spec, "non_causal", False):
            yield "attention to later tokens"
        elif spec.tokens_per_state != 1 or getattr(spec, "model_version", None):
            yield "compressed tokens"


def model_facts(config: Any, caches: Any, started_s: float) -> tuple[dict[str, Any], str]:
    """What all workers have in common, and why it cannot be found again ("": it can).

    Weights are named by the digests of their files, which are read here. If one changed after the
    workers' processes began, it may differ from what they loaded.
    """
    model = config.model_config
    files = weight_files(model.model, model.revision, config.load_config.download_dir)
    facts = {
        "engine": ["vllm", vllm.__version__, torch.__version__],
        "config": described(model.hf_config),
        "weights": [(path.name, file_digest(path)) for path in files],
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "length": model.max_model_len,  # some models choose rope factors by it
        "lora": config.lora_config is not None,
        "cache_dtype": str(config.cache_config.cache_dtype),
        "parallel": [config.parallel_config.pipeline_parallel_size,
                     config.parallel_config.tensor_parallel_size],
        "groups": [repr(group.kv_cache_spec) for group in caches.kv_cache_groups],
    }
    return facts, changed_after(files, started_s)


def worker_facts(config: Any, cache_tensors: dict[str, torch.Tensor]) -> str:
    """What decides how this worker's bytes lie in a block."""
    layers = get_layers_from_vllm_config(config, AttentionLayerBase, list(cache_tensors))
    return json.dumps({
        "device": current_platform.get_device_name(),
        # vLLM's kernels for processors pack K, and V for some, by these.
        "isa": processor() if current_platform.is_cpu() else [],
        "layers": [(name, str(tensor.dtype), list(tensor.shape[1:]), list(tensor.stride()[1:]),
                    layers[name].get_attn_backend().get_name() if name in layers else "")
                   for name, tensor in cache_tensors.items()],
    })


def watch(config: Any) -> Watch:
    """Raises UnsupportedError: the model is not found, or loads weights of other models."""
    models = _models_of(set(get_layers_from_vllm_config(config, AttentionLayerBase).values()))
    if not models:
        raise UnsupportedError("quire.vllm does not find the model in its worker")
    if any(getattr(model, "secondary_weights", ()) for model in models):
        raise UnsupportedError("quire.vllm does not keep models with weights of a second model")
    return Watch(models)


def _models_of(layers: set[Any]) -> list[torch.nn.Module]:
    """The models that have all these layers. vLLM gives a connector its layers but no model, so
    this process's objects are looked through, once."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    inside = {id(child) for module in modules
              for child in vars(module).get("_modules", {}).values()}
    return [module for module in modules
            if id(module) not in inside and layers <= set(module.modules())]
