"""States of llama.cpp's sequences in a store, by blocks of tokens, so that prompts share what they
begin with."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from quire._errors import InvalidArgumentError
from quire._llama_states import Layout, State, build, front, front_of, join
from quire.store import BlockStore, Outcome

_Range = tuple[int, int]  # of tokens


class StateBlocks:
    """A block is the rows of `block_tokens` tokens under a digest of all tokens up to its end. What
    a state has beyond whole blocks is a block as well, a tail.

    Not thread-safe. Calls raise what the store raises, and ValueError.
    """

    def __init__(self, store: BlockStore, namespace: str, block_tokens: int) -> None:
        """namespace: names everything that decides a state besides its tokens."""
        if not 1 <= block_tokens <= 4096:
            raise InvalidArgumentError(f"block_tokens is {block_tokens}")
        self._store, self.namespace, self._block_tokens = store, namespace, block_tokens

    def find(self, tokens: Any) -> dict[bytes, _Range]:
        """The blocks of the longest prefix that the store has."""
        found: dict[bytes, _Range] = {}
        blocks = self.blocks(tokens)
        for key, there in self._exist(blocks):
            if not there:
                break
            found[key] = blocks[key]
        begin = len(found) * self._block_tokens
        tails = self.tails(tokens, range(1, self._block_tokens), begin)
        longest = [key for key, there in self._exist(tails) if there][-1:]
        found.update((key, tails[key]) for key in longest)
        return found

    def load(self, tokens: Any, more_than: int) -> tuple[bytes, int] | None:
        """The state of the longest prefix and its tokens; None: it has no more than so many."""
        found = self.find(tokens)
        if not found or max(end for _, end in found.values()) <= more_than:
            return None
        read = self._read(found)
        if read is None or read[2] <= more_than:
            return None
        layout, rows, count = read
        return build(layout, rows, count), count

    def missing(self, tokens: Any, ends: Iterable[int]) -> dict[bytes, _Range]:
        """The blocks that the store has not. ends: prefixes whose tails are wanted, too."""
        wanted = self.blocks(tokens)
        for length in set(ends):
            if 0 < length <= len(tokens):
                wanted.update(self.tails(tokens[:length], (length % self._block_tokens,)))
        return {key: wanted[key] for key, there in self._exist(wanted) if not there}

    def put(self, blocks: dict[bytes, _Range], state: State) -> None:
        head = front(state.layout)
        self._store.put_many(
            list(blocks), [head + b"".join(np.ascontiguousarray(rows[begin:end]).tobytes()
                                           for rows in state.rows)
                           for begin, end in blocks.values()], namespace=self.namespace)

    def blocks(self, tokens: Any) -> dict[bytes, _Range]:
        """Whole blocks, in their order: where each begins and ends, by its key."""
        blocks, before = {}, bytes(32)
        for begin in range(0, len(tokens) - self._block_tokens + 1, self._block_tokens):
            end = begin + self._block_tokens
            before = _key(before, tokens[begin:end])
            blocks[before] = (begin, end)
        return blocks

    def tails(self, tokens: Any, lengths: Iterable[int],
              begin: int | None = None) -> dict[bytes, _Range]:
        """What tokens may end with beyond whole blocks, or behind `begin`."""
        whole = len(tokens) // self._block_tokens * self._block_tokens if begin is None else begin
        before = next(reversed(self.blocks(tokens[:whole])), bytes(32))
        return {_key(before, tokens[whole:whole + length]): (whole, whole + length)
                for length in lengths if length > 0 and whole + length <= len(tokens)}

    # -- Inside ------------------------------------------------------------------------------------

    def _exist(self, blocks: dict[bytes, _Range]) -> Iterator[tuple[bytes, bool]]:
        results = self._store.wait(self._store.submit_exists(list(blocks),
                                                             namespace=self.namespace))
        return ((key, result.outcome == Outcome.OK) for key, result in zip(blocks, results))

    def _read(self, found: dict[bytes, _Range]) -> tuple[Layout, list[Any], int] | None:
        """What the store gives of these blocks, up to the first that is not as it should be."""
        keys = list(found)
        known = self._store.wait(self._store.submit_exists(keys, namespace=self.namespace))
        buffers = [bytearray(result.length if result.outcome == Outcome.OK else 0)
                   for result in known]
        results = self._store.wait(self._store.submit_get(keys, buffers, namespace=self.namespace))
        read: tuple[bytes, Layout] | None = None
        pieces, count = [], 0
        for key, buffer, result in zip(keys, buffers, results):
            if result.outcome != Outcome.OK:
                break
            begin, end = found[key]
            data = memoryview(buffer)[:result.length]
            head = front_of(data)
            if head is not None and read is None:
                read = (head, Layout.decode(head[8:]))
            if read is None or head != read[0] or (
                    len(data) != len(read[0]) + read[1].token_bytes() * (end - begin)):
                self._store.remove(key, namespace=self.namespace)  # it is none of ours
                break
            pieces.append((data[len(read[0]):], end - begin))
            count = end
        return (read[1], join(read[1], pieces), count) if read is not None and pieces else None


def ids(tokens: Sequence[int]) -> Any:
    return np.asarray(tokens, np.intc)


def _key(before: bytes, tokens: Any) -> bytes:
    return hashlib.blake2b(before + tokens.astype("<i4").tobytes(), digest_size=32).digest()
