"""One SGLang engine on the CPU, in a process of its own that was forked after the imports.

`serve` takes from its connection lists of prompts (lists of tokens), which are computed together, and
answers {"tokens": of each prompt, "cached": tokens of each that were not computed, "stored": those of
them that came from the store, "seconds"}. "flush" empties SGLang's own caches and ("weights", FOLDER)
loads others, both answered; None ends it.
"""

import json
import multiprocessing
import os
import time
import traceback

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", DO_NOT_TRACK="1",
                  TORCHDYNAMO_DISABLE="1")

import cpu  # noqa: E402, F401
import sglang  # noqa: E402
from engine_processes import CAP, own_process, record_keys  # noqa: E402
from sglang.srt.entrypoints.engine import Engine  # noqa: E402


def serve(connection, log, model, store, options):
    """store: "unix:PATH", a directory, or "none". options: arguments of Engine, and `new_tokens`,
    `cap_bytes`, `version` (what SGLang says of itself), `interface_v1`, `keys` (a file for what is
    put, as record_keys writes it)."""
    own_process(log)
    # SGLang spawns its processes, whose imports take half a minute; these are forked.
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None
    try:
        engine, greedy = make(model, store, **options)
    except Exception:
        traceback.print_exc()
        connection.send("failed")
        return
    connection.send("ready")
    while (said := connection.recv()) is not None:
        if said == "flush":
            connection.send(engine.flush_cache().success)
        elif said[0] == "weights":
            connection.send(engine.update_weights_from_disk(said[1])[0])
        else:
            connection.send(answers(engine, list(said), greedy))
    engine.shutdown()


def answers(engine, prompts, greedy):
    begin_s = time.monotonic()
    made = engine.generate(input_ids=prompts, sampling_params=greedy)
    seconds = time.monotonic() - begin_s
    about = [answer["meta_info"] for answer in made]
    return {"tokens": [answer["output_ids"] for answer in made],
            "cached": [one["cached_tokens"] for one in about],
            "stored": [(one.get("cached_tokens_details") or {}).get("storage", 0)
                       for one in about],
            "seconds": seconds}


def make(model, store, *, new_tokens=24, cap_bytes=CAP, version=None, interface_v1=1, keys=None,
         **options):
    if version:
        sglang.__version__ = version
    if keys:
        record_keys(keys)
    if "tp_size" in options:  # several ranks on one NUMA node: a processor for each
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(
            str(rank % os.cpu_count()) for rank in range(options["tp_size"]))
    if store != "none":
        extra = {"backend_name": "quire", "module_path": "quire.sglang",
                 "class_name": "QuireHiCacheStorage", "interface_v1": interface_v1,
                 "prefetch_threshold": 16, "store": store}
        if not store.startswith("unix:"):
            extra["cap_bytes"] = cap_bytes
        options = {"enable_hierarchical_cache": True, "hicache_write_policy": "write_through",
                   "hicache_storage_prefetch_policy": "wait_complete",
                   "hicache_storage_backend": "dynamic",
                   "hicache_storage_backend_extra_config": json.dumps(extra),
                   "hicache_mem_layout": "layer_first", "hicache_io_backend": "direct"} | options
    options = {"dtype": "float32", "page_size": 16, "max_total_tokens": 4096} | options
    engine = Engine(model_path=model, device="cpu", skip_tokenizer_init=True,
                    attention_backend="torch_native", sampling_backend="pytorch",
                    disable_cuda_graph=True, disable_overlap_schedule=True,
                    mem_fraction_static=0.3, grammar_backend="none", log_level="info",
                    skip_server_warmup=True, **options)
    return engine, {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
