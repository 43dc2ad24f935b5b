"""What the store takes through SGLang's interface, beside SGLang's own file backend: `bench.py FOLDER [ROUNDS]`,
in run.sh's environment (PYTHONPATH: stubs and the folder above).

Writes and reads 64 MiB of pages of 64 tokens between a host pool and the disk, in turns: Quire through the fast path
from pools of two layouts, `HiCacheFile` as SGLang's controller calls it. Writing is timed until the call returns and until
the pages are durable; reading comes from the disk. Prints medians, and those of the ratios of neighbours.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import torch
from pools import config, mha_pool, rows_of, runner
from quire.sglang import QuireHiCacheStorage, _identity
from quire.store import BlockStore
from sglang.srt.mem_cache.hicache_storage import HiCacheFile

PAGE, PAGES, LAYERS, HEADS, WIDTH = 64, 64, 8, 4, 64  # 1 MiB a page, f32
BYTES = 2 * PAGE * PAGES * LAYERS * HEADS * WIDTH * 4
CAP = 1 << 30
NEVER_S = 2e10  # a process that began after all files


def on_quire(folder, round_, layout):
    """GB/s of putting until it returns, until it is durable, and of getting."""
    import quire.sglang
    pool = mha_pool(layout, page=PAGE, layers=LAYERS, heads=HEADS, width=WIDTH,
                    tokens=PAGE * PAGES // 2)
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape))
    before = pool.kv_buffer.clone()
    model_runner = runner(folder / "model")
    _identity.model_runner = lambda: model_runner
    quire.sglang.process_start_s = lambda: NEVER_S
    keys, rows = [f"{round_}-{page}" for page in range(PAGES)], rows_of(range(PAGES), PAGE)

    def opened(**options):
        quire.sglang._open_store = lambda *_: BlockStore(folder / "store", cap_bytes=CAP,
                                                         **options)
        storage = QuireHiCacheStorage(config(), {})
        storage.register_mem_pool_host(pool)
        return storage

    storage = opened(accepts_puts=True)
    begin_s = time.monotonic()
    assert all(storage.batch_set_v1(keys, rows))
    put_s = time.monotonic() - begin_s
    storage._store.flush()
    durable_s = time.monotonic() - begin_s
    storage.close()
    storage = opened(memory_bytes=0)
    pool.kv_buffer.zero_()
    begin_s = time.monotonic()
    assert all(storage.batch_get_v1(keys, rows))
    get_s = time.monotonic() - begin_s
    storage.clear()
    storage.close()
    assert torch.equal(pool.kv_buffer.view(-1)[:1000], before.view(-1)[:1000])
    return [BYTES / seconds / 1e9 for seconds in (put_s, durable_s, get_s)]


def on_file(folder, round_):
    """The same of SGLang's own backend, as `_generic_page_set` and `_generic_page_get` call it."""
    pool = mha_pool("layer_first", page=PAGE, layers=LAYERS, heads=HEADS, width=WIDTH,
                    tokens=PAGE * PAGES // 2)
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape))
    storage = HiCacheFile(config(), str(folder / "files"))
    keys = [f"{round_}-{page}" for page in range(PAGES)]
    begin_s = time.monotonic()
    assert storage.batch_set(keys, [pool.get_data_page(page * PAGE) for page in range(PAGES)])
    put_s = time.monotonic() - begin_s
    paths = [folder / "files" / f"{storage._get_suffixed_key(key)}.bin" for key in keys]
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    durable_s = time.monotonic() - begin_s
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin_s = time.monotonic()
    pages = storage.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    for page, data in enumerate(pages):
        pool.set_from_flat_data_page(page * PAGE, data)
    get_s = time.monotonic() - begin_s
    storage.clear()
    return [BYTES / seconds / 1e9 for seconds in (put_s, durable_s, get_s)]


def main(folder, rounds):
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    (folder / "files").mkdir(exist_ok=True)
    speeds = {"page_first": [], "layer_first": [], "file": []}
    for round_ in range(rounds + 1):
        for name, of in speeds.items():
            of.append(on_file(folder, round_) if name == "file" else on_quire(folder, round_, name))
    for at, call in enumerate(("put, returned", "put, durable", "get")):
        for name, of in speeds.items():
            said(f"{call}, {name}", [speed[at] for speed in of[1:]], "GB/s")  # the first warms up
        for name in ("page_first", "layer_first"):
            said(f"{call}, {name} / file",
                 [a[at] / b[at] for a, b in zip(speeds[name][1:], speeds["file"][1:])], "")


def said(what, values, unit):
    print(f"{what:36} {statistics.median(values):8.3f} {unit:5} "
          f"({min(values):.3f} to {max(values):.3f}, {len(values)})", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int((sys.argv[2:] or ["7"])[0]))
