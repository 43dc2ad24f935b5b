"""Runs `quire serve` for a test: a real process on a free port, ended with the test."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import quire_cli

TINY = quire_cli.REPOSITORY / "models/tiny"
START_S = 60


class Server:
    """One running server. `log` is its access log, `stderr` what it said besides."""

    def __init__(self, process, url, operator_port, folder):
        self.process = process
        self.url = url
        self.port = int(url.rsplit(":", 1)[1])
        self.operator_url = f"http://127.0.0.1:{operator_port}" if operator_port else None
        self.log = folder / "access.log"
        self.stderr = folder / "stderr"

    def lines(self):
        """Those that are whole: the last one may be half written still."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True)
                if line.endswith("\n")]

    def wait_for_lines(self, count, after=0, **fields):
        """The log's lines that have these fields, from the one numbered `after` on, once there are so many: a line is
        written after the answer, so lines of earlier requests may come later too."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            lines = [line for line in self.lines()[after:] if fields.items() <= line.items()]
            if len(lines) >= count:
                return lines
            time.sleep(0.01)
        raise AssertionError(f"{len(lines)} lines of {fields}, not {count}: {self.log.read_text()[-20000:]}")

    def line_of(self, request_id):
        """The log's line of one request."""
        return self.wait_for_lines(1, request_id=request_id)[0]

    def ask(self, path, body=None, key=None, method=None, headers=None, url=None, timeout=60):
        """(status, object): a JSON answer, whatever its status. Text where it is no JSON."""
        data = None if body is None else (body if isinstance(body, bytes)
                                          else json.dumps(body).encode())
        request = urllib.request.Request((url or self.url) + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode()

    def connect(self):
        """A bare socket, for what no client would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def engine(self):
        return self.ask("/v1/cache", url=self.operator_url)[1]["engine"]

    def wait_idle(self, seconds=60):
        """Until nothing is under way and no sequence holds a block."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            cache = self.ask("/v1/cache", url=self.operator_url)[1]
            if not cache["calls"] and cache["cache"]["sequences"] == 0:
                return cache
            time.sleep(0.02)
        raise AssertionError(f"still busy: {cache['calls']} {cache['cache']}")

    def terminate(self, seconds=60):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)


def start(folder: Path, *arguments, model=TINY, launcher=(), threads=2):
    """A server on the bundled model, once it can be asked. Its caller ends it.

    arguments: more flags of `quire serve`
    launcher: what starts it, such as an mpirun
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [*launcher, str(quire_cli.binary()), "serve", "--model", str(model), "--listen", "127.0.0.1:0",
               "--access-log", str(folder / "access.log"), "--threads", str(threads),
               *(str(argument) for argument in arguments)]
    stdout = folder / "stdout"
    with open(stdout, "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        end = time.monotonic() + START_S
        while "try: curl" not in stdout.read_text():
            assert process.poll() is None, (folder / "stderr").read_text()
            assert time.monotonic() < end, "it does not start"
            time.sleep(0.01)
    except BaseException:
        process.kill()
        process.wait()
        raise
    said = stdout.read_text()
    url = re.search(r"at (https?://\S+)", said).group(1)
    operator = re.search(r"operator's page: http://127.0.0.1:(\d+)/", said)
    return Server(process, url, operator and operator.group(1), folder)


@contextlib.contextmanager
def serving(folder: Path, *arguments, model=TINY):
    """A server on the bundled model. At the end it must have been alive, and stop within its time.

    arguments: more flags of `quire serve`
    """
    server = start(folder, *arguments, model=model)
    process = server.process
    try:
        yield server
        if process.poll() is None:
            assert server.terminate() == 0, (folder / "stderr").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 0, (process.returncode, (folder / "stderr").read_text())
