"""The blocks that one server has, kept equal to the server by its KV events (docs/events.md).

`KvIndex` is the index; `Subscription` applies numbered messages to it and repairs what was missed; `Follower` is a
thread that does so over ZeroMQ. Needs the packages pyzmq and msgpack.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zmq

END = 2**64 - 1  # the number behind the last message of an answer
QUIET_S = 3  # a server that has nothing to say says so every second
ANSWER_S = 5


@dataclasses.dataclass
class Block:
    media: set[str]
    parent: int | None = None
    tokens: tuple[int, ...] | None = None  # None: only its hash is known


class KvIndex:
    """Blocks by hash, and from a block to those that continue it. Any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks: dict[int, Block] = {}
        self.children: dict[tuple[int | None, tuple[int, ...]], int] = {}
        self.block_tokens = 0

    def apply(self, events: list[dict[str, Any]]) -> None:
        with self.lock:
            for event in events:
                if event["type"] == "BlockStored":
                    self._store(event)
                elif event["type"] == "BlockRemoved":
                    self._remove(event)
                elif event["type"] == "AllBlocksCleared":
                    self.blocks.clear()
                    self.children.clear()

    def _store(self, event: dict[str, Any]) -> None:
        size, tokens = event["block_size"], event["token_ids"]
        self.block_tokens = size
        parent = event["parent_block_hash"]
        for i, block_hash in enumerate(event["block_hashes"]):
            block = self.blocks.setdefault(block_hash, Block(set()))
            block.media.add(event["medium"])
            if tokens:
                block.parent, block.tokens = parent, tuple(tokens[i * size:(i + 1) * size])
                self.children[parent, block.tokens] = block_hash
                parent = block_hash

    def _remove(self, event: dict[str, Any]) -> None:
        for block_hash in event["block_hashes"]:
            block = self.blocks.get(block_hash)
            if block is None:
                continue
            block.media.discard(event["medium"])
            if not block.media:
                del self.blocks[block_hash]
                if block.tokens is not None and self.children.get((block.parent, block.tokens)) == block_hash:
                    del self.children[block.parent, block.tokens]

    def match(self, tokens: Sequence[int]) -> int:
        """How many of the first tokens the server has."""
        with self.lock:
            size, found, parent = self.block_tokens, 0, None
            while size and found + size <= len(tokens):
                parent = self.children.get((parent, tuple(tokens[found:found + size])))
                if parent is None:
                    break
                found += size
            return found


class Subscription:
    """Applies the messages of one server in order; asks for what is missing. One thread.

    ask: yields the messages from a number on, as (number, payload); raises OSError if the answer is cut off
    """

    def __init__(self, index: KvIndex, ask: Callable[[int], Iterator[tuple[int, bytes]]]) -> None:
        self.index = index
        self.ask = ask
        self.last: int | None = None  # everything up to this number is in the index

    def receive(self, number: int, payload: bytes) -> None:
        if self.last is None or number != self.last + 1:
            self.repair()
            return
        self.index.apply(msgpack.unpackb(payload)[1])
        self.last = number

    def repair(self) -> None:
        """Raises OSError where the server does not answer; the index is empty then."""
        snapshot: int | None = None
        try:
            for number, payload in self.ask(0 if self.last is None else self.last + 1):
                events = msgpack.unpackb(payload)[1]
                if events and events[0]["type"] == "AllBlocksCleared":
                    snapshot, self.last = number, None  # until all of it is there
                elif snapshot is not None and number in (snapshot, snapshot + 1):
                    snapshot = number
                elif snapshot is None and self.last is not None and number == self.last + 1:
                    self.last = number
                else:
                    raise OSError(f"an answer goes on with {number}")
                self.index.apply(events)
        except OSError:
            self.last = None
            self.index.apply([{"type": "AllBlocksCleared"}])
            raise
        if snapshot is not None:
            self.last = snapshot


class Follower(threading.Thread):
    """Keeps an index equal to a server, as long as the process lives."""

    def __init__(self, index: KvIndex, events: str, replay: str, topic: str = "") -> None:
        super().__init__(daemon=True)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.replay = replay
        self.subscription = Subscription(index, self._ask)
        self.socket = self.context.socket(zmq.SUB)
        self.socket.subscribe(topic)
        self.socket.connect(events)

    def run(self) -> None:
        # Subscribed first and repaired then, so nothing is missed between the two.
        quiet = True
        while True:
            try:
                if quiet:
                    self.subscription.repair()
                quiet = not self.socket.poll(QUIET_S * 1000)
                if not quiet:
                    _, number, payload = self.socket.recv_multipart()
                    self.subscription.receive(int.from_bytes(number, "big"), payload)
            except OSError:
                quiet = True  # it does not answer: it is asked again

    def _ask(self, number: int) -> Iterator[tuple[int, bytes]]:
        # A socket of its own for each question, so that no answer is mistaken for another.
        with self.context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.replay)
            socket.send_multipart([b"", number.to_bytes(8, "big")])
            while True:
                if not socket.poll(ANSWER_S * 1000):
                    raise OSError(f"{self.replay} does not answer")
                _, said, payload = socket.recv_multipart()
                if int.from_bytes(said, "big") == END:
                    return
                yield int.from_bytes(said, "big"), payload
