"""Models, engines and a store's owner, each a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINARY = Path(os.environ.get("QUIRE_BINARY") or HERE.parents[2] / "build/release/quire")
HANG_S = 600  # far beyond what anything here takes
CAP = 1 << 28  # engine.py's


def prompt(number=0, tokens=200):
    """Prompts share what they have before token 150."""
    return [(i * 37 + number * (i // 150)) % 500 + 3 for i in range(tokens)]


def make_model(folder, kind="llama", seed=0):
    subprocess.run([sys.executable, HERE / "make_model.py", folder, kind, str(seed)], check=True,
                   capture_output=True, timeout=HANG_S)
    return folder


class Engine:
    def __init__(self, model, store, **options):
        self.log = Path(model).parent / f"engine-{os.urandom(4).hex()}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "engine.py", model, str(store), json.dumps(options)],
                text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._read("READY")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.communicate(timeout=HANG_S)

    def send(self, *prompts):
        self.process.stdin.write(json.dumps(prompts) + "\n")
        self.process.stdin.flush()

    def ask(self, *prompts):
        self.send(*prompts)
        return self.answer()

    def answer(self):
        return json.loads(self._read("ANSWER"))

    def disturb(self):
        self.process.stdin.write("disturb\n")

    def kill(self):
        self.process.kill()
        self.process.wait(HANG_S)

    def _read(self, word):
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise AssertionError(self.log.read_text()[-4000:])


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
