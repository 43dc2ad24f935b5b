"""Models and engines, each a process."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for the processes that are forked as well

from engine_processes import HANG_S, EngineProcess  # noqa: E402


def make_model(folder, kind="llama", seed=0):
    subprocess.run([sys.executable, HERE.parent / "make_model.py", folder, kind, str(seed)],
                   check=True, capture_output=True, timeout=HANG_S)
    return folder


class Engine(EngineProcess):
    def disturb(self):
        self.tell("disturb")
