"""`mpirun -n N quire generate --ranks sequence`: N processes give the bits of one, hold an Nth of K and V each, and name
the rank that fails."""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import quire_cli
from rank_processes import CODECS, DEADLINE_S, TINY, Generating, is_running, mpirun, rank_processes

TOKENS = 1100  # more than four splits of 256
SPLIT = 256


def ids(tokens=TOKENS, seed=1):
    prng = random.Random(seed)
    return ",".join(str(prng.randrange(256)) for _ in range(tokens))


def prompt(*flags, tokens=TOKENS):
    return [str(part) for part in ("generate", "--model", TINY, "--prompt-ids", ids(tokens), "--max-tokens", 5,
                                   "--threads", 1, "--repeat", 2, "--json", *flags)]


@functools.cache
def alone(codec, tokens=TOKENS):
    done = quire_cli.run(*prompt("--kv", codec, tokens=tokens))
    assert done.exit_code == 0, done.describe()
    return done.json


def together(ranks, *flags, tokens=TOKENS):
    command = [*mpirun(ranks), str(quire_cli.binary()), *prompt("--ranks", "sequence", *flags, tokens=tokens)]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False, text=True)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


def check_same(got, codec):
    assert got["digests"] == alone(codec)["digests"]
    assert got["tokens"] == alone(codec)["tokens"]


@pytest.mark.parametrize("codec", CODECS)
def test_two_ranks_give_the_bits_of_one_process_for_a_miss_and_a_hit(codec):
    got = together(2, "--kv", codec)
    check_same(got, codec)
    assert got["reused_tokens"] == alone(codec)["reused_tokens"] > 1000
    assert got["ranks"]["count"] == 2


@pytest.mark.parametrize("ranks", (1, 4, 8))
def test_so_do_any_number_of_ranks(ranks):
    for codec in ("bf16", "int8"):
        got = together(ranks, "--kv", codec, "--chunk", "100")
        check_same(got, codec)
        assert got["reused_tokens"] == alone(codec)["reused_tokens"]
        # Of the sequence that rank 0 has, with the answer.
        most = alone(codec)["kv_bytes"] / ranks + SPLIT * alone(codec)["kv_bytes"] / TOKENS
        assert 0 < got["kv_bytes"] <= most


def test_other_sequences_beside_it_change_nothing():
    got = together(2, "--kv", "bf16", "--beside", "3")
    check_same(got, "bf16")


def test_a_restart_finds_what_its_ranks_stored(tmp_path):
    store = ("--kv", "int8", "--repeat", "1", "--store", tmp_path / "store")
    first = together(2, *store)
    assert first["reused_tokens"] == 0
    again = together(2, *store)
    assert again["reused_tokens"] == (TOKENS - 1) // 16 * 16
    # With other ranks, each finds what it stored of the same splits.
    four = together(4, *store)
    for got in (first, again, four):
        assert got["logits_digest"] == alone("int8")["logits_digest"]
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [f"rank-{rank}" for rank in range(4)]
    assert together(4, *store)["reused_tokens"] == (TOKENS - 1) // 16 * 16


def test_a_damaged_store_of_one_rank_is_a_miss_of_all(tmp_path):
    store = ("--kv", "bf16", "--repeat", "1", "--store", tmp_path / "store")
    together(2, *store)
    for path in (tmp_path / "store/rank-1").rglob("*"):
        if path.is_file() and "segment" in path.name:
            data = bytearray(path.read_bytes())
            for at in range(4096, len(data), 512):
                data[at] ^= 1
            path.write_bytes(data)
    got = together(2, *store)
    assert got["logits_digest"] == alone("bf16")["logits_digest"]
    assert got["reused_tokens"] <= SPLIT


