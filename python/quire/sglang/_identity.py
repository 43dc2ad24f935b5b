"""What decides the bytes of a page besides its tokens, and what is refused."""

import gc
from typing import Any

import sglang
import torch
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.utils import get_device_name

from quire._errors import UnsupportedError
from quire._files import file_digest
from quire._weights import Watch, changed_after, described, processor, weight_files

# Whose weights are all in files of the model's folder.
_LOAD_FORMATS = ("auto", "safetensors", "pt")
# Options by which SGLang chooses other kernels, or another order of sums.
_KERNELS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend",
            "enable_deterministic_inference", "rl_on_policy_target", "enable_tf32_matmul",
            "moe_runner_backend", "moe_a2a_backend", "tp_size", "ep_size", "enable_dp_attention",
            "model_impl", "quantize_and_serve", "enable_torch_compile")


def model_runner() -> Any:
    """The runner of this process's model. SGLang gives a storage no way to it, so this process's
    objects are looked through, once. Raises UnsupportedError: there is none, or several."""
    runners = [thing for thing in gc.get_objects() if issubclass(type(thing), ModelRunner) and
               not thing.is_draft_worker]
    if len(runners) != 1:
        raise UnsupportedError(f"quire.sglang finds {len(runners)} models in this process, not one")
    return runners[0]


def check(config: Any, runner: Any) -> None:
    """Raises UnsupportedError, naming what cannot be kept."""
    args, model = runner.server_args, runner.model_config
    refused = {
        "speculative decoding, whose caches also follow from tokens that were rejected":
            bool(args.speculative_algorithm),
        "LoRA adapters, which SGLang knows by name and path": bool(args.enable_lora or
                                                                   args.lora_paths),
        "models with images or sounds, which SGLang may know by what their sender calls them":
            model.is_multimodal,
        "a model that does not generate": not model.is_generation,
        "context parallelism": config.attn_cp_size > 1 or config.dcp_size > 1,
        "pages that are split by heads (tp_lcm_size)": bool(config.tp_lcm_size),
        "ranks on several machines, whose files are not seen": args.nnodes > 1,
        "K and V that another engine computed (disaggregation_mode decode)":
            args.disaggregation_mode == "decode",
        f"load format {args.load_format}: its weights are not in files of the model's folder":
            str(args.load_format) not in _LOAD_FORMATS,
        "hooks in the model (forward_hooks)": bool(args.forward_hooks),
        "weights that leave memory while the engine sleeps (enable_memory_saver)":
            bool(args.enable_memory_saver),
    }
    for what, is_so in refused.items():
        if is_so:
            raise UnsupportedError(f"quire.sglang does not keep {what}")


def facts(config: Any, runner: Any, started_s: float) -> tuple[dict[str, Any], str]:
    """Everything that decides a rank's pages, but for how they lie in memory, and why it cannot be
    found again ("": it can).

    Weights are named by the digests of their files, which are read here. If one changed after this
    process began, it may differ from what was loaded.
    """
    args, model = runner.server_args, runner.model_config
    files = weight_files(model.model_path, model.revision, args.download_dir)
    facts = {
        "engine": ["sglang", sglang.__version__, torch.__version__],
        "config": described(model.hf_config),
        "weights": [(path.name, file_digest(path)) for path in files],
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "length": model.context_len,  # some models choose rope factors by it
        "options": {name: str(getattr(args, name)) for name in _KERNELS},
        "ranks": [config.pp_size, config.tp_size],
        "device": [runner.device, *(processor() if runner.device == "cpu"
                                    else [get_device_name()])],
    }
    return facts, changed_after(files, started_s)


def rank_of(config: Any) -> str:
    """MLA's latents are the same in all tensor ranks, and only one of these writes."""
    return f"pp{config.pp_rank}" + ("" if config.is_mla_model else f" tp{config.tp_rank}")


def watch(runner: Any) -> Watch:
    return Watch([runner.model])
