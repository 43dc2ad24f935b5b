"""quire serve as RFC 9110 and 9112 have it, by raw sockets: where requests end, whom they mean, what
a client may count on."""

import json
import re
import socket
import time

import pytest

import quire_server

PROMPT = "It is a truth universally acknowledged, that a single man in possession of"
KEYS = """
[[tenant]]
name = "alice"
keys = ["alice-0123456789abcdef"]
[[tenant]]
name = "bob"
keys = ["bob-0123456789abcdef"]
"""
ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with quire_server.serving(tmp_path_factory.mktemp("serve"), "--idle-timeout", 5,
                              "--operator-listen", "127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys.toml").write_text(KEYS)
    (folder / "keys.toml").chmod(0o600)
    with quire_server.serving(folder, "--api-keys", folder / "keys.toml",
                              "--operator-listen", "127.0.0.1:0") as running:
        yield running


def until_end(connection):
    data = b""
    while True:
        try:
            more = connection.recv(65536)
        except ConnectionError:
            return data
        if not more:
            return data
        data += more


def exchange(server, text, *, half_close=False):
    """All that comes back until the server closes."""
    with server.connect() as connection:
        connection.sendall(text)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return until_end(connection)


def head(data):
    """(status, fields with names in lower case) of the first answer."""
    lines = data.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), {name.lower(): value for name, value in fields.items()}


