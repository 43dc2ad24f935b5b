"""quire.store: what a user of Python sees of a store of blocks."""

import array
import asyncio
import gc
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import quire
from quire import _library, store
from quire.lmcache import QuireStore
from quire.store import BlockStore, DeadlineError, Outcome, StoreError

CAP = 32 << 20


def open_store(path, **options):
    options = {"cap_bytes": CAP, "commit_interval_s": 0.002, "scrub_bytes_per_s": 0} | options
    return BlockStore(path, **options)


def block(number, length):
    return random.Random(number).randbytes(length)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "store"


def test_blocks_come_back_also_after_a_restart(directory):
    lengths = [0, 1, 4095, 4096, 4097, 100_000, 1 << 20]
    for again in (False, True):
        with open_store(directory) as opened:
            for length in lengths:
                assert opened.put(f"key {length}", block(length, length)) is not again
                assert opened.get(f"key {length}") == block(length, length)
            assert opened.get("never") is None
            assert opened.exists("key 1") and not opened.exists("never")
            stats = opened.stats()
            assert stats["blocks"] == len(lengths)
            assert stats["bytes"] <= stats["bytes_cap"] == CAP
            assert stats["hits"] == len(lengths)


def test_an_encrypted_directory_needs_its_key(directory, tmp_path):
    keys = tmp_path / "key"
    keys.write_bytes(random.Random(1).randbytes(32))
    keys.chmod(0o600)
    words = b"a text that must not be found there" * 200
    with open_store(directory, keys=keys) as opened:
        assert opened.put("name of it", words, namespace="tenant")
    disk = b"".join(path.read_bytes() for path in directory.iterdir())
    for hidden in (words[:16], b"name of it", b"tenant", keys.read_bytes()[:16]):
        assert hidden not in disk
    for wrong in ({}, {"key": bytes(32)}, {"key": b"short"}, {"keys_command": "cat #"}):
        with pytest.raises(quire.InvalidArgumentError):
            open_store(directory, **wrong)
    with open_store(directory, key=keys.read_bytes()) as opened:
        assert opened.get("name of it", namespace="tenant") == words


def test_keys_are_any_text_or_bytes_and_namespaces_are_apart(directory):
    with open_store(directory, namespace="usual") as opened:
        for key in ("ü", b"\0\0", b"", bytearray(b"x"), memoryview(b"y"), "long" * 10_000):
            assert opened.put(key, b"in usual")
            assert opened.put(key, b"in other", namespace="other")
            assert opened.get(key) == b"in usual"
            assert opened.get(key, namespace="usual") == b"in usual"
            assert opened.get(key, namespace="other") == b"in other"
            assert opened.get(key, namespace="") is None
        with pytest.raises(quire.InvalidArgumentError):
            opened.get("key", namespace="a\0b")


def test_what_is_there_stays_until_it_is_removed(directory):
    with open_store(directory) as opened:
        assert opened.put("key", b"first")
        assert not opened.put("key", b"second")
        assert opened.get("key") == b"first"
        assert opened.remove("key")
        assert not opened.remove("key")
        assert opened.get("key") is None
        assert opened.put("key", b"second")
    with open_store(directory) as opened:
        assert opened.get("key") == b"second"


def test_anything_with_a_buffer_is_a_block(directory):
    with open_store(directory) as opened:
        numbers = array.array("d", range(1000))
        opened.put("numbers", numbers)
        out = array.array("d", bytes(8 * 1000))
        assert opened.get_into("numbers", out) == 8000
        assert out == numbers
        with pytest.raises(BufferError):
            opened.get_into("numbers", b"x" * 8000)  # read-only
        with pytest.raises(TypeError):
            opened.put("text", "text")
        with pytest.raises(quire.InvalidArgumentError, match="longer than the buffer"):
            opened.get_into("numbers", bytearray(7999))
        assert opened.get_into("never", bytearray(1)) is None


def test_arrays_and_views_are_stored_in_c_order_and_numbers_are_refused(directory):
    with open_store(directory) as opened:
        array_2d = np.arange(24, dtype=np.float16).reshape(4, 6)
        for name, data, expected in (
                ("columns", array_2d[:, ::2], np.ascontiguousarray(array_2d[:, ::2]).tobytes()),
                ("turned", array_2d.T, np.ascontiguousarray(array_2d.T).tobytes()),
                ("stretched", memoryview(b"abcdef")[::2], b"ace"),
                ("no axis", np.array(1.5), np.array(1.5).tobytes())):
            assert opened.put(name, data)
            assert opened.get(name) == expected
        for number in (5, 5.0, True, np.float32(5), np.int64(5), None):
            with pytest.raises(TypeError):
                opened.put("number", number)
            with pytest.raises(TypeError):
                opened.put(number, b"data")
        with pytest.raises(TypeError, match="objects"):
            opened.put("objects", np.array([object()]))
        assert opened.get("number") is None
        with pytest.raises(BufferError, match="C order"):
            opened.get_into("columns", np.zeros((4, 6), np.float16)[:, ::2])


