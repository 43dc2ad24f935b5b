"""What a hit spares, and what the store takes: `bench.py FOLDER [PAIRS]`, in run.sh's environment.

First the time to the first token of a prompt of 2,000 tokens, new and then stored, in turn. Then
writing (made durable) and reading 128 MiB, as records of whole blocks, as records of single layers,
and as plain files, in turn. Prints medians, and those of the ratios of neighbours.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from world import Engine

from quire.store import BlockStore

LAYERS, KV_HEADS, HEAD, BLOCK = 8, 4, 64, 32
LAYER_BYTES = 2 * KV_HEADS * HEAD * BLOCK * 4  # of a block, f32
TOTAL_BYTES = 128 << 20


def make_model(folder):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=512, hidden_size=512, intermediate_size=1536, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=KV_HEADS, head_dim=HEAD,
        max_position_embeddings=4096, tie_word_embeddings=False)).save_pretrained(folder)


def first_tokens(folder, pairs):
    make_model(folder / "model")
    time.sleep(3)  # files that are as new as the engine name nothing
    misses, hits = [], []
    with Engine(folder / "model", folder / "hits", new_tokens=1) as engine:
        for number in range(pairs + 1):
            prompt = [(i * 31 + number * 7) % 500 + 3 for i in range(2000)]
            miss = engine.ask(prompt)
            time.sleep(1)  # it is written behind the answer
            hit = engine.ask(prompt)
            assert (miss["cached"], hit["cached"]) == ([0], [1984]), (miss, hit)
            assert miss["tokens"] == hit["tokens"]
            if number > 0:  # the first warms up
                misses.append(miss["seconds"])
                hits.append(hit["seconds"])
    said("first token, miss", misses, "s")
    said("first token, hit of 1,984 tokens", hits, "s")
    said("miss / hit", [miss / hit for miss, hit in zip(misses, hits)], "")


def on_store(folder, name, size):
    count = TOTAL_BYTES // size
    blocks = list(torch.randint(0, 256, (count, size), dtype=torch.uint8))
    outs = [torch.empty(size, dtype=torch.uint8) for _ in blocks]
    with BlockStore(folder / "store", cap_bytes=1 << 30, memory_bytes=0) as store:
        keys = [f"{name} {at}" for at in range(count)]
        begin_s = time.monotonic()
        store.put_many(keys, blocks)
        put_s = time.monotonic() - begin_s
        begin_s = time.monotonic()
        store.wait(store.submit_get(keys, outs))
        get_s = time.monotonic() - begin_s
    assert torch.equal(outs[-1], blocks[-1])
    return TOTAL_BYTES / put_s / 1e9, TOTAL_BYTES / get_s / 1e9


def on_files(folder, name, size):
    data = os.urandom(size)
    paths = [folder / f"{name} {at}" for at in range(TOTAL_BYTES // size)]
    begin_s = time.monotonic()
    files = [open(path, "wb", buffering=0) for path in paths]
    for file in files:
        file.write(data)
    for file in files:
        os.fsync(file.fileno())
    put_s = time.monotonic() - begin_s
    for file in files:  # the store's reads do not come from the system's cache either
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.close()
    out = bytearray(size)
    begin_s = time.monotonic()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            assert file.readinto(out) == size
    get_s = time.monotonic() - begin_s
    for path in paths:
        path.unlink()
    return TOTAL_BYTES / put_s / 1e9, TOTAL_BYTES / get_s / 1e9


def throughputs(folder, pairs):
    whole, layer, files = [], [], []
    for number in range(pairs):
        whole.append(on_store(folder, f"whole {number}", LAYERS * LAYER_BYTES))
        layer.append(on_store(folder, f"layer {number}", LAYER_BYTES))
        files.append(on_files(folder, f"file {number}", LAYERS * LAYER_BYTES))
    for at, call in enumerate(("put", "get")):
        for what, speeds in (("whole blocks", whole), ("layers", layer), ("files", files)):
            said(f"{call}, {what}", [speed[at] for speed in speeds], "GB/s")
        said(f"{call}, whole blocks / layers", [a[at] / b[at] for a, b in zip(whole, layer)], "")
        said(f"{call}, whole blocks / files", [a[at] / b[at] for a, b in zip(whole, files)], "")


def said(what, values, unit):
    print(f"{what:40} {statistics.median(values):8.3f} {unit:5} "
          f"({min(values):.3f} to {max(values):.3f}, {len(values)})", flush=True)


if __name__ == "__main__":
    first_tokens(Path(sys.argv[1]), int((sys.argv[2:] or ["7"])[0]))
    throughputs(Path(sys.argv[1]), int((sys.argv[2:] or ["7"])[0]))
