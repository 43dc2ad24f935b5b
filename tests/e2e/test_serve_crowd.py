"""quire serve when many come at once, or come to do harm: memory of bodies, places of connections."""

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import quire_server

KEYS = """
[[tenant]]
name = "alice"
keys = ["alice-0123456789abcdef"]
"""
ALICE = "alice-0123456789abcdef"
BODY = 4 << 20
CROWD = 500

# In a process of its own, so that the test's own clock is not kept waiting.
FLOOD = """
import selectors, socket, sys, time
port, count, length, sent, key, hold = int(sys.argv[1]), *(int(v) for v in sys.argv[2:5]), sys.argv[5], float(sys.argv[6])
auth = f"Authorization: Bearer {key}\\r\\n" if key else ""
head = (f"POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\n{auth}"
        f"Content-Type: application/json\\r\\nContent-Length: {length}\\r\\n\\r\\n").encode()
text = b'{"prompt": "' + b"a" * (length - 14) + b'"}'
data = memoryview(head + text[:sent])
poll = selectors.DefaultSelector()
state = {}
for _ in range(count):
    each = socket.socket()
    each.setblocking(False)
    each.connect_ex(("127.0.0.1", port))
    state[each] = 0
    poll.register(each, selectors.EVENT_READ | selectors.EVENT_WRITE)
statuses = {}
end = time.monotonic() + 60
idle_since = time.monotonic()
while state and time.monotonic() < end:
    ready = poll.select(0.05)
    moved = False
    for key_, mask in ready:
        each = key_.fileobj
        try:
            if mask & selectors.EVENT_WRITE and state[each] < len(data):
                state[each] += each.send(data[state[each]:state[each] + 65536])
                moved = True
                if state[each] == len(data):
                    poll.modify(each, selectors.EVENT_READ)
            elif mask & selectors.EVENT_READ:
                got = each.recv(65536)
                status = got.split()[1].decode() if got.startswith(b"HTTP") else "closed"
                statuses[status] = statuses.get(status, 0) + 1
                poll.unregister(each); each.close(); del state[each]
                moved = True
        except OSError:
            statuses["reset"] = statuses.get("reset", 0) + 1
            poll.unregister(each); each.close(); del state[each]
            moved = True
    if moved: idle_since = time.monotonic()
    if time.monotonic() - idle_since > hold: break
print(statuses, len(state), flush=True)
"""


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Asks the operator's /healthz every 20 ms on connections of its own, as a monitor does."""

    def __init__(self, server):
        self.port = int(server.operator_url.rsplit(":", 1)[1])
        self.slowest_ms = 0
        self.overslept_ms = 0  # what a busy machine keeps a thread waiting that does nothing
        self.peak = 0
        self.server = server
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            begin = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            connection.close()
            self.slowest_ms = max(self.slowest_ms, (time.monotonic() - begin) * 1e3)
            self.peak = max(self.peak, resident_bytes(self.server))
            begin = time.monotonic()
            time.sleep(0.02)
            self.overslept_ms = max(self.overslept_ms, (time.monotonic() - begin) * 1e3 - 20)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def crowd(server, start, sent, key):
    """500 bodies at once: what watched meanwhile, what was answered, the memory afterwards, words."""
    with Watch(server) as watch:
        flood = subprocess.run(
            [sys.executable, "-c", FLOOD, str(server.port), str(CROWD), str(BODY), str(sent), key,
             "12" if sent == BODY else "2"], capture_output=True, text=True, timeout=120, check=True)
        until = time.monotonic() + 20
        while resident_bytes(server) > start + (50 << 20) and time.monotonic() < until:
            time.sleep(0.1)
    after = resident_bytes(server)
    said = (f"{flood.stdout.strip()}: start {start >> 20} MiB, peak {watch.peak >> 20}, after "
            f"{after >> 20}; slowest /healthz {watch.slowest_ms:.0f} ms, "
            f"a sleep {watch.overslept_ms:.0f} ms too long")
    return watch, flood.stdout, after, said


