"""quire serve --store: after a restart, also after a kill, prompts are found in the store."""

import contextlib
import signal
import threading
import time

import pytest

import quire_cli
import quire_server

PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune"


def ask(server, prompt, name, tokens=12):
    status, answer = server.ask("/v1/completions", {"prompt": prompt, "max_tokens": tokens},
                                headers={"X-Request-Id": name})
    assert status == 200, answer
    return answer["choices"][0]["text"], server.line_of(name)["cache"]


def test_a_restart_finds_what_was_read(tmp_path):
    with quire_server.serving(tmp_path / "a", "--store", tmp_path / "store") as server:
        text, cache = ask(server, PROMPT, "first")
        assert cache["loaded_tokens"] == 0
        assert server.ask("/v1/cache")[1]["store"]["bytes_cap"] == 8 << 30
        end = time.monotonic() + 60
        while True:  # written behind
            index = server.ask("/v1/cache")[1]["index"]
            if index["blocks"] and all(run["stored"] for run in index["runs"]):
                break
            assert time.monotonic() < end, index
            time.sleep(0.05)
        assert {run["tier"] for run in index["runs"]} == {"memory"}
    with quire_server.serving(tmp_path / "b", "--store", tmp_path / "store") as server:
        again, cache = ask(server, PROMPT, "again")
        assert again == text
        assert cache["loaded_tokens"] == cache["reused_tokens"] == len(PROMPT) // 16 * 16
        metrics = server.ask("/metrics")[1]
        assert 'quire_prompt_tokens_total{from="store",tenant="default"} 80' in metrics
        assert "quire_store_loaded_records_total" in metrics
    # A server without it computes, and says the same.
    with quire_server.serving(tmp_path / "c") as server:
        alone, cache = ask(server, PROMPT, "alone")
        assert alone == text and cache["reused_tokens"] == 0


def test_a_prompt_that_is_expected_is_read_ahead(tmp_path):
    messages = {"messages": [{"role": "user", "content": PROMPT}]}
    with quire_server.serving(tmp_path / "a", "--store", tmp_path / "store") as server:
        text, _ = ask(server, PROMPT, "first")
    with quire_server.serving(tmp_path / "b", "--store", tmp_path / "store") as server:
        status, answer = server.ask("/v1/cache/prefetch", {"prompt": PROMPT})
        assert status == 200
        assert answer == {"object": "cache.prefetch", "prompt_tokens": len(PROMPT),
                          "loading_tokens": len(PROMPT) // 16 * 16}
        end = time.monotonic() + 60
        while server.ask("/v1/cache/prefetch", {"prompt": PROMPT})[1]["loading_tokens"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        again, cache = ask(server, PROMPT, "again")
        assert again == text
        assert (cache["reused_tokens"], cache["loaded_tokens"]) == (len(PROMPT) // 16 * 16, 0)
        # What the store does not have is no error; what no completion takes is one.
        assert server.ask("/v1/cache/prefetch", messages)[1]["loading_tokens"] == 0
        assert server.ask("/v1/cache/prefetch", {"prompt": 7})[0] == 400
        assert server.ask("/v1/cache/prefetch", {"prompt": PROMPT, "model": "other"})[0] == 404
    with quire_server.serving(tmp_path / "c") as server:
        assert server.ask("/v1/cache/prefetch", {"prompt": PROMPT})[1]["loading_tokens"] == 0
    # A call that comes meanwhile reads nothing once more, unless the prefetch ends just while it is planned.
    loaded = []
    for attempt in range(5):
        with quire_server.serving(tmp_path / f"d{attempt}", "--store", tmp_path / "store", "--load", "always") as server:
            server.ask("/v1/cache/prefetch", {"prompt": PROMPT})
            assert ask(server, PROMPT, "meanwhile")[0] == text
            metrics = server.ask("/metrics")[1]
        loaded.append(int(metrics.split("\nquire_store_loaded_records_total ")[1].split()[0]))
        if loaded[-1] == len(PROMPT) // 16:
            return
    raise AssertionError(loaded)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_under_load_loses_no_answer_that_was_given(tmp_path, how):
    """Clients ask all the time; the server ends; the next one answers as the first did, and finds
    what was durable."""
    told = {}
    prompts = [f"{PROMPT}, number {i}, " + "and so on " * (i % 7) for i in range(40)]
    server_gone = threading.Event()
    with pytest.raises(AssertionError) if how == signal.SIGKILL else contextlib.nullcontext():
        with quire_server.serving(tmp_path / "a", "--store", tmp_path / "store",
                                  "--drain", 1) as server:
            def run(me):
                i = me
                while not server_gone.is_set():
                    try:
                        status, answer = server.ask("/v1/completions", {
                            "prompt": prompts[i % 40], "max_tokens": 10})
                    except OSError:
                        return
                    if status == 200:
                        told[prompts[i % 40]] = answer["choices"][0]["text"]
                    i += 4
            threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 60
            while len(told) < 10:
                assert time.monotonic() < end
                time.sleep(0.01)
            quire_cli.wait_records(tmp_path / "store")
            server.process.send_signal(how)
            server.process.wait(timeout=60)
            server_gone.set()
            for thread in threads:
                thread.join()
    with quire_server.serving(tmp_path / "b", "--store", tmp_path / "store") as server:
        loaded = 0
        for number, (prompt, text) in enumerate(told.items()):
            again, cache = ask(server, prompt, f"again-{number}", tokens=10)
            assert again == text
            loaded += cache["loaded_tokens"]
        assert loaded > 0

