"""quire serve against what is not a polite client: garbage, silence, haste, and its own end."""

import json
import random
import signal
import socket
import ssl
import subprocess
import threading
import time

import httpx
import openai
import pytest

import quire_cli
import quire_server

PROMPT = "It is a truth universally acknowledged, that a single man in possession of"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with quire_server.serving(tmp_path_factory.mktemp("serve"), "--body-bytes", "64KiB",
                              "--header-timeout", 1, "--body-timeout", 1, "--idle-timeout", 2,
                              "--write-timeout", 1, "--connections", 64) as running:
        yield running


def status_of(connection):
    """The status of what comes back; None: the connection ended without an answer."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"  # a half-closed client is asked whether it is there
    data = b""
    while b"\r\n" not in data.removeprefix(interim):
        more = connection.recv(4096)
        if not more:
            break
        data += more
    data = data.removeprefix(interim)
    return int(data.split()[1]) if data else None


@pytest.mark.parametrize("text, status", [
    (b"\x00\x01\x02\x03\r\n\r\n", 400),
    (b"GET\r\n\r\n", 400),
    (b"GET / HTTP/9.9\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n", 413),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
     b"Content-Length: 4\r\n\r\nabcd", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}}\r\n0\r\n\r\n", 400),
    (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    (b"GET /%00%ff/../.. HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    (b"GET /v1/cache HTTP/1.1\r\nHost: attacker.example\r\n\r\n", 403),
])
def test_what_is_no_good_request(server, text, status):
    with server.connect() as connection:
        connection.sendall(text)
        assert status_of(connection) == status
    assert server.ask("/healthz") == (200, "ok\n")


def test_a_chunked_body_may_not_be_larger_either(server):
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(64):
                connection.sendall(b"1000\r\n" + b"a" * 4096 + b"\r\n")
        except OSError:
            pass
        assert status_of(connection) == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": "a"' + b"[" * 9999,
                                  b'{"prompt": ' + b"[" * 20000, b'{"prompt": "\\ud800"}'])
def test_malformed_json(server, body):
    status, answer = server.ask("/v1/completions", body)
    assert status == 400, answer
    assert answer["error"]["type"] == "invalid_request_error"
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_slow_senders_are_let_go(server):
    """Nearly as many connections as may be open trickle: each ends within its time, and others are
    served meanwhile."""
    slow = []
    for i in range(60):
        connection = server.connect()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           if i % 2 else b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        slow.append(connection)
    start = time.monotonic()
    assert server.ask("/healthz")[0] == 200
    done = set()
    while len(done) < len(slow) and time.monotonic() - start < 15:
        for i, connection in enumerate(slow):
            if i in done:
                continue
            try:
                connection.sendall(b"X" if i % 2 == 0 else b"X: y\r\n")  # never silent
                connection.settimeout(0.001)
                if status_of(connection) in (408, None):
                    done.add(i)
            except TimeoutError:
                pass
            except OSError:
                done.add(i)
        time.sleep(0.05)
    assert len(done) == len(slow)
    for connection in slow:
        connection.close()
    status, answer = server.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
    assert status == 200, answer


def test_a_slow_header_is_a_408(server):
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert status_of(connection) == 408


def test_too_many_connections(tmp_path):
    """Those that have sent a request keep their places; one too many hears why it has none."""
    with quire_server.serving(tmp_path, "--connections", 64) as server:
        crowd = []
        try:
            for _ in range(32):  # half of them: all have one address
                connection = server.connect()
                connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert status_of(connection) == 200
                crowd.append(connection)
            with server.connect() as one_more:
                assert status_of(one_more) == 503
        finally:
            for connection in crowd:
                connection.close()
        for _ in range(600):  # until the server saw them go
            try:
                if server.ask("/healthz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError("it did not recover")


def stream_request(tokens, prompt=PROMPT):
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)


def test_clients_that_leave_in_the_middle_are_cancelled(server):
    before = len(server.lines())
    for i in range(24):
        connection = server.connect()
        connection.sendall(stream_request(4000, f"{i} {PROMPT}"))
        if i % 3 == 0:
            connection.recv(1)
        if i % 3 == 1:
            data = b""
            while b"data:" not in data:
                more = connection.recv(4096)
                assert more, data
                data += more
        if i % 2:  # at once, without a goodbye
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                  bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        connection.close()
    cache = server.wait_idle()
    assert cache["engine"]["running"] == cache["engine"]["waiting"] == 0
    lines = server.wait_for_lines(24, after=before, path="/v1/completions", status=499)
    assert len(lines) == 24
    assert all(line["generated_tokens"] < 4000 for line in lines), "it went on for nobody"


def test_a_client_that_reads_nothing_is_left(server):
    with server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(3):
            connection.sendall(stream_request(4000))
        server.wait_idle(seconds=120)


def test_answers_come_in_the_order_of_pipelined_requests(server):
    with server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + stream_request(3)
                           + b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        data = b""
        while more := connection.recv(65536):
            data += more
    assert data.index(b"ok\n") < data.index(b"[DONE]") < data.index(b"ready\n")
    assert data.count(b"HTTP/1.1 200 OK") == 3


def test_an_old_client_gets_a_stream_without_chunks(server):
    with server.connect() as connection:
        connection.sendall(stream_request(3).replace(b"HTTP/1.1", b"HTTP/1.0"))
        data = b""
        while more := connection.recv(65536):
            data += more
    head, body = data.split(b"\r\n\r\n", 1)
    assert b"chunked" not in head.lower()
    assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")


def test_random_bytes(server):
    """Requests with a few bytes changed, by a fixed seed: whatever it answers, it goes on."""
    chance = random.Random(20)
    good = stream_request(2)
    for _ in range(300):
        text = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(text))
            choice = chance.randrange(3)
            if choice == 0:
                text[at] = chance.randrange(256)
            elif choice == 1:
                del text[at:at + chance.randint(1, 20)]
            else:
                text[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 8)))
        with server.connect() as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            try:
                status = status_of(connection)
            except ConnectionError:
                status = None
            assert status in (None, 200, 400, 403, 404, 405, 408, 413, 415, 417, 431), (status, text)
    assert server.ask("/healthz")[0] == 200
    server.wait_idle()


def test_ids_and_traces_pass_through(server):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    server.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 2},
               headers={"X-Request-Id": "mine-1", "traceparent": trace})
    line = server.line_of("mine-1")
    assert line["traceparent"] == trace
    cache = line["cache"]
    assert cache["reused_tokens"] + cache["computed_tokens"] == line["prompt_tokens"] == len(PROMPT)
    assert sum(cache["missed"].values()) == cache["computed_tokens"]
    assert PROMPT[:10] not in server.log.read_text()
    # What could break a log line or a header is replaced.
    server.ask("/no-such-path", headers={"X-Request-Id": 'a"b'})
    assert server.wait_for_lines(1, path="/no-such-path")[0]["request_id"].startswith("req_")


def test_a_log_that_nobody_reads_stops_nothing(tmp_path):
    """stderr is a pipe that is full: lines are lost, answers are not."""
    process = subprocess.Popen(
        [str(quire_cli.binary()), "serve", "--model", str(quire_server.TINY), "--listen",
         "127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        url = process.stdout.readline().decode().split(" at ")[1].split()[0]
        server = quire_server.Server(process, url, None, tmp_path)
        for _ in range(600):  # of some 250 bytes each, into 64 KiB
            assert server.ask("/healthz")[0] == 200
        assert server.terminate() == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_costly_prompts_keep_no_health_check_waiting(tmp_path):
    """Every worker reads a prompt of a megabyte; /healthz answers meanwhile."""
    with quire_server.serving(tmp_path, "--max-seq-len", 128) as server:
        stop = threading.Event()

        def load():
            while not stop.is_set():
                assert server.ask("/v1/completions", {"prompt": "word " * 200_000})[0] == 400
        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            took_s = []
            for _ in range(20):
                begin = time.monotonic()
                assert server.ask("/healthz")[0] == 200
                took_s.append(time.monotonic() - begin)
            assert sorted(took_s)[10] < 5  # a pause of the machine hits few of them
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_sigterm_lets_calls_end_and_refuses_new_ones(tmp_path):
    tokens = 2500  # more than come while this test asks what it asks
    with quire_server.serving(tmp_path, "--drain", 120) as server:
        answers = []

        def ask(i):
            answers.append(server.ask("/v1/completions", {"prompt": f"{i} {PROMPT}",
                                                          "max_tokens": tokens}, timeout=120))
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        while server.engine()["running"] < 6:
            assert not answers
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        while server.ask("/readyz")[0] == 200:
            assert not answers
            time.sleep(0.005)
        assert server.ask("/readyz") == (503, "draining\n")
        status, refused = server.ask("/v1/completions", {"prompt": PROMPT})
        assert status == 503 and refused["error"]["type"] == "server_error"
        for thread in threads:
            thread.join()
        assert server.process.wait(timeout=60) == 0
        assert len(answers) == 6
        for status, answer in answers:
            assert status == 200 and answer["usage"]["completion_tokens"] == tokens, answer


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_ends_in_time_whatever_is_under_way(tmp_path, signals):
    """One signal and a short patience, or two: streams end with an error that says why."""
    with quire_server.serving(tmp_path, "--drain", 1 if signals == 1 else 600) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        ends = []

        def ask():
            try:
                for _ in client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8000,
                                                   stream=True):
                    pass
                ends.append("whole")
            except openai.APIError as error:
                ends.append(str(error))
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while server.engine()["running"] < 4:
            assert not ends
            time.sleep(0.01)
        start = time.monotonic()
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - start < 20
        for thread in threads:
            thread.join()
        assert len(ends) == 4
        assert any("shutting down" in end for end in ends), ends


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
                   check=True, capture_output=True)
    return folder


def test_tls(tmp_path, certificate):
    flags = ("--tls-cert", certificate / "cert.pem", "--tls-key", certificate / "key.pem")
    with quire_server.serving(tmp_path, *flags, "--operator-listen", "127.0.0.1:0") as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=certificate / "cert.pem")
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0,
                               http_client=httpx.Client(verify=context))
        pieces = list(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=9,
                                                stream=True))
        assert sum(len(piece.choices[0].text) for piece in pieces) == 9
        # One that leaves in the middle, one that speaks no TLS.
        with server.connect() as plain:
            wrapped = context.wrap_socket(plain, server_hostname="localhost")
            wrapped.sendall(stream_request(4000))
            wrapped.recv(1)
            wrapped.close()
        with server.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while connection.recv(4096):
                pass
        server.wait_idle()
        assert client.models.list().data[0].id == "tiny"
        client.close()
    with quire_server.serving(tmp_path / "impatient", *flags, "--header-timeout", 1) as server:
        with server.connect() as connection:  # says nothing
            assert connection.recv(1) == b""


def test_tls_refuses_old_versions(tmp_path, certificate):
    with quire_server.serving(tmp_path, "--tls-cert", certificate / "cert.pem", "--tls-key",
                              certificate / "key.pem") as server:
        done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}",
                               "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], input=b"",
                              capture_output=True, timeout=30, check=False)
        assert b"Cipher is (NONE)" in done.stdout or b"Cipher    : 0000" in done.stdout


def test_tls_1_2_has_forward_secrecy(tmp_path):
    """With an RSA certificate, whose key alone would open what was recorded of static RSA."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-keyout", tmp_path / "key.pem", "-out",
                    tmp_path / "cert.pem"], check=True, capture_output=True)
    with quire_server.serving(tmp_path, "--tls-cert", tmp_path / "cert.pem", "--tls-key",
                              tmp_path / "key.pem") as server:
        def cipher(wanted):
            done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}",
                                   "-tls1_2", "-cipher", wanted], input=b"", capture_output=True,
                                  timeout=30, check=False)
            return done.stdout.decode().split("Cipher is ")[1].split()[0]
        assert cipher("kRSA") == "(NONE)"
        assert cipher("DEFAULT").startswith("ECDHE-RSA-AES")