@pytest.mark.parametrize("key, sent, expected", [
    ("", BODY, {"401"}), (ALICE, BODY, {"400", "503"}), (ALICE, BODY // 2, {"503"})],
    ids=["without a key", "with a key", "half sent"])
def test_500_bodies_leave_no_memory_behind(tmp_path, key, sent, expected):
    (tmp_path / "keys.toml").write_text(KEYS)
    with quire_server.serving(tmp_path, "--api-keys", tmp_path / "keys.toml", "--operator-listen",
                              "127.0.0.1:0", "--connections-per-address", 512,
                              "--body-timeout", 60 if sent == BODY else 5) as server:
        server.ask("/v1/completions", {"prompt": "a" * 1000, "max_tokens": 8}, key=ALICE)
        start = resident_bytes(server)
        # A pause of the machine hits one crowd; a server that blocks is slow in each of them.
        for _ in range(6):
            watch, flood, after, said = crowd(server, start, sent, key)
            print(said)
            assert all(f"'{status}'" in flood for status in expected), said
            assert after < start + (50 << 20), said
            assert watch.peak < start + (400 << 20), said
            if watch.slowest_ms < 100 + watch.overslept_ms:
                break
        assert watch.slowest_ms < 100 + watch.overslept_ms, said
        metrics = server.ask("/metrics", url=server.operator_url)[1]
        assert "\nquire_http_body_bytes 0\n" in metrics
        if key:
            assert "\nquire_http_bodies_refused_total 0\n" not in metrics
        # Small bodies are read all the while, and large ones again.
        assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, key=ALICE)[0] == 200


def test_without_a_key_no_body_is_asked_for(tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    with quire_server.serving(tmp_path, "--api-keys", tmp_path / "keys.toml") as server:
        with server.connect() as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               b"Content-Type: application/json\r\nContent-Length: 4000000\r\n"
                               b"Expect: 100-continue\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 401")
        line = server.wait_for_lines(1)[0]
        assert line["status"] == 401 and line["bytes_in"] == 0


@contextlib.contextmanager
def sockets(port, count):
    crowd = []
    try:
        for _ in range(count):
            crowd.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        yield crowd
    finally:
        for each in crowd:
            each.close()


def known(server, key):
    """A connection that has shown its key, and stays."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read()
    return connection


def is_open(connection):
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {ALICE}"})
        return connection.getresponse().read() and True
    except (OSError, http.client.HTTPException):
        return False


def test_idle_connections_shut_nobody_out(tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    with quire_server.serving(tmp_path, "--api-keys", tmp_path / "keys.toml", "--operator-listen",
                              "127.0.0.1:0") as server:
        kept = known(server, ALICE)
        with sockets(server.port, 520):
            took_s = []
            for _ in range(5):  # a pause of the machine hits one of them; the idle ones leave after a minute
                begin = time.monotonic()
                assert server.ask("/healthz")[0] == 200
                assert server.ask("/v1/models", key=ALICE)[0] == 200
                assert server.ask("/healthz", url=server.operator_url)[0] == 200
                took_s.append(time.monotonic() - begin)
            assert min(took_s) < 2
            assert is_open(kept), "one with a key made room for one without"
            metrics = server.ask("/metrics", url=server.operator_url)[1]
        replaced = int(metrics.split('connections_refused_total{reason="replaced"} ')[1].split()[0])
        assert replaced > 200, metrics
        said = [line for line in server.stderr.read_text().splitlines() if "connections" in line]
        assert 1 <= len(said) <= 3, said
        kept.close()


def test_the_operators_listener_has_its_own_places(tmp_path):
    with quire_server.serving(tmp_path, "--operator-listen", "127.0.0.1:0", "--connections",
                              8) as server:
        crowd = [known(server, "none") for _ in range(4)]  # half of 8 for one address
        with server.connect() as refused:
            assert refused.recv(100).startswith(b"HTTP/1.1 503")
        assert server.ask("/healthz", url=server.operator_url)[0] == 200
        metrics = server.ask("/metrics", url=server.operator_url)[1]
        assert 'quire_http_connections_refused_total{reason="address"} 1' in metrics
        for each in crowd:
            each.close()


def test_a_small_budget_of_bodies_reads_small_bodies(tmp_path):
    with quire_server.serving(tmp_path, "--body-bytes", "1MiB", "--bodies-bytes", "1MiB",
                              "--body-timeout", 20) as server:
        large = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                 b"Content-Type: application/json\r\n")
        with server.connect() as holds:
            holds.sendall(large + b"Content-Length: 1000000\r\n\r\n{")
            deadline = time.monotonic() + 60
            while "\nquire_http_body_bytes 0\n" in server.ask("/metrics")[1]:
                assert time.monotonic() < deadline
            status, answer = server.ask("/v1/completions", {"prompt": "a" * 500_000})
            assert status == 503 and answer["error"]["code"] == "too_many_bodies", answer
            with server.connect() as chunked:
                chunked.sendall(large + b"Transfer-Encoding: chunked\r\n\r\n")
                with contextlib.suppress(OSError):
                    for _ in range(100):
                        chunked.sendall(b"4000\r\n" + b"a" * 0x4000 + b"\r\n")
                assert b"503" in chunked.recv(100)
            assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
        deadline = time.monotonic() + 60
        while "\nquire_http_body_bytes 0\n" not in server.ask("/metrics")[1]:
            assert time.monotonic() < deadline


def test_a_tenant_that_sends_slowly_locks_nobody_out(tmp_path):
    bob = "bob-0123456789abcdef"
    (tmp_path / "keys.toml").write_text(
        KEYS + f'[[tenant]]\nname = "bob"\nkeys = ["{bob}"]\n')
    with quire_server.serving(tmp_path, "--api-keys", tmp_path / "keys.toml", "--operator-listen",
                              "127.0.0.1:0") as server:
        head = ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {ALICE}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {BODY}\r\n\r\n{{").encode()
        with sockets(server.port, 40) as crowd:
            for each in crowd:
                each.sendall(head)
            deadline = time.monotonic() + 60
            while "\nquire_http_bodies_refused_total 0\n" in server.ask(
                    "/metrics", url=server.operator_url)[1]:
                assert time.monotonic() < deadline
            body = {"prompt": "a" * (BODY - 100)}
            status, answer = server.ask("/v1/completions", body, key=ALICE)
            assert status == 503 and answer["error"]["code"] == "too_many_bodies", answer
            status, answer = server.ask("/v1/completions", body, key=bob)
            assert answer["error"]["code"] == "context_length_exceeded", answer


# Disks that are full, or gone.

def test_the_log_is_opened_again_and_a_full_one_is_said_once(tmp_path):
    with quire_server.serving(tmp_path, "--operator-listen", "127.0.0.1:0") as server:
        server.ask("/healthz")
        server.wait_for_lines(1)
        server.log.rename(tmp_path / "access.log.1")
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while not server.log.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        server.ask("/readyz")
        assert [line["path"] for line in server.wait_for_lines(1)] == ["/readyz"]
    assert not (tmp_path / "access.log").read_text().count("healthz")


def test_a_full_log_disk(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/access.log").symlink_to("/dev/full")
    with quire_server.serving(tmp_path / "full") as server:
        for _ in range(5):
            assert server.ask("/healthz")[0] == 200
        deadline = time.monotonic() + 60
        lost = 0
        while lost < 5:  # a line is lost after its answer
            assert time.monotonic() < deadline
            lost = int(server.ask("/metrics")[1].split("\nquire_access_log_lost_lines_total ")[1].split()[0])
        said = [line for line in server.stderr.read_text().splitlines() if "access log" in line]
        assert len(said) == 1 and "No space left" in said[0], said


def test_a_lost_directory_is_a_500_that_names_no_path(tmp_path):
    store = tmp_path / "store-of-sessions"
    with quire_server.serving(tmp_path, "--store", store) as server:
        (store / "sessions").rename(tmp_path / "gone")
        status, answer = server.ask("/v1/sessions", {}, headers={"X-Request-Id": "mine-7"})
        assert status == 500, answer
        assert "mine-7" in answer["error"]["message"]
        assert str(tmp_path) not in json.dumps(answer) and "store-of" not in json.dumps(answer)
        said = [line for line in server.stderr.read_text().splitlines() if "mine-7" in line]
        assert len(said) == 1 and "store-of-sessions" in said[0], said
        (tmp_path / "gone").rename(store / "sessions")
        assert server.ask("/v1/sessions", {})[0] == 200


def test_no_room_for_sessions_is_a_507(tmp_path):
    with quire_server.serving(tmp_path, "--store", tmp_path / "store", "--session-bytes",
                              100) as server:
        status, answer = server.ask("/v1/sessions", {})
        assert status == 507, answer
        assert answer["error"]["code"] == "storage_full"
        assert str(tmp_path) not in json.dumps(answer)


def test_a_file_that_may_not_grow_is_no_death(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with quire_server.serving(tmp_path) as server:
            for _ in range(40):  # lines of some 200 bytes
                assert server.ask("/healthz")[0] == 200
            assert server.ask("/metrics")[1].count("quire_access_log_lost_lines_total 0") == 0
            assert (tmp_path / "access.log").stat().st_size == 4096
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
