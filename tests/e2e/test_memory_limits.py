"""Traces at the limits of what is read, and a system without memory: an error, never a crash."""

import gzip
import json
import resource
import subprocess

import pytest

import quire_cli


def line(ids: str) -> str:
    return f'{{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [{ids}]}}\n'


def within(address_bytes, *arguments):
    """Runs quire in so many bytes of addresses; None: in as many as there are."""
    def limit():
        if address_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
    return subprocess.run([str(quire_cli.binary()), *arguments], capture_output=True,
                          timeout=quire_cli.TIMEOUT_S, check=False, preexec_fn=limit)


def replay(path, address_bytes=None, *flags):
    return within(address_bytes, "replay", "--trace", str(path), "--policy", "lru", *flags)


@pytest.fixture(scope="module")
def distinct(tmp_path_factory):
    """Two million different blocks: 16 MB of ids, some hundred bytes each once they are replayed."""
    path = tmp_path_factory.mktemp("traces") / "distinct.jsonl"
    path.write_text("".join(line(",".join(str(part * 100_000 + i) for i in range(100_000)))
                            for part in range(20)))
    return path


@pytest.mark.parametrize("megabytes", [64, 100, 160, 300])
def test_a_system_without_memory(distinct, megabytes):
    done = replay(distinct, megabytes << 20)
    assert done.returncode == 4, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1 and "memory" in lines[0], done.stderr


TINY = str(quire_cli.REPOSITORY / "models/tiny")
SMALL = ("--hot-bytes", "8MB", "--threads", "2", "--json")


@pytest.mark.parametrize("command", ["generate", "keep", "eval"])
def test_whatever_memory_there_is(command, tmp_path):
    """From where nothing can be loaded to where all goes well, it goes well or says why not."""
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    arguments = {
        "generate": ("generate", "--model", TINY, "--prompt", "hi there", "--max-tokens", "4"),
        "keep": ("generate", "--model", TINY, "--prompt-file", str(text), "--max-tokens", "4",
                 "--keep", "0.5", "--chunk", "64", "--beside", "3"),
        "eval": ("eval", "--model", TINY, "--text", str(text), "--kv", "int8", "--context", "256"),
    }[command] + SMALL
    codes = set()
    # With less than 25 MiB the system cannot load the program's libraries, or they cannot begin (one of them
    # throws before main).
    for megabytes in range(26, 102, 3):
        done = within(megabytes << 20, *arguments)
        codes.add(done.returncode)
        if done.returncode == 4:
            lines = done.stderr.decode().splitlines()
            assert len(lines) == 1 and "no_space" in lines[0], (megabytes, done.stderr)
        else:
            assert done.returncode == 0, (megabytes, done.returncode, done.stderr)
    assert codes == {0, 4}


def test_the_same_with_memory(distinct):
    done = replay(distinct, None, "--json", "--capacity-blocks", "1000")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["blocks"] == 2_000_000


def test_a_small_file_of_many_blocks(tmp_path):
    """The same blocks again and again: a few kilobytes that would take gigabytes."""
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        text = line(",".join(["7"] * 1_000_000)).encode()
        for _ in range(20):
            out.write(text)
    assert path.stat().st_size < 1 << 20
    done = replay(path)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert b"line 17" in done.stderr and b"134217728 bytes" in done.stderr, done.stderr


def test_a_small_file_of_many_requests(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        text = line("").encode() * 100_000
        for _ in range(30):
            out.write(text)
    done = replay(path)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert b"134217728 bytes" in done.stderr, done.stderr


def test_a_trace_through_a_pipe(tmp_path):
    """Byte by byte: the two that say that it is gzip may come apart."""
    path = tmp_path / "trace.jsonl"
    path.write_text(line("1,2") + line("1,2,3"))
    want = json.loads(replay(path, None, "--json").stdout)
    command = [str(quire_cli.binary()), "replay", "--trace", "/dev/stdin", "--policy", "lru",
               "--json"]
    for data in (path.read_bytes(), gzip.compress(path.read_bytes())):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            for byte in data:
                process.stdin.write(bytes([byte]))
                process.stdin.flush()
            process.stdin.close()
            got = json.loads(process.stdout.read())
        assert (got["blocks"], got["hit_blocks"]) == (want["blocks"], want["hit_blocks"])
