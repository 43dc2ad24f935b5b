"""Output that cannot be written: exit 1 and one line on stderr, from every command. Files that the
program writes: through links, devices and pipes, and otherwise whole or not at all."""

import json
import os
import stat
import subprocess
import threading

import numpy as np
import pytest

import quire_cli

TINY = quire_cli.REPOSITORY / "models/tiny"
GENERATE = ("generate", "--model", TINY, "--prompt", "The sky is", "--max-tokens", "3")
TRACE = "".join(json.dumps({"timestamp": number, "input_length": 1024, "output_length": 5,
                            "hash_ids": [0, 1 + number % 3]}) + "\n" for number in range(40))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{TRACE} and {TEXT} in a command."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "trace.jsonl").write_text(TRACE)
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 4)
    return {"{TRACE}": folder / "trace.jsonl", "{TEXT}": folder / "text.txt"}


COMMANDS = {
    "demo": ("demo",),
    "generate": GENERATE,
    "generate --stats": (*GENERATE, "--stats"),
    "eval": ("eval", "--model", TINY, "--text", "{TEXT}", "--kv", "int8", "--context", "64"),
    "plan": ("plan", "--config", TINY / "config.json", "--tokens", "1000"),
    "replay": ("replay", "--trace", "{TRACE}"),
    "replay --curve": ("replay", "--trace", "{TRACE}", "--curve"),
    "selftest": ("selftest", "isolation"),
    "info": ("info",),
}
WITHOUT_JSON = {
    "--version": ("--version",),
    "--help": ("--help",),
    "generate --help": ("generate", "--help"),
}
CASES = {**COMMANDS, **{name + " --json": (*command, "--json")
                        for name, command in COMMANDS.items()}, **WITHOUT_JSON}


def start(command, files, stdout=None, **options):
    command = [str(quire_cli.binary()), *(str(files.get(part, part)) for part in command)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False,
                          timeout=quire_cli.TIMEOUT_S, **options)


def assert_says_so(done, words):
    """Exit 1 and one line, whatever was printed before."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1 and "stdout" in lines[0] and words in lines[0], done.stderr


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_full_disk(case, files):
    with open("/dev/full", "wb") as full:
        assert_says_so(start(CASES[case], files, full), "No space left")


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_closed_stdout(case, files):
    assert_says_so(start(CASES[case], files, preexec_fn=lambda: os.close(1)), "Bad file")


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_reader_that_went_away(case, files):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        assert_says_so(start(CASES[case], files, pipe), "Broken pipe")


def test_a_closed_stderr_changes_nothing(files):
    done = subprocess.run([str(quire_cli.binary()), *(str(part) for part in GENERATE)],
                          stdout=subprocess.PIPE, check=False, timeout=quire_cli.TIMEOUT_S,
                          preexec_fn=lambda: os.close(2))
    want = start(GENERATE, files, subprocess.PIPE)
    assert done.returncode == want.returncode == 0
    assert done.stdout == want.stdout


def test_bad_input_keeps_its_exit_code(files):
    with open("/dev/full", "wb") as full:
        done = start(("plan", "--config", "/nowhere", "--tokens", "5", "--json"), files, full)
        assert done.returncode == 3, done.stderr
        assert start(("plan",), files, full).returncode == 2


def test_no_file_takes_the_place_of_a_closed_stream(files, tmp_path):
    """With stdout closed the next file opened would get its number, and the text of the command."""
    path = tmp_path / "logits.npy"
    done = start((*GENERATE, "--logits-out", path), files, preexec_fn=lambda: os.close(1))
    assert_says_so(done, "Bad file")
    assert not path.exists() or np.load(path).ndim == 2


# ----------------------------------------------------------------------------- files it writes

WRITERS = {
    "logits": lambda path: (*GENERATE, "--json", "--logits-out", path),
    "svg": lambda path: ("replay", "--trace", "{TRACE}", "--curve", "--json", "--svg", path),
}


@pytest.fixture(scope="module", params=sorted(WRITERS))
def writer(request, files, tmp_path_factory):
    """The command for a path, and the bytes that it writes."""
    path = tmp_path_factory.mktemp("plain") / "file"
    done = start(WRITERS[request.param](path), files, subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return WRITERS[request.param], path.read_bytes()


def test_a_file_is_replaced_whole(writer, files, tmp_path):
    command, want = writer
    path = tmp_path / "file"
    path.write_bytes(b"old" * len(want))
    before = path.stat().st_ino
    assert start(command(path), files, subprocess.PIPE).returncode == 0
    assert path.read_bytes() == want
    assert path.stat().st_ino != before, "a reader of the old file still has it"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays(writer, files, tmp_path, exists):
    command, want = writer
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub/target"
    if exists:
        target.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("sub/target")
    assert start(command(link), files, subprocess.PIPE).returncode == 0
    assert link.is_symlink() and os.readlink(link) == "sub/target"
    assert target.read_bytes() == want
    assert [entry.name for entry in (tmp_path / "sub").iterdir()] == ["target"]


def device(folder, name, minor):
    """A node of our own where that is allowed, else a link: a program that replaces it spoils no
    machine."""
    node = folder / name
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    except PermissionError:
        node.symlink_to("/dev/" + name)
    return node


def test_a_device_stays(writer, files, tmp_path):
    command, _ = writer
    null, full = device(tmp_path, "null", 3), device(tmp_path, "full", 7)
    assert start(command(null), files, subprocess.PIPE).returncode == 0
    done = start(command(full), files, subprocess.PIPE)
    assert done.returncode == 4 and b"full: write: No space left" in done.stderr, done.stderr
    for node in (null, full):
        assert stat.S_ISCHR(os.stat(node).st_mode)


def test_a_pipe_gets_the_bytes(writer, files, tmp_path):
    command, want = writer
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    assert start(command(path), files, subprocess.PIPE).returncode == 0
    reader.join(timeout=60)
    assert got == [want]
    assert stat.S_ISFIFO(os.stat(path).st_mode)


@pytest.mark.parametrize("to_file", [True, False])
def test_stdout_as_a_file(writer, files, tmp_path, to_file):
    """The file first, then what --json prints, one after the other. By a link of our own, as
    /dev/stdout is one: a program that replaces it spoils no machine."""
    command, want = writer
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    if to_file:
        with open(tmp_path / "out", "wb") as out:
            assert start(command(link), files, out).returncode == 0
        got = (tmp_path / "out").read_bytes()
    else:
        done = start(command(link), files, subprocess.PIPE)
        assert done.returncode == 0, done.stderr
        got = done.stdout
    assert link.is_symlink()
    assert got.startswith(want)
    assert isinstance(json.loads(got[len(want):]), dict)


def test_a_missing_folder_is_said(writer, files, tmp_path):
    command, _ = writer
    done = start(command(tmp_path / "none/file"), files, subprocess.PIPE)
    assert done.returncode == 3 and b"none/file" in done.stderr, done.stderr
