"""Objects in a child of os.fork(), threads that are at work while the program ends, pickled errors."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import DIM, KV_HEADS, LAYERS, QUERY_HEADS, compute, digest, longest_stall, make_cache, rows

import quire
import quire.store

PROMPT = list(range(300, 370))
END_S = 60  # a program that has not ended by then hangs


def run_program(text, *arguments):
    """Runs a program beside these tests; its exit code is 0 and stderr empty, or this raises."""
    text = "import sys; sys.path.insert(0, sys.argv[1])\nfrom test_processes import *\n" + text
    run = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", text,
                          pathlib.Path(__file__).parent, *arguments],
                         capture_output=True, text=True, timeout=END_S)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def in_child(work):
    """Runs work() in a forked child that ends as a program does; raises where it did not."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    limit = time.monotonic() + END_S
    while time.monotonic() < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, f"the child ended with status {status}"
            return
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def identity_of(store):
    return quire.Identity(digest("weights"), domain="d", domain_secret=store.secret())


def everything(directory):
    """One object of each kind, all in use."""
    store = quire.DiskStore(directory)
    budget = quire.SharedBudget(64 << 20)
    cache = make_cache(store=store, shared_budget=budget)
    sequence = compute(cache, identity_of(store), PROMPT)
    view = sequence.view(0, "key")
    attention = quire.Attention(4)
    queries = rows(PROMPT[-1:], 0, QUERY_HEADS, "query")
    attention.attend(0, sequence, queries)
    store.flush()
    other = make_cache(store=store)
    ticket = other.load(other.acquire(PROMPT, identity_of(store)))
    return {"store": store, "budget": budget, "cache": cache, "sequence": sequence, "view": view,
            "array": view.numpy(0), "attention": attention, "queries": queries,
            "plan": cache.acquire(PROMPT, identity_of(store)), "other": other, "ticket": ticket}


def calls(of):
    identity = quire.Identity(digest("weights"))
    return {
        "the store": [of["store"].flush, of["store"].stats, of["store"].secret],
        "the shared budget": [lambda: of["budget"].used_bytes, lambda: of["budget"].resize(1 << 20)],
        "the cache": [of["cache"].stats, lambda: of["cache"].acquire(PROMPT, identity),
                      lambda: of["cache"].open(of["plan"]), lambda: of["cache"].evict(1)],
        "the plan": [lambda: of["plan"].resident_tokens],
        "the sequence": [of["sequence"].fork, lambda: of["sequence"].gather(0, "key"),
                         lambda: len(of["sequence"])],
        "the view": [lambda: of["view"].numpy(0), lambda: len(of["view"])],
        "the ticket": [of["ticket"].wait, of["ticket"].take],
        "the attention": [lambda: of["attention"].attend(0, of["sequence"], of["queries"])],
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork, beside threads
def test_a_forked_child_is_refused_by_every_object_and_ends_cleanly(tmp_path):
    of = everything(str(tmp_path / "store"))
    expected = np.array(of["array"])

    def child():
        for name, list_of_calls in calls(of).items():
            for call in list_of_calls:
                with pytest.raises(quire.InvalidArgumentError, match=f"{name} .*another process"):
                    call()
        np.testing.assert_array_equal(of["array"], expected)  # memory is the child's own
        assert "another process" in repr(of["cache"]) and "another process" in repr(of["store"])
        for name in ("ticket", "plan", "view", "sequence", "cache", "other", "store"):
            with of[name]:
                pass  # leaving it is no error, as it hides the one that a child raised inside
            of[name].close()
        of.clear()  # and so is dropping all of it

    in_child(child)
    of["ticket"].take().close()
    np.testing.assert_array_equal(of["array"], expected)
    of["attention"].attend(0, of["sequence"], of["queries"])
    of["store"].flush()


FORK_AND_END = """
of = everything(sys.argv[2])
child = os.fork()
if child != 0:
    limit = time.monotonic() + 10
    ended, status = 0, 0
    while ended == 0:
        if time.monotonic() > limit:
            os.kill(child, 9)
            sys.exit("the child hangs at its end")
        time.sleep(0.005)
        ended, status = os.waitpid(child, os.WNOHANG)
    assert status == 0, status
    of["store"].flush()
    print("parent", len(of["sequence"]))
"""


def files_of(directory):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in pathlib.Path(directory).rglob("*") if path.is_file()}


def test_a_forked_child_ends_as_a_program_does(tmp_path):
    assert run_program(FORK_AND_END, tmp_path / "store") == f"parent {len(PROMPT)}\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_writes_to_no_file_of_its_parent(tmp_path):
    directory = tmp_path / "store"
    of = everything(str(directory))
    blocks = quire.store.BlockStore(tmp_path / "blocks", cap_bytes=32 << 20)
    blocks.put("key", b"data")
    of["store"].flush()
    before = files_of(tmp_path)

    def child():
        with pytest.raises(quire.InvalidArgumentError, match="the store .*another process"):
            blocks.put("other", b"data")
        for call in (lambda: blocks.get("key"), blocks.stats, blocks.flush, blocks.event_fd,
                     blocks.drain, lambda: blocks.wait(1)):
            with pytest.raises(quire.InvalidArgumentError, match="the store .*another process"):
                call()
        blocks.close()
        of.clear()

    in_child(child)
    assert files_of(tmp_path) == before
    assert blocks.get("key") == b"data"
    blocks.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_makes_objects_of_its_own(tmp_path):
    kept = everything(str(tmp_path / "store"))

    def child():
        mine = everything(str(tmp_path / "other"))
        assert mine["ticket"].take().resident_tokens == 64
        mine["store"].close()
        with quire.store.BlockStore(tmp_path / "blocks", cap_bytes=32 << 20) as blocks:
            blocks.put("key", b"data")
        with pytest.raises(quire.BusyError):
            quire.DiskStore(str(tmp_path / "store"))

    in_child(child)
    assert kept["store"].stats()["records"] >= 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_living_child_does_not_keep_the_stores_of_its_parent_locked(tmp_path):
    store = quire.DiskStore(str(tmp_path / "store"))
    blocks = quire.store.BlockStore(tmp_path / "blocks", cap_bytes=32 << 20)
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        store.close()
        blocks.close()
        quire.DiskStore(str(tmp_path / "store")).close()
        quire.store.BlockStore(tmp_path / "blocks", cap_bytes=32 << 20).close()
    finally:
        process.terminate()
        process.join()


