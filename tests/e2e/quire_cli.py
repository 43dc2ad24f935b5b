"""Runs the `quire` program as a user would: real process, flags in, one JSON object out.

The environment variable QUIRE (or QUIRE_BINARY, which scripts/run-tests sets) names another binary
than build/release/quire.
"""

import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished process. `json` is None unless --json was asked for and the exit code is 0."""

    command: list
    exit_code: int  # negative: killed by that signal
    json: dict | None
    stdout: str
    stderr: str

    def describe(self) -> str:
        command = " ".join(part if len(part) < 200 else part[:200] + "..." for part in self.command)
        return (f"$ {command}\nexit {self.exit_code}\n--- stdout\n{self.stdout[-2000:]}\n"
                f"--- stderr\n{self.stderr[-2000:]}")


@dataclasses.dataclass(frozen=True)
class Generated:
    json: dict
    logits: np.ndarray | None  # f32 [prompt + generated - 1, vocab]

    def greedy_ids(self) -> list:
        """Tokens the logits chose; ties go to the smallest id, as docs/numerics.md says."""
        return np.argmax(self.logits[self.json["prompt_tokens"] - 1 :], axis=1).tolist()


def binary() -> Path:
    named = os.environ.get("QUIRE") or os.environ.get("QUIRE_BINARY")
    path = Path(named or REPOSITORY / "build/release/quire")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run `make build`, or set QUIRE")
    return path


def run(*arguments) -> Run:
    """Runs quire with these arguments and waits. Whatever it answers is returned, never raised."""
    command = [str(binary()), *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    parsed = None
    if "--json" in command and done.returncode == 0:
        parsed = json.loads(stdout)  # one object and nothing else: a stray log line fails here
        assert isinstance(parsed, dict), stdout
    return Run(command, done.returncode, parsed, stdout, stderr)


def wait_records(store: Path, count: int = 1):
    """Returns when a store, which may be in use, has so many durable records."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        said = run("store", "stat", store, "--read-only", "--json")
        if said.exit_code == 0 and said.json["records"] >= count:
            return
        assert time.monotonic() < end, said.describe()
        time.sleep(0.05)


def flags(options: dict) -> list:
    """{'max_tokens': 4} -> ['--max-tokens', 4]."""
    return [part for name, value in options.items()
            for part in ("--" + name.replace("_", "-"), value)]


def generate(model: Path, prompt: list, logits_out: Path | None = None, **options) -> Generated:
    """`quire generate` on token ids, greedy; asserts that it succeeds.

    Shape: prompt [n]; options become flags: max_tokens=4 is --max-tokens 4
    """
    if logits_out is not None:
        options["logits_out"] = logits_out
    ids = ",".join(str(token) for token in prompt)
    done = run("generate", "--model", model, "--prompt-ids", ids, *flags(options), "--json")
    assert done.exit_code == 0, done.describe()
    logits = np.load(logits_out, allow_pickle=False) if logits_out is not None else None
    return Generated(json=done.json, logits=logits)
