"""One vLLM process on the CPU: `engine.py MODEL PORT CALLS` generates the same prompt CALLS times
through the LMCache server at PORT (0: without LMCache), and prints for each call a line of JSON:
{"tokens": [...], "cached": tokens of the prompt that were not computed}."""

import json
import os
import sys
import time

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
                  HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
                  OMP_NUM_THREADS="1", DO_NOT_TRACK="1", LMCACHE_TRACK_USAGE="false",
                  PYTHONHASHSEED="0")

import vllm.triton_utils.dispatcher as dispatcher  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402

# vLLM 0.32 calls vars() on what llvmlite, which LMCache imports, answers with no dictionary.
dispatcher.vars = lambda value: value.__dict__ if isinstance(value.__dict__, dict) else {}

PROMPT = [(i * 37) % 500 + 3 for i in range(200)]


def main(model, port, calls):
    options = {}
    if port:
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="LMCacheMPConnector", kv_role="kv_both",
            kv_connector_extra_config={"lmcache.mp.host": "tcp://127.0.0.1",
                                       "lmcache.mp.port": port,
                                       "lmcache.mp.mp_transfer_mode": "lmcache_driven"})
    engine = LLM(model=model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
                 max_model_len=512, max_num_seqs=4, block_size=32, enable_prefix_caching=False,
                 disable_log_stats=True, **options)
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
    for _ in range(calls):
        output = engine.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)[0]
        print("RESULT", json.dumps({"tokens": list(output.outputs[0].token_ids),
                                    "cached": output.num_cached_tokens or 0}), flush=True)
        time.sleep(2)  # LMCache stores after the answer


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
