"""llama-cpp-python with quire.llama_cpp: the same greedy tokens without a cache, on a miss, on a hit,
after a restart, with damaged, cut off, missing and foreign records; what it takes of the disk."""

import contextlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BINARY = Path(os.environ.get("QUIRE_BINARY") or HERE.parents[2] / "build/release/quire")
HANG_S = 300  # far beyond what anything here takes
FLASH, PLAIN = {"flash_attn": True}, {"flash_attn": False}
CAP = 64 << 20  # engine.py's


def prompt(number, tokens=300):
    return [(i * 37 + number * (i // 200)) % 500 + 5 for i in range(tokens)]


class World:
    def __init__(self, folder):
        self.folder, self.store = folder, folder / "store"
        self.model = self.make_model("model.gguf", 0)

    def make_model(self, name, seed):
        path = self.folder / name
        subprocess.run([sys.executable, HERE / "make_model.py", path, str(seed)], check=True)
        return path

    def start(self, store, options=FLASH, model=None):
        engine = subprocess.Popen([sys.executable, HERE / "engine.py", model or self.model,
                                   str(store), json.dumps(options)], text=True, bufsize=1,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert engine.stdout.readline() == "READY\n"
        return engine

    def answers(self, prompts, store=None, options=FLASH, model=None):
        engine = self.start(store or self.store, options, model)
        text = "".join(json.dumps(tokens) + "\n" for tokens in prompts)
        out, _ = engine.communicate(text, timeout=HANG_S)
        assert engine.returncode == 0
        return [json.loads(line) for line in out.splitlines()]

    def texts(self, prompts, **where):
        return [answer["text"] for answer in self.answers(prompts, **where)]

    def evaluated(self, prompts, **where):
        return [answer["evaluated"] for answer in self.answers(prompts, **where)]

    def segments(self):
        return sorted(self.store.glob("segment-*"))


@pytest.fixture(name="world")
def made(tmp_path):
    return World(tmp_path)


def ask(engine, tokens):
    engine.stdin.write(json.dumps(tokens) + "\n")
    engine.stdin.flush()
    return json.loads(engine.stdout.readline())


@pytest.mark.parametrize("options", [FLASH, PLAIN, FLASH | {"type_k": 8, "type_v": 8}],
                         ids=["flash", "transposed", "q8_0"])
def test_the_same_text_from_a_miss_a_hit_and_another_process(world, options):
    prompts = [prompt(0), prompt(0)[:200] + [7] * 20, prompt(0) + [9] * 10]
    plain = [world.texts([tokens], store="none", options=options)[0] for tokens in prompts]
    assert len(set(plain)) == 3
    first = world.answers(prompts, options=options)
    assert [answer["text"] for answer in first] == plain
    again = world.answers(prompts, options=options)
    assert [answer["text"] for answer in again] == plain
    assert [answer["evaluated"] for answer in again] == [1, 1, 1]
    other = prompt(0)[:200] + [8] * 50
    answer = world.answers([other], options=options)[0]
    assert answer["evaluated"] == 250 - 192  # whole blocks of 32 of what they share
    assert answer["text"] == world.texts([other], store="none", options=options)[0]


def test_what_the_context_has_is_not_loaded_over(world):
    world.answers([prompt(0)])
    engine = world.start(world.store)
    assert ask(engine, prompt(0))["evaluated"] == 1
    assert ask(engine, prompt(0, 310))["evaluated"] == 10
    assert ask(engine, prompt(3))["evaluated"] == 100
    engine.communicate(timeout=HANG_S)


@pytest.mark.parametrize("harm", ["bits", "zeros", "cut", "missing"])
def test_what_is_damaged_is_computed_again(world, harm):
    expected = world.texts([prompt(0)])
    for path in world.segments():
        data = bytearray(path.read_bytes())
        places = [at for at in range(0, len(data), 4096) if data[at:at + 8] == b"QUIREREC"]
        if harm == "missing":
            path.unlink()
        elif harm == "cut":
            os.truncate(path, len(data) // 2)
        elif places:
            for at in places:
                data[at + 9000] ^= 1
                if harm == "zeros":
                    data[at:at + 4096] = bytes(4096)
            path.write_bytes(data)
    assert world.texts([prompt(0)]) == expected
    assert world.answers([prompt(0)])[0] == {"text": expected[0], "evaluated": 1}


def test_foreign_blocks_are_misses(world):
    """Blocks of another form under the very keys: cut off, of other lengths, no layout, other tokens."""
    from quire.store import BlockStore
    expected = world.texts([prompt(0)], store="none")
    finder = ("import sys, llama_cpp\nfrom quire._llama_blocks import ids\n"
              "from quire.llama_cpp import QuireCache\n"
              "llm = llama_cpp.Llama(sys.argv[1], n_ctx=4096, n_threads=1, verbose=False, seed=1,"
              " flash_attn=True)\n"
              "cache = QuireCache(llm, sys.argv[2])\n"
              f"tokens = ids({prompt(0)})\n"
              "print(cache._blocks.namespace)\n"
              "for key in [*cache._blocks.blocks(tokens), *cache._blocks.tails(tokens, (12,))]:\n"
              "    print(key.hex())\n")
    run = subprocess.run([sys.executable, "-c", finder, world.model, world.folder / "other"],
                         capture_output=True, text=True, check=True, timeout=HANG_S)
    namespace, *keys = run.stdout.split("\n")[:-1]
    keys = [bytes.fromhex(key) for key in keys]
    assert len(keys) == 10
    layout = b'["",[]]'
    for foreign in (b"", b"QLC1", b"QLC1" + bytes(100), os.urandom(25_000),
                    b"QLC1" + struct.pack("<I", 1 << 31) + bytes(100),
                    b"QLC1" + struct.pack("<I", len(layout)) + layout,
                    b"QLC1" + struct.pack("<I", 4) + b"nota"):
        shutil.rmtree(world.store, ignore_errors=True)
        with BlockStore(world.store, cap_bytes=CAP) as store:
            store.put_many(keys, [foreign] * len(keys), namespace=namespace)
        assert world.answers([prompt(0)])[0] == {"text": expected[0], "evaluated": 300}


def test_another_model_type_or_context_finds_nothing(world):
    world.answers([prompt(0)])
    other = world.make_model("other.gguf", 1)
    assert world.evaluated([prompt(0)], model=other) == [300]
    shutil.move(other, world.model)  # new weights at the old path
    assert world.evaluated([prompt(0)]) == [1], "those of the other model were stored"
    shutil.rmtree(world.store)
    world.answers([prompt(0)])
    for options in (PLAIN, FLASH | {"type_k": 8}, FLASH | {"rope_freq_base": 20_000.0}):
        assert world.evaluated([prompt(0)], options=options) == [300], options


def test_the_cap_holds_and_a_killed_engine_leaves_a_good_store(world):
    expected = world.texts([prompt(1)], store="none")[0]
    engine = world.start(world.store)
    for number in range(40):
        ask(engine, [(i * 31 + number * 7) % 500 + 5 for i in range(1500)])
        size = sum(path.stat().st_size for path in world.store.rglob("*") if path.is_file())
        assert size <= CAP
    assert ask(engine, prompt(1))["text"] == expected
    engine.stdin.write(json.dumps(prompt(2)) + "\n")
    engine.stdin.flush()
    time.sleep(0.05)
    engine.kill()
    engine.wait(HANG_S)
    assert world.texts([prompt(1)]) == [expected]


def test_eight_engines_on_one_served_store(world):
    if not BINARY.is_file():
        pytest.skip(f"{BINARY} is not built")
    socket = world.folder / "socket"

    def serve():
        owner = subprocess.Popen([BINARY, "store", "serve", world.store, "--socket", socket,
                                  "--cap-bytes", str(CAP), "--json"], stdout=subprocess.PIPE)
        assert owner.stdout.readline()
        return owner

    prompts = [prompt(number) for number in range(8)]
    expected = world.texts(prompts, store="none")
    owner = serve()
    engines = [world.start(f"unix:{socket}") for _ in prompts]
    try:
        for engine, tokens in zip(engines, prompts):
            engine.stdin.write(json.dumps(tokens) + "\n")
            engine.stdin.flush()
        answers = [json.loads(engine.stdout.readline()) for engine in engines]
        assert [answer["text"] for answer in answers] == expected
        last = ask(engines[0], prompts[7])  # another one's
        assert (last["text"], last["evaluated"]) == (expected[7], 1)
        engines.pop().kill()
        owner.kill()
        owner.wait(HANG_S)
        assert ask(engines[1], prompts[5])["text"] == expected[5], "without an owner"
        owner = serve()
        texts = [ask(engine, prompts[6])["text"] for engine in engines]
        assert texts == [expected[6]] * len(engines)
        for engine in engines:
            engine.communicate(timeout=HANG_S)
    finally:
        for process in [*engines, owner]:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(HANG_S)


def test_shared_beginnings_are_stored_once(world):
    """Beside llama-cpp-python's own disk cache: 100 prompts that share 2,000 tokens, tails of 100. What
    that one stores is measured without lookups, as each one that hits takes a state out of it."""
    program = ("import json, sys, llama_cpp\n"
               "from llama_cpp.llama_cache import LlamaDiskCache\n"
               "llm = llama_cpp.Llama(sys.argv[1], n_ctx=4096, n_threads=1, verbose=False, seed=1,"
               " flash_attn=True)\n"
               "cache = LlamaDiskCache(sys.argv[2], capacity_bytes=64 << 30)\n"
               "for line in sys.stdin:\n"
               "    llm.create_completion(json.loads(line), max_tokens=24, temperature=0.0)\n"
               "    cache[tuple(llm.input_ids[:llm.n_tokens].tolist())] = llm.save_state()\n")
    shared = [(i * 37) % 500 + 5 for i in range(2000)]
    prompts = [shared + random.Random(number).choices(range(5, 500), k=100) for number in range(100)]
    lines = "".join(json.dumps(tokens) + "\n" for tokens in prompts[:10])
    subprocess.run([sys.executable, "-c", program, world.model, world.folder / "own"], input=lines,
                   text=True, check=True, timeout=HANG_S)
    own = 10 * sum(path.stat().st_size for path in (world.folder / "own").rglob("*")
                   if path.is_file())  # each of its states is alike
    world.answers(prompts)
    from quire.store import BlockStore
    with BlockStore(world.store, cap_bytes=CAP) as store:
        stats = store.stats()
    print(f"BYTES own {own} quire {stats['bytes_live']} ratio {own / stats['bytes_live']:.1f}")
    assert stats["evicted"] == 0
    assert stats["bytes_live"] * 8 <= own
