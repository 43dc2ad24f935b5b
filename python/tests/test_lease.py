"""A training run in another process leases bytes of a server's budget, for as long as it is connected."""

from __future__ import annotations

import concurrent.futures
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import quire
import quire.engine
import quire.lease

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/e2e"))

import quire_server  # noqa: E402

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. "
FLAGS = ("--hot-bytes", "16MiB", "--operator-listen", "127.0.0.1:0")


def budget(server):
    cache = server.ask("/v1/cache", url=server.operator_url)[1]
    return cache["budget"]["limit_bytes"], cache["leases"]


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_lease_is_taken_changed_and_given_back(tmp_path):
    with quire_server.serving(tmp_path, *FLAGS) as server:
        with quire.lease.ServerLease(server.operator_url, "training lora/1", 4 << 20) as lease:
            limit, leases = budget(server)
            assert limit <= 12 << 20 and not lease.ended.is_set()
            assert [(one["owner"], one["bytes"]) for one in leases] == [("training lora/1", 4 << 20)]
            assert "quire_budget_leased_bytes 4194304" in server.ask("/metrics", url=server.operator_url)[1]
            lease.resize(8 << 20)
            assert lease.bytes == 8 << 20 and budget(server)[0] <= 8 << 20
            with pytest.raises(quire.Error, match="not leased"):
                lease.resize(16 << 20)
            assert lease.bytes == 8 << 20
            assert server.ask("/v1/cache/resize", {"hot_bytes": 8 << 20}, url=server.operator_url)[0] == 400
        wait_for(lambda: budget(server) == (16 << 20, []))
        with pytest.raises(quire.Error):
            lease.resize(1 << 20)
        # It is for the operator.
        with pytest.raises(quire.Error, match="operator"):
            quire.lease.ServerLease(server.url, "training lora/1", 4 << 20)


def test_a_lease_ends_with_the_process_that_holds_it(tmp_path):
    with quire_server.serving(tmp_path, *FLAGS) as server:
        program = ("import quire.lease, sys, time\n"
                   "lease = quire.lease.ServerLease(sys.argv[1], 'training', 8 << 20)\n"
                   "print('held', flush=True)\n"
                   "time.sleep(600)\n")
        holder = subprocess.Popen([sys.executable, "-c", program, server.operator_url],
                                  stdout=subprocess.PIPE, text=True)
        assert holder.stdout.readline() == "held\n"
        assert budget(server)[0] <= 8 << 20
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        wait_for(lambda: budget(server) == (16 << 20, []))


def test_the_operator_ends_a_lease_and_its_holder_hears(tmp_path):
    with quire_server.serving(tmp_path, *FLAGS) as server:
        lease = quire.lease.ServerLease(server.operator_url, "training", 8 << 20)
        where = f"/v1/cache/leases/{lease.id}"
        status, ended = server.ask(where, method="DELETE", url=server.operator_url)
        assert status == 200 and ended["ended"]
        assert lease.ended.wait(20)
        assert server.ask(where, method="DELETE", url=server.operator_url)[0] == 404
        assert server.ask("/v1/cache/leases/x", method="DELETE", url=server.operator_url)[0] == 404
        assert budget(server) == (16 << 20, [])
        lease.close()


def test_requests_give_way_and_answer_the_same(tmp_path):
    """A lease that takes most of the budget while calls run: they stop, and go on when it has ended."""
    calls = [{"prompt": TEXT * (2 + i), "max_tokens": 200, "temperature": 0, "ignore_eos": True}
             for i in range(4)]
    flags = ("--hot-bytes", "4MiB", "--operator-listen", "127.0.0.1:0", "--admission", "grow")

    def text(call):
        status, answer = server.ask("/v1/completions", call)
        assert status == 200, answer
        return answer["choices"][0]["text"]

    with quire_server.serving(tmp_path, *flags) as server:
        alone = [text(call) for call in calls]
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            beside = [threads.submit(text, call) for call in calls]
            for _ in range(3):
                with quire.lease.ServerLease(server.operator_url, "training", 2 << 20, wait_s=30):
                    assert budget(server)[0] <= 2 << 20
                    time.sleep(0.05)
            assert [one.result() for one in beside] == alone


def test_an_engine_of_this_process_leases_too():
    with quire.engine.Engine(REPOSITORY / "models/tiny", hot_bytes=8 << 20) as engine:
        with pytest.raises(quire.TooLargeError, match="not leased"):
            engine.lease("training lora/1", 8 << 20)
        with engine.lease("training lora/1", 4 << 20, wait_s=5) as lease:
            stats = engine.stats()
            assert [one["bytes"] for one in stats["leases"]] == [4 << 20]
            assert stats["leases"][0].keys() == quire._types.LeaseEntry.__annotations__.keys()
            assert stats["cache"]["hot_bytes_limit"] <= 4 << 20
            lease.resize(6 << 20)
            assert engine.stats()["cache"]["hot_bytes_limit"] <= 2 << 20
            with pytest.raises(quire.InvalidArgumentError, match="wait_s"):
                lease.resize(4 << 20, wait_s=-1)
        assert engine.stats()["leases"] == []
        assert engine.stats()["cache"]["hot_bytes_limit"] == 8 << 20
