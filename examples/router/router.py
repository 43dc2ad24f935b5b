"""A router in front of several `quire serve`: each call goes to the server that has most of its prompt.

    python router.py --listen 127.0.0.1:8000 \\
        --server http://127.0.0.1:8081 tcp://127.0.0.1:5557 tcp://127.0.0.1:5558 \\
        --server http://127.0.0.1:8082 tcp://127.0.0.1:5559 tcp://127.0.0.1:5560

Each server is its address and the endpoints of its `--events` and `--events-replay` (serve.sh starts two). The client
of OpenAI works against it, streams too: base_url="http://127.0.0.1:8000/v1". Needs pyzmq and msgpack.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import http.client
import http.server
import itertools
import json
import threading
import urllib.parse
from collections.abc import Sequence

from kv_index import Follower, KvIndex

ROUTED = ("/v1/completions", "/v1/chat/completions")
HOP_HEADERS = ("connection", "content-length", "host", "keep-alive", "transfer-encoding")
PIECE_BYTES = 1 << 16
PIECE_TOKENS = 16
TIMEOUT_S = 600


def prefixes(tokens: Sequence[int]) -> list[int]:
    """A hash of the first 16 tokens, of the first 32, and so on."""
    hashes, last = [], 0
    for i in range(PIECE_TOKENS, len(tokens) + 1, PIECE_TOKENS):
        last = hash((last, *tokens[i - PIECE_TOKENS:i]))
        hashes.append(last)
    return hashes


@dataclasses.dataclass
class Call:
    """A call under way: the beginnings of its prompt, and how many of its tokens its server must compute."""

    prefixes: list[int]
    missing: int


class Server:
    """One of the servers, with what it has and what it is computing."""

    def __init__(self, url: str, events: str | None = None, replay: str | None = None) -> None:
        self.address = urllib.parse.urlsplit(url).netloc
        self.index = KvIndex()
        self.computing: collections.Counter[int] = collections.Counter()  # beginnings of its calls' prompts
        self.waiting = 0  # tokens that its calls must compute
        if events and replay:
            Follower(self.index, events, replay).start()

    def missing(self, tokens: Sequence[int], beginnings: list[int]) -> int:
        """What it will lack of a prompt: what it computes now is as good as what it has."""
        computing = sum(1 for _ in itertools.takewhile(self.computing.__contains__, beginnings)) * PIECE_TOKENS
        return len(tokens) - max(self.index.match(tokens), computing)

    def begin(self, call: Call) -> None:
        self.computing.update(call.prefixes)
        self.waiting += call.missing

    def end(self, call: Call) -> None:
        self.computing.subtract(call.prefixes)
        for beginning in call.prefixes:
            if self.computing[beginning] == 0:
                del self.computing[beginning]
        self.waiting -= call.missing

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Errors: OSError it cannot be reached"""
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        connection.request(method, path, body, headers)
        return connection.getresponse()


class Router:
    """Chooses servers. Any thread."""

    def __init__(self, servers: list[Server], policy: str = "prefix") -> None:
        self.servers = servers
        self.policy = policy
        self.lock = threading.Lock()
        self.turn = itertools.count()

    def order(self, tokens: Sequence[int]) -> list[tuple[Server, Call]]:
        """The servers, best first: the one with the fewest tokens to compute, its other calls' included."""
        beginnings = prefixes(tokens)
        with self.lock:
            first = next(self.turn)
            turns = [self.servers[(first + i) % len(self.servers)] for i in range(len(self.servers))]
            order = [(server, Call(beginnings, server.missing(tokens, beginnings))) for server in turns]
        if self.policy == "prefix":
            order.sort(key=lambda choice: choice[0].waiting + choice[1].missing)
        return order

    def tokens_of(self, path: str, body: bytes, headers: dict[str, str]) -> list[int]:
        """The prompt of a call, as the servers read it; empty: they will say what is wrong with it."""
        if path not in ROUTED or self.policy == "round-robin":
            return []
        try:
            prompt = json.loads(body).get("prompt")
        except (ValueError, AttributeError):
            return []
        if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
            return prompt
        for server in self.servers:
            try:
                answer = server.ask("POST", "/v1/tokenize", body, headers)
                return json.loads(answer.read())["tokens"] if answer.status == 200 else []
            except OSError:
                continue
        return []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    router: Router

    def do_POST(self) -> None:
        self.route(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:
        self.route(None)

    def route(self, body: bytes | None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
        tokens = self.router.tokens_of(self.path, body or b"", headers)
        for server, call in self.router.order(tokens):
            with self.router.lock:
                server.begin(call)
            try:
                answer = server.ask(self.command, self.path, body, headers)
            except OSError:
                continue  # the next one
            else:
                self.pass_on(answer)
                return
            finally:
                with self.router.lock:
                    server.end(call)
        self.say(502, b'{"error": {"message": "no server answers", "type": "server_error"}}')

    def pass_on(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(PIECE_BYTES):  # as it comes
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(router: Router, host: str, port: int) -> HttpServer:
    """Listens; serve_forever() runs it."""
    return HttpServer((host, port), type("RouterHandler", (Handler,), {"router": router}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT")
    parser.add_argument("--server", nargs=3, action="append", required=True, metavar=("URL", "EVENTS", "REPLAY"))
    parser.add_argument("--policy", choices=("prefix", "round-robin"), default="prefix")
    options = parser.parse_args()
    host, port = options.listen.rsplit(":", 1)
    router = Router([Server(*server) for server in options.server], options.policy)
    with serve(router, host, int(port)) as listening:
        print(f"routes to {len(router.servers)} servers at http://{host}:{listening.server_port}", flush=True)
        listening.serve_forever()


if __name__ == "__main__":
    main()
