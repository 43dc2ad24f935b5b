"""Bytes of a server's budget for a training run in a process of its own on the same machine.

    with quire.lease.ServerLease("http://127.0.0.1:8081", "training lora/1", 256 << 20) as lease:
        registry = quire.Registry(hot_bytes=lease.bytes, ...)

The lease is a connection to the operator's address of `quire serve`: it ends when that does, however
the process ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import urllib.parse

from ._errors import BusyError, Error, InvalidArgumentError, NotFoundError

__all__ = ["ServerLease"]

_ERRORS = {400: InvalidArgumentError, 404: NotFoundError, 409: BusyError}


class ServerLease:
    """Takes `bytes` out of the budget of `quire serve`, until it is closed. The event `ended` is set
    once the lease is over, also where the operator ended it or the server is gone.

    url: where the operator asks, for example "http://127.0.0.1:8081". owner: its name in the server's
    statistics. key: of an operator, if the server wants one. wait_s: for so long at most, requests that
    run are asked to give way, one after the other.

    Raises: BusyError requests that run hold more after wait_s; InvalidArgumentError the budget has no
    more than that; OSError the server cannot be reached.
    Threads: any.
    """

    def __init__(self, url: str, owner: str, bytes: int, *, key: str | None = None,  # noqa: A002
                 wait_s: float = 10.0, context: ssl.SSLContext | None = None) -> None:
        address = urllib.parse.urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InvalidArgumentError(f"{url}: not an address like http://127.0.0.1:8081")
        self._address, self._context = address, context
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._turn = threading.Lock()
        connection = self._connect(wait_s)
        try:
            connection.connect()
            self._socket = connection.sock
            answer = self._ask(connection, "POST", "",
                               {"owner": owner, "bytes": bytes, "wait_s": wait_s})
            # Events of the server: the first one says what was taken, the others are comments.
            while not (line := answer.readline()).startswith(b"data: "):
                if not line:
                    raise OSError(f"{url}: the server ended the lease at once")
            said = json.loads(line[len(b"data: "):])
        except BaseException:
            connection.close()
            raise
        self._answer = answer
        self.id: int = said["id"]
        self.bytes: int = said["bytes"]
        self.ended = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def resize(self, bytes: int, *, wait_s: float = 10.0) -> None:  # noqa: A002
        """More or less bytes for the same lease. Raises: as the constructor; it stays as it is then."""
        with self._turn:
            connection = self._connect(wait_s)
            try:
                with self._ask(connection, "POST", f"/{self.id}",
                               {"bytes": bytes, "wait_s": wait_s}) as answer:
                    self.bytes = json.loads(answer.read())["bytes"]
            finally:
                connection.close()

    def close(self) -> None:
        """Gives the bytes back; twice is once."""
        self.ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ServerLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        """Reads what the server says every few seconds, until it says no more."""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while self._answer.readline():
                pass
        self.ended.set()
        self._answer.close()

    def _connect(self, wait_s: float) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        timeout = wait_s + 30
        if self._address.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _ask(self, connection: http.client.HTTPConnection, method: str, path: str,
             body: dict[str, object]) -> http.client.HTTPResponse:
        connection.request(method, "/v1/cache/leases" + path, json.dumps(body), self._headers)
        answer = connection.getresponse()
        if answer.status != 200:
            message = answer.read().decode(errors="replace")
            try:
                message = json.loads(message)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise _ERRORS.get(answer.status, Error)(f"{self._address.netloc}: {message}")
        return answer