POOL = """
of = everything(sys.argv[2])

def work(number):
    try:
        of["cache"].stats()
    except quire.InvalidArgumentError as error:
        return str(error)

def refuse(number):
    raise quire.NoSpaceError("no room")

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for said in pool.map(work, range(8)):
            assert "another process" in said and "spawn" in said, said
        try:
            pool.map(refuse, [1])
        except quire.NoSpaceError as error:
            assert str(error) == "no room"
        pool.close()
        pool.join()
    assert subprocess.run([sys.executable, "-c", "pass"]).returncode == 0
    assert subprocess.run(["true"], preexec_fn=os.getpid).returncode == 0
    of["store"].close()
    print("done")
"""


def test_pools_of_multiprocessing_and_subprocesses(tmp_path):
    assert run_program(POOL, tmp_path / "store") == "done\n"


LOADER = """
import torch
of = everything(sys.argv[2])

class Prompts(torch.utils.data.Dataset):
    def __init__(self, cache):
        self.cache = cache  # as a data set that counts tokens by the cache has it

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return torch.full((4,), number)

class Wrong(Prompts):
    def __getitem__(self, number):
        return self.cache.stats()["hit_tokens"]

def loaded(data):
    return [b.tolist() for b in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)]

assert len(loaded(Prompts(of["cache"]))) == 2
try:
    loaded(Wrong(of["cache"]))
except quire.InvalidArgumentError as error:
    assert "another process" in str(error)
of["store"].close()
print("done")
"""


def test_workers_of_a_data_loader(tmp_path):
    pytest.importorskip("torch")
    assert run_program(LOADER, tmp_path / "store") == "done\n"


AT_EXIT = """
of = everything(sys.argv[2])
cache, sequence, attention = of["cache"], of["sequence"], of["attention"]
queries = np.zeros((40, 64, DIM), np.float32)
identity = quire.Identity(digest("weights"))
blocks = quire.store.BlockStore(sys.argv[2] + "-blocks", cap_bytes=32 << 20,
                                commit_interval_s=0.001)
loops = {
    "attend": lambda i: attention.attend(0, sequence, queries),
    "acquire": lambda i: cache.acquire(PROMPT, identity).close(),
    "gather": lambda i: sequence.gather(0, "key"),
    "flush": lambda i: of["store"].flush(),
    "put": lambda i: blocks.put(f"key {i}", b"data" * 1000),
    "ticket": lambda i: of["other"].load(of["other"].acquire(PROMPT, identity_of(of["store"]))).wait(),
}

def loop(call):
    i = 0
    try:
        while True:
            call(i)
            i += 1
    except quire.InvalidArgumentError as error:  # the end closes the store of blocks
        assert "closed" in str(error)

for _ in range(2):
    threading.Thread(target=loop, args=(loops[sys.argv[3]],), daemon=True).start()
time.sleep(0.05)
"""


@pytest.mark.parametrize("call", ["attend", "acquire", "gather", "flush", "put", "ticket"])
def test_daemon_threads_at_work_do_not_abort_the_end(tmp_path, call):
    for time_of in range(3):
        run_program(AT_EXIT, tmp_path / f"store{time_of}", call)


def test_errors_can_be_pickled(tmp_path):
    with quire.store.BlockStore(tmp_path / "blocks", cap_bytes=32 << 20) as blocks:
        raised = []
        for call in (lambda: quire.store.BlockStore(tmp_path / "blocks", cap_bytes=32 << 20),
                     lambda: blocks.put("key", bytes(17 << 20)), lambda: blocks.wait(77),
                     lambda: make_cache(codec="int9")):
            with pytest.raises(quire.Error) as refused:
                call()
            raised.append(refused.value)
    for error in raised:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert again.code == error.code != "error"


def test_gather_lets_other_threads_run(identity):
    tokens = list(range(60_000))
    cache = make_cache(hot_bytes=256 << 20)
    sequence = cache.open(cache.acquire(tokens, identity), step_tokens=len(tokens))
    some = np.ones((len(tokens), KV_HEADS, DIM), np.float32)
    for layer in range(LAYERS):
        sequence.append(layer, some, some)
    sequence.commit(tokens)

    def padded():
        return quire.gather_padded([sequence] * 12, 0, "key", len(tokens))

    shares = [longest_stall(padded) for _ in range(5)]
    assert min(shares) < 0.25, f"another thread stood still for {min(shares):.2f} of it at best"
