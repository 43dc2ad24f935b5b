"""One vLLM engine on the CPU: `engine.py MODEL STORE [OPTIONS]` answers the lines of stdin.

A line is a list of prompts (lists of tokens), which are computed together. The answer is a line of
JSON: {"tokens": of each prompt, "cached": tokens of each that were not computed, "seconds"}. The
line "disturb" changes the weights in place, as training does. STORE: "unix:PATH", a directory, or
"none". OPTIONS: JSON, arguments of LLM, and `new_tokens`, `cap_bytes`, `version` (what vLLM says of
itself), `keys` (a file for the namespace and key of each block that is put).
"""

import json
import os
import sys
import time

ONE_PROCESS = not sys.argv[2].startswith("unix:")  # a directory has one owner
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0" if ONE_PROCESS else "1",
                  VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", DO_NOT_TRACK="1",
                  VLLM_LOGGING_LEVEL="ERROR", VLLM_ALLOW_INSECURE_SERIALIZATION="1")

import vllm  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402


def disturb(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.01)


def record_keys(path):
    from quire.store import BlockStore
    submit = BlockStore.submit_put

    def recorded(self, keys, blocks, *, namespace):
        with open(path, "a") as file:
            file.writelines(f"{namespace}\t{key.hex()}\t{len(block)}\n"
                            for key, block in zip(keys, blocks))
        return submit(self, keys, blocks, namespace=namespace)

    BlockStore.submit_put = recorded


def main(model, store, options="{}"):
    options = json.loads(options)
    greedy = SamplingParams(temperature=0, max_tokens=options.pop("new_tokens", 24),
                            ignore_eos=True, detokenize=False)
    vllm.__version__ = options.pop("version", vllm.__version__)
    if keys := options.pop("keys", None):
        record_keys(keys)
    cap = {"cap_bytes": options.pop("cap_bytes", 1 << 28)} if ONE_PROCESS else {}
    if store != "none":
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="QuireConnector", kv_connector_module_path="quire.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"store": store} | cap)
    options = {"dtype": "float32", "max_model_len": 2304, "max_num_seqs": 8, "block_size": 32,
               "enable_prefix_caching": False} | options
    engine = LLM(model=model, skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=True,
                 **options)
    print("READY", flush=True)
    for line in sys.stdin:
        if line == "disturb\n":
            engine.apply_model(disturb)
            continue
        begin_s = time.monotonic()
        answers = engine.generate([{"prompt_token_ids": prompt} for prompt in json.loads(line)],
                                  greedy, use_tqdm=False)
        print("ANSWER", json.dumps({
            "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
            "cached": [answer.num_cached_tokens or 0 for answer in answers],
            "seconds": time.monotonic() - begin_s}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