def request(method, target, body=b"", *fields, version="1.1", host="localhost"):
    lines = [f"{method} {target} HTTP/{version}"]
    if host is not None:
        lines.append(f"Host: {host}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *fields, "", ""]).encode() + body


def completion(tokens, stream=False, *fields, version="1.1"):
    body = json.dumps({"prompt": PROMPT, "max_tokens": tokens, "stream": stream}).encode()
    return request("POST", "/v1/completions", body, *fields, version=version)


SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("fields", [
    ["Transfer-Encoding: xchunked"], ["Transfer-Encoding: identity"], ["Transfer-Encoding: gzip"],
    ["Transfer-Encoding: gzip, chunked"], ["Transfer-Encoding: chunked, identity"],
    ["Transfer-Encoding: chunked, chunked"], ["Transfer-Encoding:"],
    ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    ["Transfer-Encoding: chunked", f"Content-Length: {len(SMUGGLED)}"],
    [f"Content-Length: {len(SMUGGLED)}", "Transfer-Encoding: chunked"],
    ["Transfer-Encoding: identity", f"Content-Length: {len(SMUGGLED)}"],
    ["Content-Length: 0", "Content-Length: 0"], ["Content-Length: 0, 0"], ["Content-Length: +0"],
    ["Host: localhost"], ["Host : localhost"],
], ids=" | ".join)
def test_what_ends_in_two_places_is_refused(server, fields):
    """The rest is never answered as a second request."""
    text = request("POST", "/v1/tokenize", b"", "Content-Type: application/json", *fields)
    answer = exchange(server, text + SMUGGLED)
    assert head(answer)[0] == 400, answer
    assert head(answer)[1]["connection"] == "close"
    assert answer.count(b"HTTP/1.1 ") == 1, answer


def test_a_chunked_body_in_any_case_is_read(server):
    body = json.dumps({"text": "abc"}).encode()
    answer = exchange(server, request("POST", "/v1/tokenize", b"", "Connection: close",
                                      "Content-Type: application/json",
                                      "transfer-encoding: Chunked")
                      + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    assert head(answer)[0] == 200, answer


@pytest.mark.parametrize("text, status", [
    (request("GET", "/healthz", host=None), 400),
    (request("GET", "/healthz", b"", "Connection: close", host="local host"), 400),
    (request("GET", "/healthz", b"", version="1.0", host=None), 200),
    (request("GET", "http://localhost/healthz?x=1", b"", "Connection: close"), 200),
    (request("GET", "HTTP://localhost:80/v1/models", b"", "Connection: close", host="evil.example"),
     200),
    (request("GET", "http://evil.example/v1/models", b"", "Connection: close"), 403),
    (request("GET", "http:///healthz", b"", "Connection: close"), 400),
    (request("GET", "healthz", b"", "Connection: close"), 400),
    (request("GET", "/healthz", b"", "Expect: miracles"), 417),
])
def test_whom_a_request_means(server, text, status):
    answer = exchange(server, text)
    assert head(answer)[0] == status, answer


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/metrics", "/"])
def test_head_says_what_get_would(server, path):
    got = exchange(server, request("GET", path, b"", "Connection: close"))
    only_head = exchange(server, request("HEAD", path, b"", "Connection: close"))
    assert head(only_head)[0] == head(got)[0] == 200
    assert only_head.endswith(b"\r\n\r\n") and only_head.count(b"\r\n\r\n") == 1
    lengths = [int(head(answer)[1]["content-length"]) for answer in (got, only_head)]
    assert lengths[0] == len(got.split(b"\r\n\r\n", 1)[1]) > 0
    assert path == "/metrics" or lengths[0] == lengths[1]


@pytest.mark.parametrize("method, path, allowed", [
    ("POST", "/healthz", "GET, HEAD"), ("GET", "/v1/completions", "POST"),
    ("DELETE", "/v1/sessions", "GET, HEAD, POST"), ("PUT", "/v1/sessions/x", "GET, HEAD, DELETE"),
    ("OPTIONS", "/v1/models", "GET, HEAD")])
def test_405_says_what_is_allowed(server, method, path, allowed):
    status, fields = head(exchange(server, request(method, path, b"", "Connection: close")))
    assert (status, fields["allow"]) == (405, allowed)


def test_answers_are_dated(server):
    for text in (request("GET", "/healthz", b"", "Connection: close"),
                 completion(2, True, "Connection: close")):
        date = head(exchange(server, text))[1]["date"]
        assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", date), date
        sent = time.mktime(time.strptime(date, "%a, %d %b %Y %H:%M:%S GMT")) - time.timezone
        assert abs(sent - time.time()) < 10


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
def test_the_scheme_is_read_in_any_case(keyed, scheme):
    status, _ = head(exchange(keyed, request("GET", "/v1/models", b"", "Connection: close",
                                             f"Authorization: {scheme} {ALICE}")))
    assert status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_closed_its_side_gets_its_answer(server, stream, version):
    answer = exchange(server, completion(300, stream, version=version), half_close=True)
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert head(answer)[0] == 200, answer
    if stream:
        assert b"[DONE]" in answer
    else:
        text = json.loads(answer.split(b"\r\n\r\n", 1)[1])
        assert text["usage"]["completion_tokens"] == 300


def test_a_client_that_left_altogether_is_cancelled(server):
    before = len(server.lines())
    with server.connect() as connection:
        connection.sendall(completion(7000))
        deadline = time.monotonic() + 60
        while not server.ask("/v1/cache", url=server.operator_url)[1]["calls"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    server.wait_idle()
    line = server.wait_for_lines(1, after=before, path="/v1/completions", status=499)[0]
    assert line["generated_tokens"] < 7000, line


# What a page of another site can make a browser send to a server without keys.

@pytest.mark.parametrize("fields", [
    ["Origin: http://evil.example"], ["Origin: null"], ["Origin: http://localhost:1"],
    ["Sec-Fetch-Site: cross-site"], ["Sec-Fetch-Site: same-site"],
    ["Content-Type: application/x-www-form-urlencoded", "Origin: http://evil.example"],
], ids=" | ".join)
@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/completions"])
def test_a_foreign_page_changes_nothing(server, path, fields):
    before = server.ask("/v1/sessions")[1]["data"]
    answer = exchange(server, request("POST", path, b"", "Connection: close", "Content-Length: 0",
                                      *fields))
    assert head(answer)[0] == 403, answer
    with socket.create_connection(("127.0.0.1", int(server.operator_url.rsplit(":", 1)[1]))) as raw:
        raw.sendall(request("POST", path, b"", "Connection: close", "Content-Length: 0", *fields))
        assert head(until_end(raw))[0] == 403
    assert server.ask("/v1/sessions")[1]["data"] == before


def test_the_own_page_and_programs_may(server):
    for fields in (["Origin: http://localhost"], ["Sec-Fetch-Site: same-origin"],
                   ["Sec-Fetch-Site: none"], []):
        answer = exchange(server, request("POST", "/v1/sessions", b"", "Connection: close",
                                          "Content-Length: 0", *fields))
        assert head(answer)[0] == 200, answer
        name = json.loads(answer.split(b"\r\n\r\n", 1)[1])["id"]
        assert server.ask(f"/v1/sessions/{name}", method="DELETE")[0] == 200


# What errors say.

def test_an_error_repeats_little_of_the_request(server):
    for body in (b'{"prompt": ' + b"1" * 2_000_000 + b"}", b'{"prompt": "' + b"a" * 2_000_000,
                 b"1" * 2_000_000, b'{"' + b"x" * 2_000_000 + b'": 1}', b'{"prompt": \x01}',
                 b'{"prompt": "a", "model": "' + b"m" * 100_000 + b'"}',
                 b'{"prompt": "a", "session": "' + b"s" * 100_000 + b'"}'):
        status, answer = server.ask("/v1/completions", body)
        assert status in (400, 404), answer
        text = json.dumps(answer)
        assert len(text) < 800, text[:2000]
        assert "exception" not in text and "nlohmann" not in text and "last read" not in text, text
    status, answer = server.ask("/v1/completions", b'{"prompt": "a",\n  "max_tokens": 01}')
    assert status == 400 and "line 2, column" in answer["error"]["message"], answer


def test_an_error_names_nothing_of_other_tenants(keyed):
    """Numbers that count all tenants' sessions and requests would tell how much others do."""
    for _ in range(3):
        keyed.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, key=BOB)
        keyed.ask("/v1/sessions", {}, key=BOB)
    name = keyed.ask("/v1/sessions", {}, key=ALICE)[1]["id"]
    with keyed.connect() as connection:
        body = json.dumps({"session": name, "prompt": PROMPT, "max_tokens": 6000}).encode()
        connection.sendall(request("POST", "/v1/completions", body, f"Authorization: Bearer {ALICE}"))
        deadline = time.monotonic() + 60
        while not keyed.ask("/v1/cache", key=ALICE)[1]["calls"]:
            assert time.monotonic() < deadline
        for path, call in ((f"/v1/sessions/{name}/fork", {}),
                           ("/v1/completions", {"session": name, "prompt": "x", "max_tokens": 1})):
            status, answer = keyed.ask(path, call, key=ALICE)
            assert status == 409 and answer["error"]["code"] == "busy", answer
            assert name in answer["error"]["message"]
            assert not re.search(r"\d", answer["error"]["message"].replace(name, "")), answer
    keyed.wait_idle()


def test_an_idle_tenant_keeps_its_share(tmp_path):
    """Another one's load leaves it what it has cached, up to its part of half of the cache."""
    (tmp_path / "keys.toml").write_text(KEYS)
    with quire_server.serving(tmp_path, "--api-keys", tmp_path / "keys.toml", "--hot-bytes",
                              "4MiB") as server:
        prompt = {"prompt": PROMPT * 4, "max_tokens": 1}
        server.ask("/v1/completions", prompt, key=ALICE)
        for number in range(40):
            status, answer = server.ask("/v1/completions", {
                "prompt": f"{number} " + PROMPT * 4, "max_tokens": 1}, key=BOB)
            assert status == 200, answer
        assert server.ask("/v1/cache", key=BOB)[1]["tenants"][0]["evicted_total"] > 0, "no load"
        usage = server.ask("/v1/completions", prompt, key=ALICE)[1]["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] // 16 * 16
        assert server.ask("/v1/cache", key=ALICE)[1]["tenants"][0]["floor_bytes"] == 1 << 20


# Small things that other servers have.

def test_health_and_detokenize(server):
    assert server.ask("/health") == (200, "ok\n")
    tokens = server.ask("/v1/tokenize", {"text": PROMPT})[1]["tokens"]
    # Of a call, what it would compute.
    for prompt in (PROMPT, tokens, [PROMPT]):
        assert server.ask("/v1/tokenize", {"prompt": prompt, "max_tokens": 3})[1]["tokens"] == tokens
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    usage = server.ask("/v1/chat/completions", {**chat, "max_tokens": 1})[1]["usage"]
    assert server.ask("/v1/tokenize", chat)[1]["count"] == usage["prompt_tokens"]
    for bad in ({"prompt": [PROMPT, PROMPT]}, {"prompt": PROMPT, "text": PROMPT}, {"prompt": 7}, {}):
        assert server.ask("/v1/tokenize", bad)[0] == 400, bad
    assert server.ask("/v1/detokenize", {"tokens": tokens}) == (
        200, {"count": len(tokens), "text": PROMPT})
    for bad in ({}, {"tokens": "a"}, {"tokens": [-1]}, {"tokens": [10**9]}, {"tokens": [1], "x": 1}):
        assert server.ask("/v1/detokenize", bad)[0] == 400, bad


def test_the_process_is_among_the_metrics(server):
    text = server.ask("/metrics")[1]
    def value(name):
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE).group(1))
    with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * 4096
    assert abs(value("process_resident_memory_bytes") - resident) < 64 << 20
    assert value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes")
    assert value("process_cpu_seconds_total") > 0
    assert abs(value("process_start_time_seconds") - time.time()) < 600
    assert 5 < value("process_open_fds") < value("process_max_fds")
