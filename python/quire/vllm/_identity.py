"""What decides the bytes of a block besides its tokens, what is refused, and whether weights
changed under the engine."""

import gc
import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
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
)

from quire._errors import UnsupportedError
from quire._files import file_digest
from quire._tensors import Mark, mark, sample

_SPECS = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, SlidingWindowMLASpec)
# Whose weights are all in files of the model's folder.
_LOAD_FORMATS = ("auto", "hf", "mistral", "pt", "safetensors")
_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.py")  # code decides values, too
_NO_VALUES = ("_name_or_path", "transformers_version")  # of a model's config
_CLOCK_S = 2.0  # by which a process's start and a file's time may be wrong
_SAMPLED_MAX = 64  # tensors


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
    described = model.hf_config.to_dict()
    for name in _NO_VALUES:
        described.pop(name, None)
    files = _weight_files(model, config.load_config)
    changed = [path.name for path in files
               if max(path.stat().st_ctime, path.stat().st_mtime) > started_s - _CLOCK_S]
    facts = {
        "engine": ["vllm", vllm.__version__, torch.__version__],
        "config": described,
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
    return facts, f"{changed[0]} changed after the engine began to start" if changed else ""


def _weight_files(model: Any, load: Any) -> list[Path]:
    folder = Path(model.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        folder = Path(snapshot_download(model.model, revision=model.revision,
                                        cache_dir=load.download_dir, local_files_only=True))
    files = sorted(path for form in _WEIGHT_FILES for path in folder.glob(form))
    if not any(path.suffix != ".py" for path in files):
        raise UnsupportedError(f"quire.vllm finds no weights in {folder}")
    return files


def worker_facts(config: Any, cache_tensors: dict[str, torch.Tensor]) -> str:
    """What decides how this worker's bytes lie in a block."""
    layers = get_layers_from_vllm_config(config, AttentionLayerBase, list(cache_tensors))
    return json.dumps({
        "device": current_platform.get_device_name(),
        "isa": _isa(),
        "layers": [(name, str(tensor.dtype), list(tensor.shape[1:]), list(tensor.stride()[1:]),
                    layers[name].get_attn_backend().get_name() if name in layers else "")
                   for name, tensor in cache_tensors.items()],
    })


def _isa() -> list[str]:
    """vLLM's kernels for processors pack K, and V for some, by these."""
    if not current_platform.is_cpu():
        return []
    return [platform.machine(), torch.backends.cpu.get_cpu_capability(),
            f"amx {torch.cpu._is_amx_tile_supported()}"]


def digest(facts: Any) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def process_start_s() -> float:
    return float(psutil.Process(os.getpid()).create_time())


class Watch:
    """Tells whether a model's weights changed since they were loaded: other tensors, other memory,
    or other values among samples of some of them, as vLLM writes weights through `.data`, which
    torch does not count."""

    def __init__(self, config: Any) -> None:
        """Raises UnsupportedError: the model is not found, or loads weights of other models."""
        self._roots = _models_of(set(
            get_layers_from_vllm_config(config, AttentionLayerBase).values()))
        if not self._roots:
            raise UnsupportedError("quire.vllm does not find the model in its worker")
        if any(getattr(root, "secondary_weights", ()) for root in self._roots):
            raise UnsupportedError("quire.vllm does not keep models with weights of a second "
                                   "model")
        self._marks: list[tuple[str, Mark]] = []
        self._samples: list[bytes] = []

    def remember(self) -> None:
        """Takes the weights as they are for those that were loaded."""
        named = self._named()
        self._marks = [(name, mark(tensor)) for name, tensor in named]
        self._samples = [sample(tensor) for _, tensor in named]

    def changed(self, *, thorough: bool) -> bool:
        """thorough: samples of all tensors are compared."""
        named = self._named()
        step = 1 if thorough else len(named) // _SAMPLED_MAX + 1
        return (self._marks != [(name, mark(tensor)) for name, tensor in named] or
                self._samples[::step] != [sample(tensor) for _, tensor in named[::step]])

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, tensor.detach()) for root in self._roots
                for name, tensor in root.named_parameters()]


def _models_of(layers: set[Any]) -> list[torch.nn.Module]:
    """The models that have all these layers. vLLM gives a connector its layers but no model, so
    this process's objects are looked through, once."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    inside = {id(child) for module in modules
              for child in vars(module).get("_modules", {}).values()}
    return [module for module in modules
            if id(module) not in inside and layers <= set(module.modules())]