@pytest.mark.parametrize("flags, words", (
    (("--resident-tokens", "300"), "--resident-tokens: not possible with --ranks"),
    (("--keep", "0.5"), "--keep, --keep-blocks: not possible with --ranks"),
    (("--device", "emulated"), "--device: not possible with --ranks"),
    (("--model", "/nonexistent"), "/nonexistent"),
))
def test_what_ranks_cannot_do_is_refused(flags, words):
    command = [*mpirun(2), str(quire_cli.binary()), *prompt("--ranks", "sequence", *flags)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode != 0
    assert words in done.stderr


def test_three_ranks_cannot_divide_the_lanes():
    command = [*mpirun(3), str(quire_cli.binary()), *prompt("--ranks", "sequence")]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode != 0
    assert "3 ranks; 1, 2, 4, 8 or 16 can divide the 16 lanes" in done.stderr


def test_without_mpirun_it_says_how_ranks_are_started():
    done = quire_cli.run(*prompt("--ranks", "sequence"))
    assert done.exit_code != 0
    assert "mpirun -n N quire" in done.stderr


@pytest.mark.parametrize("victim", (0, 1, 3))
def test_a_rank_that_is_stopped_is_named_by_the_others_within_the_deadline(victim):
    with Generating("sequence", 4) as generating:
        os.kill(generating.ranks[victim], signal.SIGSTOP)
        errors, took_s = generating.end()
    assert generating.process.returncode != 0
    assert f"rank {victim} was not heard for {DEADLINE_S * 1000} ms" in errors, errors[-3000:]
    assert took_s < DEADLINE_S + 20  # it ended by itself, on a busy machine too
    assert generating.shared_memory and not generating.left_behind()


@pytest.mark.parametrize("victim", (0, 2))
def test_a_rank_that_is_killed_is_named(victim):
    with Generating("sequence", 4) as generating:
        os.kill(generating.ranks[victim], signal.SIGKILL)
        errors, _ = generating.end()
    assert generating.process.returncode != 0
    assert f"rank {victim} " in errors, errors[-3000:]
    assert generating.shared_memory and not generating.left_behind()


def test_a_rank_that_is_killed_is_named_by_the_others_where_mpirun_leaves_them_alive():
    with Generating("sequence", 4, "--enable-recovery") as generating:
        os.kill(generating.ranks[2], signal.SIGKILL)
        errors, _ = generating.end()  # mpirun itself calls that a success
    assert f"rank 2 was not heard for {DEADLINE_S * 1000} ms" in errors, errors[-3000:]


class Hosts:
    """Two network namespaces with a cable between them, as hosts of mpirun."""

    ADDRESSES = ("10.77.0.1", "10.77.0.2")

    def __init__(self, directory):
        self.names = tuple(f"quire{os.getpid()}{side}" for side in "ab")
        cables = tuple(f"q{os.getpid() % 10**6}{side}" for side in "ab")
        self.cable = cables[1]
        self.agent = directory / "agent"
        self.agent.write_text(f"#!/bin/sh\nshift\nexec ip netns exec {self.names[1]} sh -c \"$*\"\n")
        self.agent.chmod(0o755)
        try:
            self.connect(cables)
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"no network namespaces here: {error}")

    def connect(self, cables):
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for name, cable, address in zip(self.names, cables, self.ADDRESSES, strict=True):
            self.ip("link", "set", cable, "netns", name)
            self.ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            self.ip("-n", name, "link", "set", cable, "up")
            self.ip("-n", name, "link", "set", "lo", "up")

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.ip("netns", "del", name)

    def processes(self, program=""):
        """What runs on the hosts."""
        pids = []
        for name in self.names:
            listed = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
            pids += [int(pid) for pid in listed.stdout.split()]
        return [pid for pid in pids if is_running(pid) and program in Path(f"/proc/{pid}/comm").read_text()]

    def mpirun(self):
        net = "10.77.0.0/24"
        return ["ip", "netns", "exec", self.names[0], "mpirun", "--allow-run-as-root", "--bind-to", "none",
                "--host", ",".join(self.ADDRESSES), "--mca", "plm_rsh_agent", str(self.agent), "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", net, "--mca", "oob_tcp_if_include", net, "-n", "2",
                str(quire_cli.binary())]

    def cut(self):
        self.ip("-n", self.names[1], "link", "set", self.cable, "down")


