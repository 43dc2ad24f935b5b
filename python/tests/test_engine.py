"""A model with its sessions from Python: answers, what they hold, what outlives the process."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import pytest

import quire
from quire.engine import Engine

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "e2e"))
import peft_directory
import remote_servers

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny"
TEXT = "It is a truth universally acknowledged. " * 10


@pytest.fixture
def engine():
    with Engine(MODEL, hot_bytes=64 << 20, threads=2) as made:
        yield made


@pytest.fixture
def stored(tmp_path):
    with Engine(MODEL, store=tmp_path / "store", hot_bytes=64 << 20, threads=2,
                resident_tokens=64) as made:
        yield made


def test_an_answer_comes_token_by_token(engine):
    with engine.ask(TEXT, max_tokens=12, stop=False) as answer:
        events = list(answer)
    assert [event.kind for event in events if event.kind != "progress"] == ["token"] * 12 + ["done"]
    assert events[0].kind == "progress" and events[0].prompt_done > 0
    done = events[-1]
    assert done.finish == "length" and done.generated_tokens == 12
    assert "".join(event.text for event in events) == answer.text
    assert answer.tokens == [event.token for event in events if event.kind == "token"]
    # Asked again, most of the prompt is in the cache, and the answer is the same.
    again = engine.ask(TEXT, max_tokens=12, stop=False)
    assert again.read().reused_tokens > 0 and again.tokens == answer.tokens
    assert again.done.kind == "done" and next(iter(again), None) is None


def test_what_a_call_may_say(engine):
    plain = engine.ask(TEXT, max_tokens=8, stop=False)
    plain.read()
    first = plain.tokens[0]
    barred = engine.ask(TEXT, max_tokens=8, stop=False, logit_bias={first: -100.0})
    barred.read()
    assert barred.tokens[0] != first
    stopped = engine.ask(TEXT, max_tokens=8, stop_tokens=[first])
    assert stopped.read().finish == "stop"
    assert engine.ask([1, 2, 3], max_tokens=0).read().generated_tokens == 0
    for by in ("observed", "accumulated", "recent"):
        assert engine.ask(TEXT, max_tokens=2, keep=0.3, keep_by=by).read().dropped_tokens > 0
    bounded = engine.ask(TEXT, max_tokens=200, stop=False, keep_blocks=8).read()
    assert (bounded.generated_tokens, bounded.dropped_tokens > 0) == (200, True)
    hinted = engine.ask(TEXT, max_tokens=2, retain_s=60).read()
    assert hinted.retained_tokens > 0 and engine.stats()["cache"]["pinned_blocks"] > 0
    drawn = [engine.ask(TEXT, max_tokens=8, stop=False, temperature=2.0, seed=seed)
             for seed in (1, 1, 2)]
    for answer in drawn:
        answer.read()
    assert drawn[0].tokens == drawn[1].tokens != drawn[2].tokens
    assert engine.ask(TEXT, max_tokens=4, priority=-50, on_full="halt").read().generated_tokens > 0
    with pytest.raises(quire.DeadlineError):
        engine.ask(TEXT, max_tokens=1000, stop=False, timeout_s=1e-6).read()


@pytest.mark.parametrize(("error", "wrong"), [
    (quire.InvalidArgumentError, {"priority": 51}),
    (quire.InvalidArgumentError, {"on_full": "hope"}),
    (quire.InvalidArgumentError, {"keep": 1.5}),
    (quire.InvalidArgumentError, {"keep_by": "luck"}),
    (quire.InvalidArgumentError, {"repetition_penalty": -1.0}),
    (quire.UnsupportedError, {"on_full": "spill"}),
])
def test_what_can_never_work_is_refused(engine, error, wrong):
    with pytest.raises(error):
        engine.ask(TEXT, **wrong)
    with pytest.raises(quire.InvalidArgumentError):
        engine.ask(None)
    assert engine.ask(TEXT, max_tokens=1).read().generated_tokens == 1


def test_a_session_goes_on_after_the_engine_ended(tmp_path):
    with Engine(MODEL, hot_bytes=64 << 20, threads=2) as engine:
        with engine.open_session() as session:
            session.turn(TEXT, max_tokens=5, stop=False).read()
            whole = session.turn("And then", max_tokens=5, stop=False)
            whole.read()
            whole.close()
    directory = tmp_path / "store"
    with Engine(MODEL, store=directory, hot_bytes=64 << 20, threads=2) as engine:
        session = engine.open_session("talk")
        first = session.turn(TEXT, max_tokens=5, stop=False)
        first.read()
        with pytest.raises(quire.BusyError):
            engine.reopen_session("talk")
        first.close()
        session.close()
    with Engine(MODEL, store=directory, hot_bytes=64 << 20, threads=2) as engine:
        assert [(each["name"], each["open"]) for each in engine.sessions()] == [("talk", False)]
        session = engine.reopen_session("talk")
        fork = session.fork("other")
        assert (session.name, fork.name) == ("talk", "other")
        for talk in (session, fork):
            answer = talk.turn("And then", max_tokens=5, stop=False)
            assert answer.read().reused_tokens > 0
            assert answer.tokens == whole.tokens
            answer.close()
        fork.end()
        with pytest.raises(quire.NotFoundError):
            fork.turn("more")
        assert [each["name"] for each in engine.sessions()] == ["talk"]
        session.close()


def test_an_answer_that_is_cancelled_leaves_its_session_as_it_was(engine):
    session = engine.open_session()
    session.turn(TEXT, max_tokens=2, stop=False).read()
    answer = session.turn("Once", max_tokens=2000, stop=False)
    next(answer)
    with pytest.raises(quire.BusyError):
        session.turn("Twice")
    answer.close()
    held = engine.sequences()[0]
    assert (held["stage"], held["generated_tokens"]) == ("idle", 0)
    text_tokens = held["text_tokens"]
    session.turn(None, max_tokens=1, stop=False).read()
    assert engine.sequences()[0]["text_tokens"] == text_tokens + 1
    # From another thread, while one waits.
    answer = session.turn("Once", max_tokens=2000, stop=False)
    next(answer)
    thread = threading.Timer(0.05, answer.cancel)
    thread.start()
    assert answer.read().finish == "cancelled"
    thread.join()


def test_says_what_it_holds_and_moves_it_to_the_store(stored):
    session = stored.open_session("held")
    answer = session.turn(TEXT, max_tokens=3, stop=False)
    answer.read()
    held = stored.sequences()
    assert len(held) == 1 and held[0]["session_name"] == "held" and held[0]["bytes"] > 0
    blocks = stored.entries()
    assert len(blocks) > 2 and blocks[0].keys() == quire.CacheEntry.__annotations__.keys()
    assert held[0].keys() == quire.engine.SequenceEntry.__annotations__.keys()
    assert "S" in stored.block_map() or "s" in stored.block_map()
    assert stored.demote(TEXT) == 0  # in use
    answer.close()
    session.close()
    assert stored.demote(TEXT) > 2
    assert len(stored.entries()) < len(blocks)
    stats = stored.stats()
    assert stats["engine"].keys() == quire.engine.EngineCounters.__annotations__.keys()
    assert stats["cache"].keys() == quire.CacheStats.__annotations__.keys()
    assert stats["store"]["records"] > 0
    free = stored.free_slots()
    assert free[0]["fragmentation"] < 1 and free[0].keys() == quire.FreeRuns.__annotations__.keys()
    assert stored.ask(TEXT, max_tokens=1).read().loaded_tokens > 0  # and back


def test_an_arithmetic_class_has_blocks_of_its_own(tmp_path):
    for name in ("fma32", "dot16"):
        for again in (False, True):
            try:
                engine = Engine(MODEL, store=tmp_path, hot_bytes=4 << 20, arithmetic=name)
            except quire.UnsupportedError as error:
                pytest.skip(str(error))
            with engine:
                answer = engine.ask(TEXT, max_tokens=1, stop=False).read()
                assert (answer.reused_tokens > 0) == again, name


def test_options_reach_the_engine(tmp_path):
    with Engine(MODEL, hot_bytes=4 << 20, hot_bytes_max=8 << 20, threads=1, codec="int8",
                block_tokens=32, chunk_tokens=64, policy="quire", load="never",
                eviction_batch="adaptive", window_tokens=64, sink_tokens=4,
                layout="block_major", placement="buddy") as engine:
        assert engine.ask(TEXT * 20, max_tokens=2, stop=False).read().generated_tokens == 2
        engine.resize(8 << 20)
        assert engine.stats()["cache"]["hot_bytes_limit"] == 8 << 20
        with pytest.raises(quire.TooLargeError):
            engine.resize(9 << 20)
    for wrong in ({"codec": "int3"}, {"policy": "mru"}, {"load": "maybe"}, {"sink_tokens": 4},
                  {"eviction_batch": "some"}, {"layout": "row"}, {"placement": "worst_fit"}, {"arithmetic": "tf32"}):
        with pytest.raises(quire.InvalidArgumentError):
            Engine(MODEL, hot_bytes=4 << 20, **wrong)
    with pytest.raises(quire.NotFoundError):
        Engine(tmp_path / "none")


def test_many_threads_ask_one_engine(engine):
    alone = engine.ask(TEXT, max_tokens=6, stop=False)
    alone.read()
    found = []

    def ask():
        for _ in range(5):
            answer = engine.ask(TEXT, max_tokens=6, stop=False)
            answer.read()
            found.append(answer.tokens)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone.tokens] * 20


def test_objects_outlive_each_other_and_say_what_they_are():
    engine = Engine(MODEL, hot_bytes=64 << 20, threads=1)
    session = engine.open_session("one")
    answer = session.turn(TEXT, max_tokens=3, stop=False)
    engine.close()
    session.close()
    assert repr(engine) == "<quire.engine.Engine: closed>"
    with pytest.raises(quire.InvalidArgumentError, match="is closed"):
        engine.stats()
    assert answer.read().generated_tokens == 3
    assert repr(answer) == "<quire.engine.Answer: 3 tokens, over>"
    answer.close()
    answer.close()


def test_a_forked_child_is_told_and_ends(engine):
    answer = engine.ask(TEXT, max_tokens=3, stop=False)
    answer.read()
    child = os.fork()
    if child == 0:
        try:
            engine.stats()
        except quire.InvalidArgumentError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert engine.ask(TEXT, max_tokens=1).read().generated_tokens == 1


def test_answers_and_sessions_name_adapters(tmp_path):
    one = peft_directory.write(tmp_path / "one", MODEL, 1)
    with Engine(MODEL, store=tmp_path / "store", hot_bytes=64 << 20, threads=2) as engine:
        def say(adapter=None):
            answer = engine.ask(TEXT, max_tokens=8, stop=False, adapter=adapter)
            answer.read()
            return answer.text

        base = say()
        with pytest.raises(quire.NotFoundError, match="'one'"):
            say("one")
        engine.load_adapter("one", one)
        assert [adapter["name"] for adapter in engine.adapters()] == ["one"]
        assert engine.adapters()[0]["rank"] == 4
        assert engine.stats()["engine"]["adapter_bytes"] == engine.adapters()[0]["bytes"]
        adapted = say("one")
        assert adapted != base and say("one") == adapted and say() == base
        with engine.open_session("s", adapter="one") as session:
            with session.turn(TEXT, max_tokens=8, stop=False) as turn:
                turn.read()
                assert turn.text == adapted
        engine.unload_adapter("one")
        with pytest.raises(quire.NotFoundError):
            engine.unload_adapter("one")
        with engine.reopen_session("s") as session, pytest.raises(quire.NotFoundError, match="'one'"):
            session.turn("and", max_tokens=1).read()
        engine.load_adapter("one", peft_directory.write(tmp_path / "two", MODEL, 2))
        with engine.reopen_session("s") as session, pytest.raises(quire.UnsupportedError):
            session.turn("and", max_tokens=1).read()


@pytest.mark.skipif(remote_servers.REDIS is None, reason="needs the package redis-tools")
def test_engines_of_two_machines_share_a_remote(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    answers = []
    with remote_servers.redis(tmp_path / "redis") as server:
        for store in (None, tmp_path / "second"):
            with Engine(MODEL, store=store, hot_bytes=64 << 20, threads=2, load="always", fleet_key=key,
                        remote=f"redis://127.0.0.1:{server.port}/shared?timeout=60", remote_writes_all=True) as engine:
                with engine.ask(TEXT, max_tokens=8, stop=False) as answer:
                    answers.append((answer.read(), answer.tokens))
    (first, tokens), (second, again) = answers
    assert first.loaded_tokens == 0
    assert second.loaded_tokens >= (first.prompt_tokens - 1) // 16 * 16 > 0
    assert again == tokens


def test_a_remote_without_its_key_file_is_refused(tmp_path):
    with pytest.raises(quire.NotFoundError, match="none-there"):
        Engine(MODEL, remote="redis://127.0.0.1:1", fleet_key=tmp_path / "none-there")


def test_threads_leave_the_program_its_signals(tmp_path):
    """A program's thread that waits in a call wakes only if the signal comes to it."""
    text = ("import pathlib, signal, sys\n"
            "from quire.engine import Engine\n"
            "def takes_signals(thread):\n"
            "    lines = (thread / 'status').read_text().splitlines()\n"
            "    blocked = int(next(line for line in lines if line.startswith('SigBlk')).split()[1], 16)\n"
            "    return blocked >> (signal.SIGTERM - 1) & 1 == 0\n"
            "def threads():\n"
            "    return set(pathlib.Path('/proc/self/task').iterdir())\n"
            "others = threads()\n"
            "with Engine(sys.argv[1], store=sys.argv[2], hot_bytes=64 << 20, threads=2) as engine:\n"
            "    engine.ask([5] * 40, max_tokens=2).read()\n"
            "    ours = threads() - others\n"
            "    assert len(ours) > 3\n"
            "    assert not any(takes_signals(thread) for thread in ours)\n")
    run = subprocess.run([sys.executable, "-c", text, MODEL, tmp_path / "store"], capture_output=True,
                         text=True, timeout=600)
    assert (run.returncode, run.stderr) == (0, "")
