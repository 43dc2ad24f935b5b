"""llama-server with what its slots computed in a quire.store.BlockStore: starts the server, and stands
in front of it. docs/adapters/llama_cpp.md.

    python -m quire.llama_server --store unix:/run/quire/store -- llama-server -m model.gguf -c 8192
"""

import argparse
import contextlib
import hashlib
import http.client
import http.server
import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire._errors import Error, InvalidArgumentError, UnsupportedError
from quire._files import file_digest, gguf_files
from quire._llama_blocks import StateBlocks, ids
from quire._llama_slots import Server, Slots
from quire.store import BlockStore

__all__ = ["main"]

_log = logging.getLogger("quire.llama_server")

_ANSWERED = ("/completion", "/completions", "/v1/completions", "/chat/completions",
             "/v1/chat/completions")
_OURS = ("--host", "--port", "--slot-save-path")
# Models beside the model, whose files or names do not say what was computed.
_REFUSED = ("-md", "--model-draft", "--spec-draft-model", "-mm", "--mmproj", "--mmproj-url", "--lora",
            "--lora-scaled", "--control-vector", "--control-vector-scaled", "-hf", "--hf-repo", "-mu",
            "--model-url")
# Options with a value that decides no value of K and V.
_NEUTRAL = ("-t", "--threads", "-tb", "--threads-batch", "--threads-http", "-to", "--timeout", "-a",
            "--alias", "--api-key", "--api-key-file", "--log-file")
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "host")
_BODY_BYTES_MAX = 64 << 20
_START_S = 600.0


class _Lanes:
    """The slots of a server, each with the tokens that it is known to have, for one request at a
    time."""

    def __init__(self, count: int) -> None:
        self._free: dict[int, Any] = {slot: ids([]) for slot in range(count)}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, tokens: Any) -> Iterator[tuple[int, int, list[Any]]]:
        """Waits for a slot: the one that shares most with the tokens, how many it shares, and a list
        of which the last is what it has afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._free))
            shared, slot = max((_shared(has, tokens), slot) for slot, has in self._free.items())
            has = [self._free.pop(slot)]
        try:
            yield slot, shared, has
        finally:
            with self._changed:
                self._free[slot] = has[-1]
                self._changed.notify()


class _Proxy:
    def __init__(self, server: Server, slots: Slots, count: int) -> None:
        self._server, self._slots = server, slots
        self._lanes = _Lanes(count)
        self._told: set[str] = set()

    def tokens_of(self, path: str, asked: dict[str, Any], headers: Mapping[str, str]) -> Any:
        """What the server will compute; None: it is not one prompt of text. The server compares the
        tokens itself, so that what is wrong here costs a hit only."""
        if "id_slot" in asked or asked.get("cache_prompt") is False:
            return None
        prompt = asked.get("prompt")
        with self._failing_softly("reading a prompt"):
            if "chat" in path:
                prompt = self._server.call("/apply-template", asked, headers)["prompt"]
            if isinstance(prompt, str):
                prompt = self._server.call("/tokenize", {
                    "content": prompt, "add_special": True, "parse_special": True},
                    headers)["tokens"]
            if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
                return ids(prompt)
        return None

    @contextlib.contextmanager
    def slot_for(self, tokens: Any, headers: Mapping[str, str]) -> Iterator[int]:
        """A slot that has what the store has of the tokens. Afterwards what it has is stored."""
        with self._lanes.take(tokens) as (slot, shared, has):
            with self._failing_softly("restoring a slot"):
                if self._slots.restore(slot, tokens, shared, headers):
                    has.append(tokens)
            try:
                yield slot
            finally:
                has.append(ids([]))
                with self._failing_softly("saving a slot"):
                    has.append(self._slots.save(slot, len(tokens), headers))

    @contextlib.contextmanager
    def _failing_softly(self, what: str) -> Iterator[None]:
        try:
            yield
        except (Error, OSError, ValueError, KeyError, TypeError) as error:
            if what not in self._told:
                self._told.add(what)
                _log.warning("quire: %s: %s", what, error)


def _handler(proxy: _Proxy, server: Server) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass(None)

        do_DELETE = do_OPTIONS = do_HEAD = do_GET

        def do_POST(self) -> None:
            try:
                length = int(self.headers["Content-Length"] or "")
            except ValueError:
                return self._refuse(411, "a request needs a Content-Length")
            if not 0 <= length <= _BODY_BYTES_MAX:
                return self._refuse(413, "the request is too long")
            body = self.rfile.read(length)
            path = self.path.partition("?")[0]
            if path.startswith("/slots"):
                return self._refuse(403, "slots are filled by quire")
            if path not in _ANSWERED:
                return self._pass(body)
            try:
                asked = json.loads(body)
            except ValueError:
                return self._pass(body)
            key = {name: value for name, value in self.headers.items()
                   if name.lower() in ("authorization", "x-api-key")}
            tokens = proxy.tokens_of(path, asked, key) if isinstance(asked, dict) else None
            if tokens is None:
                return self._pass(body)
            with proxy.slot_for(tokens, key) as slot:
                self._pass(json.dumps(asked | {"id_slot": slot, "cache_prompt": True}).encode())

        def _pass(self, body: bytes | None) -> None:
            """Hands the request on, and the answer back as it comes."""
            self.close_connection = True
            upstream = http.client.HTTPConnection(server.host, server.port)
            has_begun = False
            try:
                headers = {name: value for name, value in self.headers.items()
                           if name.lower() not in _HOP}
                upstream.request(self.command, self.path, body, headers)
                response = upstream.getresponse()
                has_begun = True
                self.send_response_only(response.status, response.reason)
                for name, value in response.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while piece := response.read1(1 << 16):
                    self.wfile.write(piece)
            except (OSError, http.client.HTTPException) as error:
                if not has_begun:
                    self._refuse(502, f"llama-server does not answer: {error}")
            finally:
                upstream.close()

        def _refuse(self, code: int, why: str) -> None:
            self.close_connection = True
            text = json.dumps({"error": {"code": code, "message": why}}).encode()
            self.send_response_only(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _shared(one: Any, other: Any) -> int:
    """Tokens that two prompts begin with."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def _model_of(arguments: Sequence[str]) -> str:
    """Raises InvalidArgumentError and UnsupportedError, which name the option."""
    for name in arguments:
        if name in _OURS:
            raise InvalidArgumentError(f"{name} is chosen by quire: use --listen and --scratch")
        if name in _REFUSED:
            raise UnsupportedError(f"quire.llama_server does not keep what {name} computes")
    for name, value in zip(arguments, arguments[1:]):
        if name in ("-m", "--model"):
            return value
    raise InvalidArgumentError("llama-server's arguments name no model: -m FILE")


