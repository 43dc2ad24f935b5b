"""quire serve --store: sessions go on over SIGTERM and kill -9, by the same id and key, with the
answers of a server that was never stopped."""

import contextlib
import json
import os
import signal
import stat
import threading
import time
import urllib.error

import pytest

import quire_server

KEYS = """
[[tenant]]
name = "alice"
keys = ["alice-key-0123456789"]

[[tenant]]
name = "bob"
keys = ["bob-key-0123456789ab"]
"""
ALICE = "alice-key-0123456789"
BOB = "bob-key-0123456789ab"
TURNS = 8
TOKENS = 12
SAMPLINGS = [{"temperature": 0}, {"temperature": 1.0, "seed": 7, "top_p": 0.9},
             {"temperature": 0.8, "seed": 3, "top_k": 20}, {"temperature": 0}]


class Killed(Exception):
    """Leaves the block of a server that was killed."""


def prompt_of(client, turn):
    return f"Client {client} says for the {turn}. time that it is so. " * (1 + (client + turn) % 5)


class Client:
    """One session of one tenant: `said` are its answers so far."""

    def __init__(self, number):
        self.number = number
        self.key = [ALICE, BOB][number % 2]
        self.session = None
        self.tokens = 0  # that the session holds after the last answer
        self.said = []

    def open(self, server):
        status, answer = server.ask("/v1/sessions", SAMPLINGS[self.number % 4], key=self.key)
        assert status == 200, answer
        self.session = answer["id"]

    def turn(self, server):
        """One turn; False: the server did not answer it."""
        try:
            status, answer = server.ask("/v1/completions", {
                "session": self.session, "prompt": prompt_of(self.number, len(self.said)),
                "max_tokens": TOKENS}, key=self.key)
        except (OSError, urllib.error.URLError, ValueError):
            return False
        if status == 503:
            return False
        assert status == 200, answer
        self.take(answer)
        return True

    def take(self, answer):
        self.said.append(answer["choices"][0]["text"])
        self.tokens = answer["usage"]["total_tokens"]

    def catch_up(self, server, reference):
        """After a restart: a turn that was whole, but was not heard of, is not sent again."""
        status, session = server.ask(f"/v1/sessions/{self.session}", key=self.key)
        assert status == 200, session
        if session["tokens"] != self.tokens:
            self.said.append(reference.said[len(self.said)])
            self.tokens = reference.totals[len(self.said) - 1]
        assert session["tokens"] == self.tokens


class Reference(Client):
    """The same client, never interrupted."""

    def __init__(self, number):
        super().__init__(number)
        self.totals = []

    def take(self, answer):
        super().take(answer)
        self.totals.append(self.tokens)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    (folder / "keys.toml").write_text(KEYS)
    (folder / "keys.toml").chmod(0o600)
    clients = [Reference(i) for i in range(4)]
    with quire_server.serving(folder / "server", "--api-keys", folder / "keys.toml") as server:
        for client in clients:
            client.open(server)
            while len(client.said) < TURNS:
                assert client.turn(server)
    return clients


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_sessions_go_on_over_restarts_under_load(tmp_path, references, how):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    flags = ["--api-keys", keys, "--store", tmp_path / "store", "--drain", 20]
    clients = [Client(i) for i in range(4)]
    for life in range(3):
        last = life == 2
        dies = not last and how == signal.SIGKILL
        with pytest.raises(Killed) if dies else contextlib.nullcontext():
            with quire_server.serving(tmp_path / f"server{life}", *flags) as server:
                for client, reference in zip(clients, references):
                    if life == 0:
                        client.open(server)
                    else:
                        client.catch_up(server, reference)
                # The next life begins where some clients are ahead of others.
                goal = TURNS if last else 2 + 2 * life

                def run(client):
                    while len(client.said) < (goal if last else TURNS) and client.turn(server):
                        pass

                threads = [threading.Thread(target=run, args=(client,)) for client in clients]
                for thread in threads:
                    thread.start()
                if not last:
                    end = time.monotonic() + 60
                    while max(len(client.said) for client in clients) < goal:
                        assert time.monotonic() < end
                        time.sleep(0.001)
                    server.process.send_signal(how)
                    server.process.wait(timeout=60)
                for thread in threads:
                    thread.join()
                if dies:
                    raise Killed
    for client, reference in zip(clients, references):
        assert client.said == reference.said


