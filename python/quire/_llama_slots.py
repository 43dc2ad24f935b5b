"""The slots of a llama-server, filled from a store and saved to it through the server's files of
slots (`--slot-save-path`, `POST /slots/ID?action=save` and `restore`)."""

import http.client
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quire._errors import IoError
from quire._llama_blocks import StateBlocks
from quire._llama_states import parse

_HEAD = struct.Struct("<4sII")  # magic, version, 32-bit words that say the tokens
_MAGIC = b"qsgg"
_PACKED = -1  # begins tokens that are said with what images they stand for; else they are plain


class Server:
    """Calls of a llama-server's API. Any thread."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def call(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON answer of one call. Raises IoError: it failed, or was refused."""
        connection = http.client.HTTPConnection(self.host, self.port)
        try:
            connection.request("GET" if body is None else "POST", path,
                               None if body is None else json.dumps(body), dict(headers or {}))
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise IoError(f"llama-server answers {path} with {response.status}: "
                              f"{text[:200].decode(errors='replace')}")
            return json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise IoError(f"llama-server does not answer {path}: {error}") from error
        finally:
            connection.close()


class Slots:
    """Moves states between a server's slots and a store. Each slot's calls come one after another;
    those of different slots may come from any thread. Calls raise Error, OSError and ValueError."""

    def __init__(self, server: Server, folder: Path, blocks: StateBlocks) -> None:
        """folder: the server's --slot-save-path."""
        self._server, self._folder, self._blocks = server, folder, blocks
        self._version: int | None = None

    def restore(self, slot: int, tokens: Any, more_than: int, headers: Mapping[str, str]) -> int:
        """Fills a slot with the longest stored prefix; its tokens, or 0: the store has no more than
        so many, and the slot is as it was."""
        loaded = self._blocks.load(tokens, more_than)
        if loaded is None:
            return 0
        state, count = loaded
        if self._version is None:  # of its files: that of the slot as it is
            self._save(slot, headers)
        path = self._path(slot)
        try:
            with open(path, "wb") as file:
                file.write(_HEAD.pack(_MAGIC, self._version, count))
                file.write(tokens[:count].astype("<i4").tobytes())
                file.write(state)
            self._server.call(f"/slots/{slot}?action=restore", {"filename": path.name}, headers)
        finally:
            path.unlink(missing_ok=True)
        return count

    def save(self, slot: int, prompt_tokens: int, headers: Mapping[str, str]) -> Any:
        """Stores what a slot has, as far as it is not stored yet; its tokens."""
        tokens, state = self._save(slot, headers)
        missing = self._blocks.missing(tokens, (prompt_tokens, len(tokens)))
        if missing:
            self._blocks.put(missing, parse(state, len(tokens)))
        return tokens

    def _save(self, slot: int, headers: Mapping[str, str]) -> tuple[Any, memoryview]:
        path = self._path(slot)
        try:
            self._server.call(f"/slots/{slot}?action=save", {"filename": path.name}, headers)
            data = memoryview(path.read_bytes())
        finally:
            path.unlink(missing_ok=True)
        self._version, tokens, state = read_file(data)
        return tokens, state

    def _path(self, slot: int) -> Path:
        return self._folder / f"quire-{os.getpid()}-{slot}"


def read_file(data: memoryview) -> tuple[int, Any, memoryview]:
    """Version, tokens and state of a file of a slot. ValueError: it is not as known."""
    if len(data) < _HEAD.size:
        raise ValueError("a file of a slot that is cut off")
    magic, version, words = _HEAD.unpack_from(data)
    end = _HEAD.size + 4 * words
    if magic != _MAGIC or end > len(data):
        raise ValueError("not a file of a slot")
    tokens = np.frombuffer(data, "<i4", words, _HEAD.size).astype(np.intc)
    if words and tokens[0] == _PACKED:
        # marker, version, count, tokens, count of images: none
        if words < 4 or words != tokens[2] + 4 or tokens[1] != 1 or tokens[-1] != 0:
            raise ValueError("a slot with images, or in a form that is not known")
        tokens = tokens[3:-1]
    return version, tokens, data[end:]
