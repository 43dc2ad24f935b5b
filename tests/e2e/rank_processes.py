"""Ranks that mpirun starts, for tests: their processes, and a run that goes on until something happens to it."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import quire_cli

TINY = quire_cli.REPOSITORY / "models/tiny"
CODECS = ("f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "nf4", "fp4", "q25")
DEADLINE_S = 3


def mpirun(ranks, *more):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *more, "-n", str(ranks)]


def rank_processes(parent):
    """The ranks that an mpirun started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) != parent:
                continue
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(variable.split(b"=")[1])] = int(entry.name)
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def shared_memory_of(pid):
    """Files of shared memory that a process has mapped."""
    return {Path(name) for name in re.findall(r"(/dev/shm/\S+)", Path(f"/proc/{pid}/maps").read_text())}


class Generating:
    """Ranks that write a long text."""

    def __init__(self, mode, ranks, *mpi_flags, store=None):
        flags = ["generate", "--model", TINY, "--prompt", "It is a truth " * 100, "--max-tokens", 100000, "--threads", 1,
                 "--max-seq-len", 200000, "--ranks", mode, "--ranks-deadline", DEADLINE_S]
        if store is not None:
            flags += ["--store", store]
        self.process = subprocess.Popen(
            [*mpirun(ranks, *mpi_flags), str(quire_cli.binary()), *(str(flag) for flag in flags)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"OMPI_MCA_orte_abort_timeout": "5"})

    def __enter__(self):
        assert self.process.stdout.read(20)  # it has begun to answer
        self.ranks = rank_processes(self.process.pid)
        self.shared_memory = set().union(*(shared_memory_of(pid) for pid in self.ranks.values()))
        return self

    def __exit__(self, *_):
        for pid in self.ranks.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def end(self):
        """What it says until it ends by itself, and how long that takes."""
        begin = time.monotonic()
        _, errors = self.process.communicate(timeout=60)
        took_s = time.monotonic() - begin
        for _ in range(50):
            if not any(is_running(pid) for pid in self.ranks.values()):
                break
            time.sleep(0.1)
        assert not any(is_running(pid) for pid in self.ranks.values())
        return errors.decode(errors="replace"), took_s

    def left_behind(self):
        return {path for path in self.shared_memory if path.exists()}