def _identity(command: Sequence[str], model: str, version: str) -> str:
    """Names everything that decides a state, besides its tokens."""
    neutral = {at for at, name in enumerate(command) if name in _NEUTRAL}
    neutral |= {at + 1 for at in neutral} | {at for at, name in enumerate(command) if name == model}
    described = {
        "weights": [file_digest(path) for path in gguf_files(model)],
        "version": version,
        "arguments": [name for at, name in enumerate(command) if at not in neutral],
        "environment": sorted(item for item in os.environ.items() if item[0].startswith("LLAMA_ARG")),
        "machine": [platform.machine(), *(line for line in Path("/proc/cpuinfo").read_text().split("\n")
                                          if line.startswith("flags"))][:2]}
    return hashlib.blake2b(json.dumps(described).encode(), digest_size=32).hexdigest()


def _stamps(model: str) -> list[tuple[int, int, int]]:
    """Change with the model's files. Raises OSError."""
    stats = [os.stat(path) for path in gguf_files(model)]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_until_up(server: Server, child: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """The server's properties, once it has loaded its model."""
    end_s = time.monotonic() + _START_S
    while True:
        try:
            server.call("/health")
            return dict(server.call("/props"))
        except Error:
            if child.poll() is not None or time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; its exit code is the server's, or 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="python -m quire.llama_server", description=__doc__)
    parser.add_argument("--store", required=True, help="a directory, or unix:PATH")
    parser.add_argument("--cap-bytes", type=int, default=8 << 30, help="of a directory's files")
    parser.add_argument("--keys", help="a file of 32 bytes that encrypts a directory")
    parser.add_argument("--keys-command", default="", help="a command that wraps and unwraps its keys")
    parser.add_argument("--block-tokens", type=int, default=32)
    parser.add_argument("--listen", default="127.0.0.1:8080", help="HOST:PORT")
    parser.add_argument("--scratch", help="a folder for the files that slots pass through; memory "
                                          "is best (/dev/shm, if it is there)")
    parser.add_argument("command", nargs="+", help="-- llama-server -m MODEL and its options")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    host, _, port = options.listen.rpartition(":")
    host = host or "127.0.0.1"
    if not port.isdecimal():
        parser.error(f"--listen: {options.listen!r} has no port")
    scratch = options.scratch or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    with contextlib.ExitStack() as stack:
        try:
            model = _model_of(options.command)
            stamps = _stamps(model)
            store = stack.enter_context(BlockStore(options.store, cap_bytes=options.cap_bytes,
                                                   accepts_puts=True, keys=options.keys,
                                                   keys_command=options.keys_command))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(
                prefix="quire-slots-", dir=scratch)))
        except (Error, OSError) as error:
            print(f"quire.llama_server: {error}", file=sys.stderr)
            return 2
        server = Server("127.0.0.1", _free_port())
        try:
            child = subprocess.Popen([*options.command, "--host", server.host, "--port",
                                      str(server.port), "--slot-save-path", f"{folder}/"])
        except OSError as error:
            print(f"quire.llama_server: {options.command[0]}: {error}", file=sys.stderr)
            return 2
        stack.callback(_end, child)
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            properties = _wait_until_up(server, child)
            identity = _identity(options.command, model, str(properties.get("build_info")))
            if _stamps(model) != stamps:
                raise UnsupportedError(f"{model} changed while the server read it: start again")
            blocks = StateBlocks(store, f"llama_server {identity}", options.block_tokens)
            proxy = _Proxy(server, Slots(server, folder, blocks), int(properties["total_slots"]))
            front = http.server.ThreadingHTTPServer((host, int(port)), _handler(proxy, server))
        except (Error, OSError, ValueError, KeyError) as error:
            print(f"quire.llama_server: {error}", file=sys.stderr)
            return child.poll() or 1
        stack.callback(front.server_close)
        threading.Thread(target=_shut_down_after, args=(child, front), daemon=True).start()
        print(f"quire.llama_server: http://{host}:{front.server_port}", flush=True)
        try:
            front.serve_forever()  # which hears signals, whatever thread they came to
        except KeyboardInterrupt:
            return 0
        return child.wait()


def _shut_down_after(child: "subprocess.Popen[bytes]", front: http.server.HTTPServer) -> None:
    child.wait()
    front.shutdown()


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.terminate()
        child.wait()


if __name__ == "__main__":
    sys.exit(main())