def test_torch_tensors_are_blocks(directory):
    torch = pytest.importorskip("torch")
    with open_store(directory) as opened:
        made = torch.arange(24, dtype=torch.float32).reshape(4, 6)
        for data in (made.bfloat16(), made[:, ::2], made.T, made.clone().requires_grad_(),
                     torch.tensor(3.0), torch.view_as_complex(made.reshape(12, 2)).conj()):
            key = f"{data.dtype} {tuple(data.shape)} {data.requires_grad}"
            assert opened.put(key, data)
            out = torch.zeros(data.shape, dtype=data.dtype)
            assert opened.get_into(key, out) == out.numel() * out.element_size()
            assert torch.equal(out, data.detach().resolve_conj())
        with pytest.raises(BufferError, match="C order"):
            opened.get_into(key, torch.zeros(4, 6)[:, ::2])
        for elsewhere in (torch.zeros(4, device="meta"), torch.eye(3).to_sparse()):
            with pytest.raises(BufferError, match="cpu"):
                opened.put("elsewhere", elsewhere)


def test_paths_of_any_kind(tmp_path):
    for number, path in enumerate((tmp_path / "one", str(tmp_path / "two"),
                                   os.fsencode(tmp_path / "three"),
                                   os.fsdecode(bytes(tmp_path) + b"/four\xff"))):
        with open_store(path) as opened:
            opened.put("key", bytes([number]))
            assert repr(opened).startswith("<quire.store.BlockStore: ")
        assert repr(opened).endswith("closed>")
        assert os.path.isdir(path)
    for wrong in (None, 5):
        with pytest.raises(TypeError):
            open_store(wrong)
    with pytest.raises(quire.InvalidArgumentError, match="NUL"):
        open_store(str(tmp_path / "a\0b"))


def test_ctrl_c_is_heard_while_a_block_is_put(directory):
    main = threading.main_thread().ident
    with open_store(directory, cap_bytes=1 << 30) as opened:
        for attempt in range(100):
            key, data = f"key {attempt}", bytearray(8 << 20)
            before = set(opened._batches)
            signals = threading.Timer(0.002, signal.pthread_kill, (main, signal.SIGINT))
            with pytest.raises(KeyboardInterrupt) as raised:
                signals.start()
                opened.put(key, data)
                signals.join()
                time.sleep(10)
            in_wait = any(entry.name == "wait" for entry in raised.traceback)
            heard = in_wait and bool(set(opened._batches) - before)  # and it had not taken the end yet
            del raised  # its frames hold the data
            if heard:
                break
        assert heard, "the test must be able to fail"
        with pytest.raises(BufferError):
            data.clear()  # it goes on
        opened.flush()
        opened.exists(key)
        data.clear()  # and nobody has to take what it left
        assert len(opened.get(key)) == 8 << 20


def test_failures_are_those_of_the_package(directory):
    assert StoreError is quire.Error and DeadlineError is quire.DeadlineError
    with open_store(directory), pytest.raises(quire.BusyError) as refused:
        open_store(directory)
    assert refused.value.code == "busy"


def test_a_former_name_is_refused_with_the_name_of_now(directory):
    with pytest.raises(TypeError, match="commit_interval_us is named commit_interval_s"):
        BlockStore(directory, commit_interval_us=2000)
    with pytest.raises(TypeError, match="cap_gb is named cap_bytes"):
        QuireStore(directory, namespace="weights", cap_gb=8)
    assert not directory.exists()


def test_bytes_under_way_cannot_move_or_go(directory):
    with open_store(directory, commit_interval_s=0.3) as opened:
        data = bytearray(block(1, 50_000))
        batch = opened.submit_put(["key"], [data])
        with pytest.raises(BufferError):
            data.clear()
        opened.wait(batch)
        data.clear()
        # Nobody else holds these.
        batches = [opened.submit_put([f"{i}"], [bytearray(block(i, 70_000))]) for i in range(50)]
        gc.collect()
        opened.flush()
        for batch in batches:
            assert opened.wait(batch)[0].outcome == Outcome.OK
        for i in range(50):
            assert opened.get(f"{i}") == block(i, 70_000)


def test_refused_batches_let_go_of_their_bytes(directory):
    with open_store(directory) as opened:
        data = bytearray(100)
        with pytest.raises(TypeError):
            opened.submit_put(["a", "b"], [data, object()])
        with pytest.raises(ValueError, match="1 keys, 2 blocks"):
            opened.submit_put(["a"], [data, data])
        data.clear()


