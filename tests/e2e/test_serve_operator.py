"""What only the operator may ask of a server: another budget, and a tenant's erasure."""

import quire_server


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
