"""What only the operator may ask of a server: another budget, other limits of a tenant, its erasure,
who holds what and that it leaves memory; and what each call may choose."""

import threading
import time

import quire_server

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. "


def test_the_operator_changes_the_budget_and_erases_a_tenant(tmp_path):
    flags = ("--hot-bytes", "8MiB", "--hot-bytes-max", "16MiB", "--operator-listen", "127.0.0.1:0",
             "--store", tmp_path / "store")
    prompt = {"prompt": "It is a truth universally acknowledged, that", "max_tokens": 2}

    def operate(what, body):
        return server.ask(f"/v1/cache/{what}", body, url=server.operator_url)

    def cached():
        return server.ask("/v1/completions", prompt)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]

    with quire_server.serving(tmp_path / "a", *flags) as server:
        assert server.ask("/v1/cache/resize", {"hot_bytes": 9 << 20})[0] == 403
        assert operate("resize", {"hot_bytes": 16 << 20})[1]["limit_bytes"] == 16 << 20
        assert operate("resize", {"hot_bytes": 17 << 20})[0] == 400
        assert [cached(), cached() > 0] == [0, True]
        session = server.ask("/v1/sessions", {})[1]["id"]
        status, erased = operate("erase", {"tenant": "default"})
        assert status == 200 and erased["blocks"] > 0 and erased["sessions"] == 1, erased
        assert server.ask(f"/v1/sessions/{session}")[0] == 404
        assert cached() == 0
        assert operate("erase", {"tenant": "default"})[0] == 200
    with quire_server.serving(tmp_path / "b", *flags) as server:
        assert cached() == 0


def test_the_operator_moves_what_memory_holds_to_the_store(tmp_path):
    flags = ("--hot-bytes", "32MiB", "--operator-listen", "127.0.0.1:0", "--store", tmp_path / "store",
             "--resident-tokens", "64")
    prompt = {"prompt": TEXT * 4, "max_tokens": 2}
    with quire_server.serving(tmp_path / "a", *flags) as server:
        def operate(what, body=None):
            return server.ask(f"/v1/cache/{what}", body, url=server.operator_url)

        def sequences():
            status, answer = operate("sequences")
            assert status == 200, answer
            return answer["data"]

        assert server.ask("/v1/completions", prompt)[0] == 200
        end = time.monotonic() + 60
        while sequences():  # what a request holds stays
            assert time.monotonic() < end
        status, demoted = operate("demote", {"prompt": TEXT * 4})
        assert status == 200 and demoted["blocks"] == len(TEXT * 4) // 16, demoted
        assert server.ask("/v1/cache")[1]["index"]["blocks"] == 0
        server.ask("/v1/completions", prompt, headers={"X-Request-Id": "again"})
        assert server.line_of("again")["cache"]["loaded_tokens"] > 0
        # A session between two turns lets go of what it keeps.
        session = server.ask("/v1/sessions", {})[1]["id"]
        server.ask("/v1/completions", {"session": session, "prompt": TEXT, "max_tokens": 2})
        held = [each for each in sequences() if each["bytes"]]
        assert len(held) == 1 and held[0]["stage"] == "idle", held
        assert operate("demote", {"session": held[0]["session"]})[0] == 200
        assert not any(each["bytes"] for each in sequences())
        # A call that runs goes on and says the same.
        long = {"prompt": TEXT * 12, "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
        expected = server.ask("/v1/completions", long)[1]["choices"][0]["text"]
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(server.ask("/v1/completions", long)[1]))
        thread.start()
        end = time.monotonic() + 60
        while True:
            running = [each for each in sequences() if each["stage"] == "generating"]
            if running:
                break
            assert time.monotonic() < end
        status, demoted = operate("demote", {"request": running[0]["request"]})
        thread.join()
        assert answers[0]["choices"][0]["text"] == expected
        assert status in (200, 404), demoted  # it may just have ended
        if status == 200:
            assert server.engine()["spilled"] >= 1
        assert operate("demote", {"request": 1 << 40})[0] == 404


def test_limits_of_a_tenant_change_while_it_is_served(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[tenant]]\nname = "alice"\nkeys = ["alice-0123456789abcdef"]\n')
    keys.chmod(0o600)
    alice = "alice-0123456789abcdef"
    flags = ("--hot-bytes", "16MiB", "--operator-listen", "127.0.0.1:0", "--api-keys", keys)
    with quire_server.serving(tmp_path / "a", *flags) as server:
        def limit(**limits):
            return server.ask("/v1/cache/limits", {"tenant": "alice", **limits},
                              url=server.operator_url)

        def tenant():
            return server.ask("/v1/cache", key=alice)[1]["tenants"][0]

        call = {"prompt": TEXT * 4, "max_tokens": 2}
        assert server.ask("/v1/completions", call, key=alice)[0] == 200
        assert tenant()["published_blocks"] > 10
        assert server.ask("/v1/cache/limits", {"tenant": "alice"}, key=alice)[0] == 403
        assert limit(quota_bytes=200_000)[0] == 200
        assert tenant()["quota_bytes"] == 200_000 and tenant()["published_blocks"] <= 10
        assert server.ask("/v1/completions", call, key=alice)[0] in (400, 429)
        assert limit(quota_bytes=0, floor_bytes=1 << 20)[0] == 200
        assert server.ask("/v1/completions", call, key=alice)[0] == 200
        assert limit(floor_bytes=1 << 40)[0] == 409


def test_what_a_call_may_choose(tmp_path):
    chat = [{"role": "system", "content": [
        {"type": "text", "text": TEXT * 2},
        {"type": "text", "text": " Today is Monday.",
         "cache_control": {"type": "ephemeral", "ttl": "5m"}}]},
            {"role": "user", "content": "What is it?"}]
    with quire_server.serving(tmp_path / "a") as server:
        def usage(path, **body):
            status, answer = server.ask(path, {"max_tokens": 2, **body})
            assert status == 200, answer
            return answer["usage"]

        hinted = usage("/v1/chat/completions", messages=chat, prompt_cache_retention="24h",
                       prompt_cache_key="k", explain_misses=True)
        assert {each["hint"]: each["status"] for each in hinted["kv_hints"]} == {
            "messages[0].content.cache_control": "accepted", "prompt_cache_key": "ignored",
            "prompt_cache_retention": "clipped"}, hinted
        assert hinted["prompt_tokens_details"]["first_difference"] is None
        assert server.ask("/v1/cache")[1]["cache"]["pinned_blocks"] > 0
        chat[0]["content"][0]["text"] = chat[0]["content"][0]["text"].replace("wife", "wine", 1)
        moved = usage("/v1/chat/completions", messages=chat, explain_misses=True)
        difference = moved["prompt_tokens_details"]["first_difference"]
        assert difference["message"] == 0 and difference["token"] > 60, moved
        kept = usage("/v1/completions", prompt=TEXT * 4, keep=0.3)
        assert kept["prompt_tokens_details"]["dropped_tokens"] > 0
        bounded = usage("/v1/completions", prompt=TEXT * 4, keep_blocks=8, keep_by="recent")
        assert bounded["prompt_tokens_details"]["dropped_tokens"] > 100
