"""llama.cpp's server behind quire.llama_server: the same text from a miss, a hit and another process, with
records that are damaged, cut off, missing or foreign; what another model finds; clients at once; the cap."""

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import quire
from quire.store import BlockStore

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from engine_processes import BINARY, HANG_S, Owner, bytes_of_files, harm, within  # noqa: E402

if importlib.util.find_spec("xllamacpp") is None:
    pytest.skip("xllamacpp is not installed", allow_module_level=True)

TOKENS, SHARED = 300, 192  # of a prompt; whole blocks of 32 that prompts share
CAP = 64 << 20


def prompt(number=0):
    """Prompts share what they have before token 200."""
    return [(i * 37 + number * (i // 200)) % 500 + 5 for i in range(TOKENS)]


class Server:
    def __init__(self, model, store, *options, cap=CAP, scratch=None):
        command = [sys.executable, HERE / "llama_server.py", "-m", model, *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quire.llama_server", "--store", str(store), "--cap-bytes",
             str(cap), "--listen", "127.0.0.1:0", *(["--scratch", scratch] if scratch else []),
             "--", *command], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("quire.llama_server: http://"), line
        self.port = int(line.rpartition(":")[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(HANG_S) in (0, -signal.SIGTERM)

    def call(self, path, body=None):
        """Status and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path,
                               None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode()

    def ask(self, tokens, **fields):
        """The text, and how many tokens were not computed."""
        status, text = self.call("/completion", {"prompt": tokens, "n_predict": 24,
                                                 "temperature": 0} | fields)
        assert status == 200, text
        answer = json.loads(text)
        return answer["content"], answer["timings"]["cache_n"]

    def forget(self):
        """Fills the slots with something else, so that only the store has a prompt."""
        self.ask([7] * 100)


def make_model(path, seed=0):
    subprocess.run([sys.executable, HERE / "make_model.py", path, str(seed)], check=True)
    return path


@pytest.fixture(scope="module", name="model")
def made_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("llama") / "model.gguf")


@pytest.fixture(scope="module", name="texts")
def computed(model, tmp_path_factory):
    """Of prompts 0 to 7, each in a server's empty slot."""
    with Server(model, tmp_path_factory.mktemp("plain") / "store") as server:
        texts = [server.ask(prompt(number), cache_prompt=False) for number in range(8)]
    assert all(cached == 0 for _, cached in texts)
    assert len({text for text, _ in texts}) == 8
    return [text for text, _ in texts]


def test_the_same_text_from_a_miss_a_hit_and_another_process(model, texts, tmp_path):
    with Server(model, tmp_path / "store") as server:
        assert server.ask(prompt()) == (texts[0], 0)
        server.forget()
        assert server.ask(prompt()) == (texts[0], TOKENS - 1)
    with Server(model, tmp_path / "store") as server:
        assert server.ask(prompt()) == (texts[0], TOKENS - 1), "after a restart"
    with Server(model, tmp_path / "store") as server:
        assert server.ask(prompt(3)) == (texts[3], SHARED)


def test_what_comes_as_text_chat_or_stream(model, tmp_path):
    turns = {"messages": [{"role": "user", "content": "t1 t2 t3 " * 40}], "max_tokens": 8,
             "temperature": 0}
    for cached in (False, True):
        with Server(model, tmp_path / "store") as server:
            status, text = server.call("/v1/chat/completions", turns)
            assert status == 200, text
            assert (json.loads(text)["timings"]["cache_n"] > 100) == cached
            status, streamed = server.call("/v1/completions", {
                "prompt": "t5t6t7" * 50, "max_tokens": 8, "temperature": 0, "stream": True})
            assert status == 200
            assert streamed.rstrip().endswith("data: [DONE]")
            *_, last = [json.loads(line[6:]) for line in streamed.splitlines()
                        if line.startswith("data: {")]
            assert (last["timings"]["cache_n"] > 100) == cached


def test_calls_that_are_none_of_ours_are_handed_on(model, tmp_path):
    with Server(model, tmp_path / "store") as server:
        assert server.call("/health")[0] == 200
        assert server.call("/v1/models")[0] == 200
        assert server.call("/completion", {"prompt": [[1, 2], [3, 4]], "n_predict": 1})[0] == 200
        assert server.call("/completion", "no object")[0] == 400
        assert server.call("/nowhere", {})[0] == 404
        assert server.call("/slots/0?action=save", {"filename": "x"})[0] == 403
        assert server.ask(prompt(), id_slot=0)[1] == 0


@pytest.mark.parametrize("how", ["bits", "cut", "missing"])
def test_what_is_damaged_is_computed_again(model, texts, tmp_path, how):
    with Server(model, tmp_path / "store") as server:
        server.ask(prompt())
    harm(tmp_path / "store", how)
    with Server(model, tmp_path / "store") as server:
        text, cached = server.ask(prompt())
        assert text == texts[0]
        assert cached < TOKENS - 1
        server.forget()
        assert server.ask(prompt()) == (texts[0], TOKENS - 1)


def test_another_model_option_or_size_finds_nothing(model, texts, tmp_path):
    with Server(model, tmp_path / "store") as server:
        server.ask(prompt())
    other = make_model(tmp_path / "other.gguf", 1)
    for which, *options in ((other,), (model, "--rope-freq-base", "20000"), (model, "-c", "2048")):
        with Server(which, tmp_path / "store", *options) as server:
            assert server.ask(prompt())[1] == 0
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(model.read_bytes())
    with Server(mine, tmp_path / "store", "-t", "2") as server:
        assert server.ask(prompt()) == (texts[0], TOKENS - 1), "the same weights at another path"


def test_eight_clients_at_once_that_share_what_they_begin_with(model, texts, tmp_path):
    def ask_all(server):
        answers = [None] * 8

        def ask(number):
            answers[number] = server.ask(prompt(number))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        return answers

    for _ in range(2):
        with Server(model, tmp_path / "store", "-np", "2") as server:
            answers = ask_all(server)
            assert [text for text, _ in answers] == texts
    assert min(cached for _, cached in answers) == TOKENS - 1


def test_the_cap_holds_and_what_is_killed_leaves_a_good_store(model, texts, tmp_path):
    server = Server(model, tmp_path / "store", cap=32 << 20, scratch=tmp_path)
    for number in range(60):
        server.ask([(i * 31 + number * 7) % 500 + 5 for i in range(1000)], n_predict=1)
        assert bytes_of_files(tmp_path / "store") <= 32 << 20
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    server.process.kill()
    server.process.wait(HANG_S)
    for child in map(int, children.split()):
        os.kill(child, signal.SIGKILL)
    with Server(model, tmp_path / "store", cap=32 << 20) as server:
        assert server.ask(prompt())[0] == texts[0]
        server.forget()
        assert server.ask(prompt()) == (texts[0], TOKENS - 1)


@pytest.mark.skipif(not BINARY.is_file(), reason=f"{BINARY} is not built")
def test_servers_of_several_processes_on_one_store_whose_owner_dies(model, texts, tmp_path):
    socket = tmp_path / "socket"
    owner = Owner(tmp_path / "store", socket)
    try:
        with Server(model, f"unix:{socket}") as first, Server(model, f"unix:{socket}") as second:
            assert first.ask(prompt()) == (texts[0], 0)
            assert second.ask(prompt()) == (texts[0], TOKENS - 1)
            owner.kill()
            assert first.ask(prompt(1))[0] == texts[1], "no owner"
            owner = Owner(tmp_path / "store", socket)
            for _ in within(HANG_S):  # a client that found no owner waits before it looks again
                first.forget()
                text, cached = first.ask(prompt(2))
                assert text == texts[2]
                if cached == TOKENS - 1:
                    break
            assert second.ask(prompt(2)) == (texts[2], TOKENS - 1), "with a new owner"
    finally:
        owner.end()


@pytest.mark.parametrize(("options", "what"), [
    (["--port", "1"], "--port is chosen by quire"), (["--lora", "a"], "what --lora computes"),
    ([], "name no model")])
def test_what_cannot_be_kept_is_refused_by_name(tmp_path, options, what):
    run = subprocess.run([sys.executable, "-m", "quire.llama_server", "--store", tmp_path / "store",
                          "--", "llama-server", *options], capture_output=True, text=True,
                         timeout=HANG_S)
    assert (run.returncode, run.stdout) == (2, "")
    assert what in run.stderr


def test_a_command_that_is_not_there_is_named(model, tmp_path):
    run = subprocess.run([sys.executable, "-m", "quire.llama_server", "--store", tmp_path / "store",
                          "--", tmp_path / "nowhere", "-m", model], capture_output=True, text=True,
                         timeout=HANG_S)
    assert run.returncode == 2
    assert "nowhere" in run.stderr


def test_a_directory_may_be_encrypted(model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_bytes(bytes(range(32)))
    keys.chmod(0o600)
    subprocess.run([sys.executable, "-m", "quire.llama_server", "--store", tmp_path / "store", "--keys", keys,
                    "--", tmp_path / "nowhere", "-m", model], timeout=HANG_S, check=False)
    with pytest.raises(quire.InvalidArgumentError, match="it is encrypted"):
        BlockStore(tmp_path / "store")
    BlockStore(tmp_path / "store", keys=keys).close()


def test_files_of_slots_that_are_not_known_are_refused():
    import struct

    from quire._llama_slots import read_file
    plain = struct.pack("<4sII3i", b"qsgg", 3, 3, 5, 6, 7) + b"state"
    version, tokens, state = read_file(memoryview(plain))
    assert (version, list(tokens), bytes(state)) == (3, [5, 6, 7], b"state")
    packed = struct.pack("<4sII7i", b"qsgg", 4, 7, -1, 1, 3, 5, 6, 7, 0) + b"state"
    version, tokens, state = read_file(memoryview(packed))
    assert (version, list(tokens), bytes(state)) == (4, [5, 6, 7], b"state")
    for words in ([-1], [-1, 1, 3], [-1, 1, 4, 5, 6, 7, 0], [-1, 2, 3, 5, 6, 7, 0],
                  [-1, 1, 3, 5, 6, 7, 1], [-1, 1, -2, 0]):
        data = struct.pack(f"<4sII{len(words)}i", b"qsgg", 4, len(words), *words)
        with pytest.raises(ValueError):
            read_file(memoryview(data))
    for data in (b"", plain[:10], b"x" + plain[1:], plain[:20]):
        with pytest.raises(ValueError):
            read_file(memoryview(data))
