"""Models, engines and a store's owner, each a process."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import engine

HERE = Path(__file__).resolve().parent
BINARY = Path(os.environ.get("QUIRE_BINARY") or HERE.parents[2] / "build/release/quire")
HANG_S = 600  # far beyond what anything here takes
CAP = 1 << 28  # engine.py's

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["engine"])


def prompt(number=0, tokens=200):
    """Prompts share what they have before token 150."""
    return [(i * 37 + number * (i // 150)) % 500 + 3 for i in range(tokens)]


def make_model(folder, kind="llama", seed=0):
    subprocess.run([sys.executable, HERE / "make_model.py", folder, kind, str(seed)], check=True,
                   capture_output=True, timeout=HANG_S)
    return folder


class Engine:
    """engine.py's `serve`. Its imports take longer than all else, so one server forks all engines."""

    def __init__(self, model, store, **options):
        self.log = Path(model).parent / f"engine-{os.urandom(4).hex()}.log"
        self.connection, theirs = _processes.Pipe()
        self.process = _processes.Process(
            target=engine.serve, args=(theirs, self.log, str(model), str(store), options))
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

    def answer(self):
        try:
            assert self.connection.poll(HANG_S), "no answer"
            return self.connection.recv()
        except EOFError:
            raise AssertionError(self.log.read_text()[-4000:]) from None

    def disturb(self):
        self.connection.send("disturb")

    def kill(self):
        self.process.kill()
        self.process.join(HANG_S)


class Owner:
    """`quire store serve`"""

    def __init__(self, folder, socket, cap=CAP):
        self.process = subprocess.Popen(
            [BINARY, "store", "serve", folder, "--socket", socket, "--cap-bytes", str(cap),
             "--accept-puts", "--json"], stdout=subprocess.PIPE)
        assert self.process.stdout.readline()

    def kill(self):
        self.process.kill()
        self.process.wait(HANG_S)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(HANG_S) == 0