def test_batches_end_on_a_descriptor(directory):
    with open_store(directory) as opened:
        assert select.select([opened.event_fd()], [], [], 0)[0] == []
        put = opened.submit_put(["a", "b"], [b"A" * 10_000, b"B"])
        assert select.select([opened.event_fd()], [], [], 10)[0]
        assert [(number, [r.outcome for r in results]) for number, results in opened.drain()] == [
            (put, [Outcome.OK, Outcome.OK])]
        assert select.select([opened.event_fd()], [], [], 0)[0] == []
        assert opened.drain() == []
        out = bytearray(20_000)
        ends = {}
        wanted = [opened.submit_get(["a", "c"], [out, bytearray(1)]), opened.submit_exists(["a"]),
                  opened.submit_flush(), opened.submit_remove(["b", "c"])]
        while len(ends) < 4:
            assert select.select([opened.event_fd()], [], [], 10)[0]
            ends.update(opened.drain())
        assert sorted(ends) == wanted
        assert ends[wanted[0]] == [(Outcome.OK, 10_000), (Outcome.ABSENT, 0)]
        assert out[:10_000] == b"A" * 10_000
        assert ends[wanted[2]] == []
        assert [r.outcome for r in ends[wanted[3]]] == [Outcome.OK, Outcome.ABSENT]


def test_an_event_loop_can_wait(directory):
    async def life():
        with open_store(directory) as opened:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            loop.add_reader(opened.event_fd(), ended.set)
            number = opened.submit_put(["key"], [b"data"])
            await asyncio.wait_for(ended.wait(), 10)
            loop.remove_reader(opened.event_fd())
            assert opened.drain() == [(number, [(Outcome.OK, 0)])]
            assert await asyncio.to_thread(opened.get, "key") == b"data"

    asyncio.run(life())


def test_waiting_has_a_limit_and_batches_are_taken_once(directory):
    with open_store(directory, cap_bytes=1 << 30) as opened:
        for attempt in range(100):
            batch = opened.submit_put([f"key {attempt}"], [bytes(8 << 20)])
            try:
                opened.wait(batch, timeout_s=0)  # it may have ended
            except DeadlineError as late:
                assert isinstance(late, TimeoutError)
                break
        opened.flush()
        assert opened.wait(batch, timeout_s=5) == [(Outcome.OK, 0)]
        with pytest.raises(quire.NotFoundError):
            opened.wait(batch)
        with pytest.raises(quire.NotFoundError):
            opened.wait(12345)


def test_many_threads_at_once(directory):
    opened = open_store(directory)
    failures = []

    def work(thread):
        chance = random.Random(thread)
        try:
            for _ in range(80):
                number = chance.randrange(40)
                if chance.random() < 0.4:
                    opened.put(number.to_bytes(4, "little"), block(number, 500 + 977 * number))
                elif chance.random() < 0.1:
                    opened.remove(number.to_bytes(4, "little"))
                else:
                    got = opened.get(number.to_bytes(4, "little"))
                    assert got is None or got == block(number, 500 + 977 * number)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.close()
    assert failures == []
    assert opened.stats()["puts"] > 0


def test_other_threads_run_while_one_waits(directory):
    with open_store(directory, cap_bytes=1 << 30) as opened:
        blocks = [bytes(8 << 20)] * 16
        for attempt in range(5):
            steps = 0
            keys = [f"{attempt} {i}" for i in range(16)]
            thread = threading.Thread(target=opened.put_many, args=(keys, blocks))
            thread.start()
            while thread.is_alive():
                steps += 1
            thread.join()
            if steps > 1000:
                break
        assert steps > 1000


def test_the_cap_is_never_exceeded(directory):
    with open_store(directory, cap_bytes=16 << 20, memory_bytes=0) as opened:
        for i in range(60):
            opened.put(f"{i}", block(i, 1 << 20))
            used = sum(path.stat().st_size for path in pathlib.Path(directory).iterdir())
            assert used <= 16 << 20
        assert opened.stats()["evicted"] > 0
        assert opened.get("59") == block(59, 1 << 20)
        assert opened.get("0") is None
        with pytest.raises(quire.TooLargeError, match="'long'"):
            opened.put("long", bytes(17 << 20))


def test_damage_is_a_miss(directory):
    with open_store(directory) as opened:
        for i in range(20):
            opened.put(f"{i}", block(i, 50_000))
    for path in pathlib.Path(directory).glob("segment-*"):
        with open(path, "r+b") as segment:
            for offset in range(30_000, 1_000_000, 170_000):
                segment.seek(offset)
                flipped = bytes([segment.read(1)[0] ^ 1])
                segment.seek(offset)
                segment.write(flipped)
    with open_store(directory) as opened:
        got = [opened.get(f"{i}") for i in range(20)]
        assert all(data in (None, block(i, 50_000)) for i, data in enumerate(got))
        missing = [i for i, data in enumerate(got) if data is None]
        assert 3 <= len(missing) < 20
        assert opened.stats()["damaged"] == len(missing)
        for i in missing:
            assert opened.put(f"{i}", block(i, 50_000))
            assert opened.get(f"{i}") == block(i, 50_000)


