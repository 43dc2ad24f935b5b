"""What a hit spares, and what the store takes: `bench.py FOLDER [PAIRS]`, in run.sh's environment.

First the time to the first token of a prompt of 2,000 tokens, new and then stored, in turn. Then
writing (made durable) and reading 128 MiB, as records of whole blocks, as records of single layers,
as plain files, and by LMCache's local disk if `pip install --no-deps -r
tests/adapters/lmcache/requirements.txt` has added it to the environment, in turn. Prints medians,
and those of the ratios of neighbours.
"""

import asyncio
import os
import queue
import statistics
import sys
import threading
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


def lmcache_disk(folder):
    """LMCache's LocalDiskBackend, made as its engine makes it, with its defaults but for sizes."""
    os.environ.update(LMCACHE_LOG_LEVEL="ERROR", LMCACHE_TRACK_USAGE="false", DO_NOT_TRACK="1")
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend import CreateStorageBackends
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=BLOCK, local_disk=str(folder / "lmcache"), max_local_disk_size=16,
        max_local_cpu_size=1)
    metadata = LMCacheMetadata("bench", 1, 1, 0, 0, torch.float32,
                               (LAYERS, 2, BLOCK, KV_HEADS, HEAD), chunk_size=BLOCK)
    return CreateStorageBackends(config, metadata, loop)["LocalDiskBackend"]


def on_lmcache(disk, number):
    """Of whole blocks: put until its files are durable, get, put until its tasks have ended."""
    from lmcache.utils import CacheEngineKey
    count = TOTAL_BYTES // (LAYERS * LAYER_BYTES)
    keys = [CacheEngineKey("bench", 1, 0, number * count + at, torch.float32)
            for at in range(count)]
    shape = torch.Size([2, LAYERS, BLOCK, KV_HEADS * HEAD])
    blocks = [disk.local_cpu_backend.allocate(shape, torch.float32) for _ in keys]
    for block in blocks:
        block.tensor.normal_()
    last = blocks[-1].tensor.clone()
    ended = queue.SimpleQueue()
    begin_s = time.monotonic()
    disk.batched_submit_put_task(keys, blocks, on_complete_callback=ended.put)
    for _ in keys:
        ended.get(timeout=60)
    put_s = time.monotonic() - begin_s
    files = [open(path, "rb") for path in Path(disk.path).iterdir()]
    for file in files:
        os.fsync(file.fileno())
    durable_s = time.monotonic() - begin_s
    for file in files:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.close()
    for block in blocks:
        block.ref_count_down()
    begin_s = time.monotonic()
    blocks = disk.batched_get_blocking(keys)
    get_s = time.monotonic() - begin_s
    assert len(files) == count and torch.equal(blocks[-1].tensor, last)
    for key, block in zip(keys, blocks):
        block.ref_count_down()
        disk.remove(key)
    return TOTAL_BYTES / durable_s / 1e9, TOTAL_BYTES / get_s / 1e9, TOTAL_BYTES / put_s / 1e9


def throughputs(folder, pairs):
    ways = {"whole blocks": [], "layers": [], "files": []}
    try:
        disk = lmcache_disk(folder)
        ways["LMCache"] = []
    except ImportError as error:
        print(f"LMCache is not measured, as it is not installed: {error}")
    for number in range(pairs):
        ways["whole blocks"].append(on_store(folder, f"whole {number}", LAYERS * LAYER_BYTES))
        ways["layers"].append(on_store(folder, f"layer {number}", LAYER_BYTES))
        ways["files"].append(on_files(folder, f"file {number}", LAYERS * LAYER_BYTES))
        if "LMCache" in ways:
            ways["LMCache"].append(on_lmcache(disk, number))
    puts, gets = ({way: [speed[at] for speed in speeds] for way, speeds in ways.items()}
                  for at in range(2))
    if "LMCache" in ways:
        disk.close()
        puts["LMCache, not durable"] = [speed[2] for speed in ways["LMCache"]]
    said_beside("put", puts)
    said_beside("get", gets)


def said_beside(call, ways):
    for way, speeds in ways.items():
        said(f"{call}, {way}", speeds, "GB/s")
    (first, speeds), *others = ways.items()
    for way, others_speeds in others:
        said(f"{call}, {first} / {way}", [a / b for a, b in zip(speeds, others_speeds)], "")


def said(what, values, unit):
    print(f"{what:40} {statistics.median(values):8.3f} {unit:5} "
          f"({min(values):.3f} to {max(values):.3f}, {len(values)})", flush=True)


if __name__ == "__main__":
    first_tokens(Path(sys.argv[1]), int((sys.argv[2:] or ["7"])[0]))
    throughputs(Path(sys.argv[1]), int((sys.argv[2:] or ["7"])[0]))
