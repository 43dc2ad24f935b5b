"""What tests of adapters share: an engine in a process of its own, a store's owner, and harm to a
store's files."""

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

BINARY = Path(os.environ.get("QUIRE_BINARY") or
              Path(__file__).resolve().parents[2] / "build/release/quire")
HANG_S = 600  # far beyond what anything here takes
CAP = 1 << 28  # of stores
AGED_S = 3  # after which a file is older than an engine that starts, whatever the clocks say

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["engine"])


def prompt(number=0, tokens=200):
    """Prompts share what they have before token 150."""
    return [(i * 37 + number * (i // 150)) % 500 + 3 for i in range(tokens)]


def _serve(*arguments):
    import engine
    engine.serve(*arguments)


class EngineProcess:
    """`serve` of the test folder's engine.py. Its imports take longer than all else, so one server
    forks all engines."""

    def __init__(self, model, store, **options):
        self.log = Path(model).parent / f"engine-{os.urandom(4).hex()}.log"
        self.connection, theirs = _processes.Pipe()
        self.process = _processes.Process(
            target=_serve, args=(theirs, self.log, str(model), str(store), options))
        self.process.start()
        theirs.close()
        assert self.answer() == "ready", self.log.read_text()[-4000:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.send(None)
        self.process.join(HANG_S)
        assert self.process.exitcode == 0, self.log.read_text()[-4000:]

    def send(self, *prompts):
        self.connection.send(prompts)

    def ask(self, *prompts):
        self.send(*prompts)
        return self.answer()

    def tell(self, what):
        self.connection.send(what)

    def answer(self):
        try:
            assert self.connection.poll(HANG_S), "no answer"
            return self.connection.recv()
        except EOFError:
            raise AssertionError(self.log.read_text()[-4000:]) from None

    def kill(self):
        """kill -9 of the engine and of all processes that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join(HANG_S)


def own_process(log):
    """Called first in the engine's process: output goes to `log`, and `kill` takes its children."""
    os.setpgrp()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def record_keys(path):
    """From now on writes the namespace, key and length of each block that this process puts."""
    from quire.store import BlockStore
    submit = BlockStore.submit_put

    def recorded(self, keys, blocks, *, namespace):
        with open(path, "a") as file:
            file.writelines(
                f"{namespace}\t{(key.encode() if isinstance(key, str) else key).hex()}\t"
                f"{block.numel() * block.element_size()}\n" for key, block in zip(keys, blocks))
        return submit(self, keys, blocks, namespace=namespace)

    BlockStore.submit_put = recorded


def recorded_keys(path):
    """(namespace, key, length) of each block."""
    for line in Path(path).read_text().splitlines():
        namespace, key, size = line.split("\t")
        yield namespace, bytes.fromhex(key), int(size)


class Owner:
    """`quire store serve`"""

    def __init__(self, folder, socket, cap=CAP, *options):
        self.process = subprocess.Popen(
            [BINARY, "store", "serve", folder, "--socket", socket, "--cap-bytes", str(cap),
             "--accept-puts", "--json", *options], stdout=subprocess.PIPE)
        assert self.process.stdout.readline()

    def kill(self):
        self.process.kill()
        self.process.wait(HANG_S)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(HANG_S) == 0


def within(seconds):
    """Turns of a loop that waits for something; raises once it has waited so long."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield
    raise AssertionError(f"not within {seconds} s")


def harm(store, how):
    """Damages the records of a store that nothing has open. bits: of every second record; all: of
    every one; cut: the file ends in the middle; missing: there are no files."""
    for path in sorted(Path(store).glob("segment-*")):
        data = bytearray(path.read_bytes())
        places = [at for at in range(0, len(data), 4096) if data[at:at + 8] == b"QUIREREC"]
        if how == "missing":
            path.unlink()
        elif places and how == "cut":
            os.truncate(path, places[len(places) // 2] + 9000)
        elif places:
            for at in places if how == "all" else places[1::2]:
                data[at + 9000] ^= 1
            path.write_bytes(data)


def bytes_of_files(folder):
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