def test_one_process_has_a_store(directory):
    with open_store(directory):
        with pytest.raises(quire.BusyError) as refused:
            open_store(directory)
        assert refused.value.code == "busy"
    open_store(directory).close()


def test_a_store_that_nobody_closed_lets_go_of_its_directory(directory):
    opened = open_store(directory, commit_interval_s=60.0)
    opened.submit_put(["key"], [bytearray(b"data")])
    del opened
    gc.collect()
    with open_store(directory) as opened:
        assert opened.get("key") == b"data"


def test_a_fork_leaves_the_store_to_its_parent(directory):
    with open_store(directory) as opened:
        opened.put("key", b"data")
        child = os.fork()
        if child == 0:
            opened._free()  # as at the end of the object; must not wait for a thread elsewhere
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert opened.get("key") == b"data"


def test_calls_after_close_say_so(directory):
    opened = open_store(directory)
    batch = opened.submit_put(["key"], [b"data"])
    opened.close()
    opened.close()
    assert opened.wait(batch) == [(Outcome.OK, 0)]
    with pytest.raises(quire.InvalidArgumentError, match="closed"):
        opened.put("key", b"data")
    with pytest.raises(quire.InvalidArgumentError, match="closed"):
        opened.get("key")
    assert opened.stats()["blocks"] == 1


def test_accepted_blocks_are_found_at_once_and_durable_after_a_flush(directory):
    with open_store(directory, accepts_puts=True, commit_interval_s=60) as opened:
        for number in range(8):
            assert opened.put(str(number), block(number, 100_000))
            assert opened.get(str(number)) == block(number, 100_000)
        assert opened.stats()["memory_hits"] == 8
        opened.flush()
        assert opened.stats()["blocks"] == 8
    with open_store(directory, memory_bytes=0) as opened:
        assert opened.get("7") == block(7, 100_000)
        assert opened.get("7") == block(7, 100_000)
        assert opened.stats()["memory_hits"] == 0


@pytest.mark.parametrize("options", [{"cap_bytes": 0}, {"cap_bytes": 1000},
                                     {"commit_interval_s": 0}, {"disk_requests_max": 0},
                                     {"block_bytes_max": 3 << 30},
                                     {"accepts_puts": True, "memory_bytes": 0},
                                     {"memory_bytes": -1}])
def test_bad_options_are_refused(directory, options):
    with pytest.raises(quire.InvalidArgumentError):
        open_store(directory, **options)


CHILD = """
import sys
from quire.store import BlockStore
sys.path.insert(0, {tests!r})
from test_store import block
store = BlockStore({directory!r}, cap_bytes=64 << 20, commit_interval_s=0.001)
number = int(sys.argv[1])
while True:
    store.put(str(number), block(number, 1000 + number * 7919 % 60_000))
    print(number, flush=True)
    number += 1
"""


def test_what_was_put_is_found_after_kill(directory):
    child = CHILD.format(tests=os.path.dirname(__file__), directory=str(directory))
    following = 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", child, str(following)],
                                   stdout=subprocess.PIPE, text=True)
        for _ in range(25):
            following = int(process.stdout.readline()) + 1
        process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            following = int(line) + 1
        process.wait()
        with open_store(directory, cap_bytes=64 << 20) as opened:
            for i in range(following):
                assert opened.get(f"{i}") == block(i, 1000 + i * 7919 % 60_000)
            following += opened.exists(f"{following}")
    assert following >= 100


def test_the_library_is_named_when_it_cannot_be_found(monkeypatch):
    monkeypatch.setenv("QUIRE_LIBRARY", "/nowhere/libquire.so")
    with pytest.raises(_library.LibraryNotFound, match="/nowhere/libquire.so"):
        _library.load()


def test_structs_are_those_of_the_header():
    header = pathlib.Path(__file__).parents[2] / "include" / "quire" / "quire.h"
    text = header.read_text()
    for name, struct in (("options", store._Options), ("stats", store._Stats)):
        begin = text.index(f"typedef struct quire_store_{name} {{")
        body = text[begin:text.index("}", begin)]
        fields = [line.split(";")[0].split()[-1].lstrip("*") for line in body.splitlines()[1:]
                  if ";" in line.split("//")[0]]
        assert fields == [field[0] for field in struct._fields_]
    for outcome in Outcome:
        assert f"QUIRE_BLOCK_{outcome.name} = {outcome.value}" in text
