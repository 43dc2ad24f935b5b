"""Models and engines, each a process."""

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for the processes that are forked as well

from engine_processes import HANG_S, EngineProcess  # noqa: E402

_STEP_S = 0.2


def make_model(folder, kind="llama", seed=0):
    subprocess.run([sys.executable, HERE.parent / "make_model.py", folder, kind, str(seed)],
                   check=True, capture_output=True, timeout=HANG_S)
    return folder


class Engine(EngineProcess):
    def flush(self):
        """Empties SGLang's own caches, so that only the store has anything."""
        self._until_done("flush")

    def update_weights(self, folder):
        self._until_done(("weights", str(folder)))

    def ask_until_stored(self, expected, *prompts):
        """Asks until all pages come from the store: SGLang writes them behind its answers. Each
        answer must be the same, and none may have more."""
        tokens, stored = expected
        end_s = time.monotonic() + HANG_S
        while True:
            answer = self.ask(*prompts)
            assert answer["tokens"] == tokens
            assert all(one <= most for one, most in zip(answer["stored"], stored))
            if answer["stored"] == stored:
                return
            assert time.monotonic() < end_s, answer
            time.sleep(_STEP_S)
            self.flush()

    def _until_done(self, what):
        """SGLang refuses while it writes pages behind an answer."""
        end_s = time.monotonic() + HANG_S
        while True:
            self.tell(what)
            if self.answer():
                return
            assert time.monotonic() < end_s, what
            time.sleep(_STEP_S)
