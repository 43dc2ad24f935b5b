"""SGLang's host pools, and what a storage asks of an engine, without an engine."""

from types import SimpleNamespace

import cpu  # noqa: F401
import torch
from quire.sglang import _identity
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

PAGE, LAYERS, HEADS, WIDTH, LATENT, ROPE = 4, 3, 2, 8, 16, 4
TOKENS = 64


def mha_pool(layout, dtype=torch.float32, *, page=PAGE, layers=LAYERS, heads=HEADS, width=WIDTH,
             tokens=TOKENS):
    """A pool of twice as many tokens, in pages."""
    rows = [torch.zeros(tokens, heads, width, dtype=dtype) for _ in range(2 * layers)]
    pointers = torch.tensor([layer.data_ptr() for layer in rows[:layers]])
    info = MHABufferInfo(
        buffers=KVBuffers(k=tuple(rows[:layers]), v=tuple(rows[layers:]),
                          k_data_ptrs=pointers, v_data_ptrs=pointers, layout=KVBufferLayout.NHD),
        page_size=page, head_num=heads, head_dim=width, v_head_dim=width, dtype=dtype,
        device=torch.device("cpu"))
    return MHATokenToKVPoolHost(info, 2.0, 0, page, layout, pin_memory=False,
                                device_capacity_tokens=tokens, start_layer=0, end_layer=layers)


def mla_pool(layout):
    layers = tuple(torch.zeros(TOKENS, 1, LATENT + ROPE) for _ in range(LAYERS))
    info = MLABufferInfo(
        buffers=layers, data_ptrs=torch.tensor([layer.data_ptr() for layer in layers]),
        layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS, page_size=PAGE,
        kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, kv_cache_dim=LATENT + ROPE,
        dtype=torch.float32, device=torch.device("cpu"))
    return MLATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False,
                                device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS,
                                target_layer_num=LAYERS)


def config(**changes):
    return HiCacheStorageConfig(**{
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0,
        "attn_cp_size": 1, "is_mla_model": False, "enable_storage_metrics": False,
        "is_page_first_layout": False, "model_name": "model"} | changes)


ARGS = {"speculative_algorithm": None, "enable_lora": None, "lora_paths": None, "nnodes": 1,
        "disaggregation_mode": "null", "load_format": "auto", "forward_hooks": None,
        "enable_memory_saver": False, "download_dir": None, "tp_size": 1, "pp_size": 1, "dp_size": 1}
MODEL = {"is_multimodal": False, "is_generation": True, "revision": None, "dtype": torch.float32,
         "quantization": None, "context_len": 64}


def runner(folder, **changes):
    """What the storage asks of SGLang's ModelRunner."""
    args = dict.fromkeys(_identity._KERNELS) | ARGS
    return SimpleNamespace(
        server_args=SimpleNamespace(**{name: changes.get(name, value)
                                       for name, value in args.items()}),
        model_config=SimpleNamespace(
            model_path=str(folder), hf_config=SimpleNamespace(to_dict=lambda: {"layers": LAYERS}),
            **{name: changes.get(name, value) for name, value in MODEL.items()}),
        model=torch.nn.Linear(4, 4), device="cpu")


def rows_of(pages, page=PAGE):
    return torch.cat([torch.arange(at * page, (at + 1) * page) for at in pages])
