"""One vLLM engine on the CPU, in a process of its own that was forked after the imports.

`serve` takes from its connection lists of prompts (lists of tokens), which are computed together, and
answers {"tokens": of each prompt, "cached": tokens of each that were not computed, "seconds"}; at
"disturb" it changes the weights in place, as training does; None ends it.
"""

import os
import time
import traceback

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", DO_NOT_TRACK="1",
                  VLLM_LOGGING_LEVEL="WARNING", VLLM_ALLOW_INSECURE_SERIALIZATION="1")

import vllm  # noqa: E402
from engine_processes import CAP, own_process, record_keys  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVEventsConfig, KVTransferConfig  # noqa: E402


def disturb(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.01)


def serve(connection, log, model, store, options):
    """store: "unix:PATH", a directory, or "none". options: arguments of LLM, and `new_tokens`,
    `cap_bytes`, `version` (what vLLM says of itself), `keys` (a file for what
    is put, as record_keys writes it), `kv_events` (fields of KVEventsConfig)."""
    own_process(log)
    try:
        engine, greedy = make(model, store, **options)
    except Exception:
        traceback.print_exc()
        connection.send("failed")
        return
    connection.send("ready")
    while (said := connection.recv()) is not None:
        if said == "disturb":
            engine.apply_model(disturb)
            continue
        begin_s = time.monotonic()
        answers = engine.generate([{"prompt_token_ids": prompt} for prompt in said], greedy,
                                  use_tqdm=False)
        connection.send({"tokens": [list(answer.outputs[0].token_ids) for answer in answers],
                         "cached": [answer.num_cached_tokens or 0 for answer in answers],
                         "seconds": time.monotonic() - begin_s})


def make(model, store, *, new_tokens=24, cap_bytes=CAP, version=None, keys=None, kv_events=None,
         **options):
    in_one_process = not store.startswith("unix:")  # a directory has one owner
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if in_one_process else "1"
    if version:
        vllm.__version__ = version
    if keys:
        record_keys(keys)
    if kv_events:
        options["kv_events_config"] = KVEventsConfig(**kv_events)
    if store != "none":
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="QuireConnector", kv_connector_module_path="quire.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"store": store} | (
                {"cap_bytes": cap_bytes} if in_one_process else {}))
    options = {"dtype": "float32", "max_model_len": 2304, "max_num_seqs": 8, "block_size": 32,
               "enable_prefix_caching": False} | options
    engine = LLM(model=str(model), skip_tokenizer_init=True, enforce_eager=True,
                 disable_log_stats=True, **options)
    return engine, SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True,
                                  detokenize=False)
