"""Traces at the limits of what is read, and a system without memory: an error, never a crash."""

import gzip
import json
import resource
import subprocess

import pytest

import quire_cli


def line(ids: str) -> str:
    return f'{{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [{ids}]}}\n'


def replay(path, address_bytes=None, *flags):
    """Runs `quire replay`, if asked to in so many bytes of addresses."""
    def limit():
        if address_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
    command = [str(quire_cli.binary()), "replay", "--trace", str(path), "--policy", "lru", *flags]
    return subprocess.run(command, capture_output=True, timeout=quire_cli.TIMEOUT_S, check=False,
                          preexec_fn=limit)


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