def test_a_kill_in_a_long_prompt_costs_what_was_not_durable(tmp_path):
    text = " ".join(f"{i} and then" for i in range(1600))
    body = {"prompt": text, "max_tokens": 8}
    flags = ["--max-seq-len", 40000]
    with quire_server.serving(tmp_path / "alone", *flags) as server:
        session = server.ask("/v1/sessions", {"temperature": 1.0, "seed": 5})[1]["id"]
        first = server.ask("/v1/completions", {"session": session, "prompt": "A: ",
                                               "max_tokens": 8})[1]
        alone = server.ask("/v1/completions", {"session": session, **body}, timeout=120)[1]
    flags += ["--store", tmp_path / "store"]
    with pytest.raises(Killed):
        with quire_server.serving(tmp_path / "killed", *flags) as server:
            session = server.ask("/v1/sessions", {"temperature": 1.0, "seed": 5})[1]["id"]
            again = server.ask("/v1/completions", {"session": session, "prompt": "A: ",
                                                   "max_tokens": 8})[1]
            assert again["choices"][0]["text"] == first["choices"][0]["text"]

            def ask():
                with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
                    server.ask("/v1/completions", {"session": session, **body}, timeout=120)

            asking = threading.Thread(target=ask)
            asking.start()
            while True:
                cache = server.ask("/v1/cache")[1]
                if cache["store"]["records"] >= 8 and cache["calls"]:
                    break
                assert asking.is_alive(), "it ended before any of it was durable"
                time.sleep(0.01)
            calls = cache["calls"]
            server.process.kill()
            server.process.wait()
            asking.join()
            raise Killed
    assert 0 < calls[0]["prompt_done"] < calls[0]["prompt_tokens"], "it was killed too late"
    with quire_server.serving(tmp_path / "again", *flags) as server:
        status, answer = server.ask("/v1/completions", {"session": session, **body}, timeout=120)
        assert status == 200, answer
        assert answer["choices"][0]["text"] == alone["choices"][0]["text"]
        assert answer["usage"]["total_tokens"] == alone["usage"]["total_tokens"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert 0 < cached < answer["usage"]["prompt_tokens"]


def test_what_outlives_a_restart_is_private_and_ends_with_its_session(tmp_path):
    store = tmp_path / "store"
    with quire_server.serving(tmp_path / "a", "--store", store) as server:
        kept = server.ask("/v1/sessions", {})[1]["id"]
        held = server.ask("/v1/completions", {"session": kept, "prompt": "A secret",
                                              "max_tokens": 4})[1]["usage"]["total_tokens"]
        fork = server.ask(f"/v1/sessions/{kept}/fork", {})[1]["id"]
        ended = server.ask(f"/v1/sessions/{kept}/fork", {})[1]["id"]
        folder = store / "sessions"
        assert sorted(path.name for path in folder.iterdir()) == sorted([".lock", kept, fork, ended])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / kept).stat().st_mode) == 0o600
        assert server.ask(f"/v1/sessions/{ended}", method="DELETE")[0] == 200
        assert not (folder / ended).exists()
    with quire_server.serving(tmp_path / "b", "--store", store) as server:
        listed = server.ask("/v1/sessions")[1]["data"]
        assert sorted(each["id"] for each in listed) == sorted([kept, fork])
        assert {each["tokens"] for each in listed} == {held}
        assert server.ask(f"/v1/sessions/{fork}", method="DELETE")[0] == 200
        assert server.ask("/v1/completions", {"session": ended, "prompt": "x"})[0] == 404
    # One byte of the text is damaged.
    path = store / "sessions" / kept
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with quire_server.serving(tmp_path / "c", "--store", store) as server:
        status, answer = server.ask("/v1/completions", {"session": kept, "prompt": "x"})
        assert status == 500 and kept in answer["error"]["message"], answer
    # Without the store's directory it knows none.
    with quire_server.serving(tmp_path / "d") as server:
        assert server.ask("/v1/sessions")[1]["data"] == []
    # An unused one ends, over restarts too.
    with quire_server.serving(tmp_path / "e", "--store", store, "--session-idle", 1):
        end = time.monotonic() + 30
        while path.exists():
            assert time.monotonic() < end
            time.sleep(0.1)


def test_another_model_leaves_sessions_alone(tmp_path):
    store = tmp_path / "store"
    other = tmp_path / "other"
    other.mkdir()
    for file in quire_server.TINY.iterdir():
        if file.is_file():
            os.link(file, other / file.name)
    (other / "config.json").unlink()
    config = json.loads((quire_server.TINY / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rope_theta": 50000.0}))
    with quire_server.serving(tmp_path / "a", "--store", store) as server:
        session = server.ask("/v1/sessions", {})[1]["id"]
        held = server.ask("/v1/completions", {"session": session, "prompt": "Here",
                                              "max_tokens": 4})[1]["usage"]["total_tokens"]
    with quire_server.serving(tmp_path / "b", "--store", store, model=other) as server:
        shown = server.ask(f"/v1/sessions/{session}")[1]
        assert "another model" in shown["unusable"]
        status, answer = server.ask("/v1/completions", {"session": session, "prompt": "x"})
        assert status == 409 and answer["error"]["code"] == "session_unusable"
        assert session in server.stderr.read_text()
    with quire_server.serving(tmp_path / "c", "--store", store) as server:
        status, answer = server.ask("/v1/completions", {"session": session, "prompt": "x"})
        assert status == 200 and answer["usage"]["prompt_tokens"] == held + 1