@pytest.fixture(name="hosts")
def make_hosts(tmp_path):
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("hosts are network namespaces, which root makes with the program ip")
    with Hosts(tmp_path) as hosts:
        yield hosts


@pytest.mark.parametrize("mode", ("sequence", "pipeline"))
def test_ranks_on_two_hosts_give_the_bits_of_one_process(hosts, mode):
    command = [*hosts.mpirun(), *prompt("--ranks", mode, "--kv", "int8")]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    check_same(json.loads(done.stdout), "int8")


@pytest.mark.parametrize("mode", ("sequence", "pipeline"))
def test_a_rank_whose_host_is_cut_off_is_named_within_the_deadline(hosts, mode):
    flags = ["generate", "--model", TINY, "--prompt", "It is a truth " * 100, "--max-tokens", 100000, "--threads", 1,
             "--max-seq-len", 200000, "--ranks", mode, "--ranks-deadline", DEADLINE_S]
    with subprocess.Popen([*hosts.mpirun(), *(str(flag) for flag in flags)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout.read(20)
        program = quire_cli.binary().name[:15]
        assert len(hosts.processes(program)) == 2
        hosts.cut()
        for _ in range(10 * (DEADLINE_S + 20)):
            if not hosts.processes(program):
                break
            time.sleep(0.1)
        assert not hosts.processes(program)
        # mpirun waits for its daemon on the other host, which it does not reach.
        for pid in hosts.processes():
            os.kill(pid, signal.SIGKILL)
        errors = process.communicate(timeout=30)[1].decode(errors="replace")
    assert f"rank 1 was not heard for {DEADLINE_S * 1000} ms" in errors, errors[-3000:]


@pytest.mark.parametrize("bench, mode, case", [("ranks", "sequence", "decode/int8"), ("pipeline", "pipeline", "answers")])
def test_processes_are_measured_together(bench, mode, case):
    command = [*mpirun(2), str(quire_cli.binary()), "bench", bench, "--ranks", mode, "--pairs", "1", "--case", case, "--json"]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads(done.stdout)["rows"]
    assert case in row["case"] and row["value"] > 0 and row["floor"] > 0


def test_a_bench_that_cannot_be_measured_on_ranks_says_which_can():
    for words in (("index", "--ranks", "sequence"), ("ranks", "--ranks", "pipeline"),
                  ("pipeline", "--ranks", "pipeline", "--instructions"), ("ranks", "--ranks", "sequence", "--arithmetic", "dot16"),
                  ("ranks", "--ranks", "sequence", "--threads", "2")):
        done = quire_cli.run("bench", *words, "--rank-threads", 2)
        assert done.exit_code != 0 and f"measured by `quire bench {'ranks' if words[2] == 'sequence' else 'pipeline'}`" in done.stderr


def test_a_bench_without_a_case_says_so():
    for words in (("--case", "nothing"), ()):
        done = quire_cli.run("bench", "ranks", "--ranks", "sequence", "--rank-threads", 2 if words else 1, *words)
        assert done.exit_code != 0 and "no case of ranks on" in done.stderr, done.describe()


def test_ranks_whose_mpi_is_set_up_otherwise_are_named():
    flags = prompt("--ranks", "sequence")
    other = ["env", "OMPI_MCA_btl_tcp_eager_limit=1000000", str(quire_cli.binary())]
    command = [*mpirun(1), str(quire_cli.binary()), *flags, ":", "-n", "1", *other, *flags]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, text=True)
    assert done.returncode != 0 and "say it once for all ranks" in done.stderr, done.stderr


def test_a_rank_that_is_lost_while_it_is_measured_is_named():
    command = [*mpirun(2, "--enable-recovery"), str(quire_cli.binary()), "bench", "ranks", "--ranks", "sequence",
               "--ranks-deadline", str(DEADLINE_S), "--pairs", "1000", "--case", "int8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.read(10)  # the name of the case
        os.kill(rank_processes(process.pid)[1], signal.SIGKILL)
        said, errors = process.communicate(timeout=60)
    assert b"rank 1 was not heard" in errors and not said, errors
