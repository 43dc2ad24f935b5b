"""What the store has of the engine's blocks, in vLLM's KV events. A store tells its clients nothing
of what it recycles, so blocks that were saved or found are looked up again from time to time."""

import array
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

LOOK_S = 0.1  # between two looks at the store, and until a block is looked up for the first time
LOOK_BLOCKS = 256  # of one look
AGAIN_S = 30.0  # until a block is due again, at the latest
FOLLOWED_MAX = 1 << 16

Stored = Callable[[list[bytes]], list[list[bool]]]


@dataclass
class _Block:
    hash: Any  # of vLLM, as its own events have it
    parent: Any
    tokens: "array.array[int]"
    salt: str | None
    due: float  # when it is looked up
    wait_s: float = LOOK_S
    groups: set[int] = field(default_factory=set)  # of which its record was told to be there


class Events:
    """Follows blocks by the digest of all tokens up to their end. `stored` says of each group which
    of these the store has, and may raise; `kinds` has what events say of each group: its kind, and
    its window. vLLM hashes `hash_tokens` at a time. Not thread-safe."""

    def __init__(self, block_tokens: int, hash_tokens: int,
                 kinds: Sequence[tuple[str, int | None]], stored: Stored,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._block_tokens, self._hashes_of_block = block_tokens, block_tokens // hash_tokens
        self._kinds, self._stored, self._clock = kinds, stored, clock
        self._blocks: dict[bytes, _Block] = {}  # by age
        self._due: list[tuple[float, bytes]] = []  # a heap: when each is looked up; others are old
        self._look_at = 0.0
        self._ready: list[Any] = []

    def follow(self, request: Any, digests: Sequence[bytes], first: int) -> None:
        """Blocks of a request from its block `first` on, which the store has or is being given."""
        hashes = request.block_hashes[self._hashes_of_block - 1::self._hashes_of_block]
        for at, digest in enumerate(digests, first):
            if digest in self._blocks or at >= len(hashes):
                continue
            begin = at * self._block_tokens
            self._blocks[digest] = _Block(
                maybe_convert_block_hash(hashes[at]),
                maybe_convert_block_hash(hashes[at - 1]) if at > 0 else None,
                array.array("i", request.all_token_ids[begin:begin + self._block_tokens]),
                request.cache_salt if at == 0 else None, self._clock() + LOOK_S)
            heapq.heappush(self._due, (self._blocks[digest].due, digest))
        while len(self._blocks) > FOLLOWED_MAX:
            self._forget(next(iter(self._blocks)))

    def forget_all(self) -> None:
        """None of them is found any more."""
        for digest in list(self._blocks):
            self._forget(digest)

    def take(self) -> list[Any]:
        """What became so since the last call, as far as it was looked at."""
        now = self._clock()
        if now >= self._look_at and self._due and self._due[0][0] <= now:
            self._look_at = now + LOOK_S
            self._look(now)
        ready, self._ready = self._ready, []
        return ready

    def _look(self, now: float) -> None:
        digests: list[bytes] = []
        while self._due and self._due[0][0] <= now and len(digests) < LOOK_BLOCKS:
            due, digest = heapq.heappop(self._due)
            if digest in self._blocks and self._blocks[digest].due == due:
                digests.append(digest)
        if not digests:
            return
        try:
            stored = self._stored(digests)
        finally:
            for digest in digests:
                block = self._blocks[digest]
                block.wait_s = min(2 * block.wait_s, AGAIN_S)
                block.due = now + block.wait_s
                heapq.heappush(self._due, (block.due, digest))
        for at, digest in enumerate(digests):
            self._tell(digest, {group for group, of_group in enumerate(stored) if of_group[at]})

    def _tell(self, digest: bytes, groups: set[int]) -> None:
        block = self._blocks[digest]
        for group in sorted(groups - block.groups):
            kind, window = self._kinds[group]
            self._ready.append(BlockStored(
                block_hashes=[block.hash], parent_block_hash=block.parent,
                token_ids=block.tokens.tolist(), block_size=len(block.tokens), lora_id=None,
                medium=MEDIUM_STORAGE, lora_name=None,
                extra_keys=[(block.salt,)] if block.salt else None, group_idx=group,
                kv_cache_spec_kind=kind, kv_cache_spec_sliding_window=window, ownership="quire"))
        for group in sorted(block.groups - groups):
            self._ready.append(BlockRemoved(block_hashes=[block.hash], medium=MEDIUM_STORAGE,
                                            group_idx=group, ownership="quire"))
        block.groups = groups
        if not groups and block.wait_s >= AGAIN_S:
            del self._blocks[digest]  # it was not saved, or is gone

    def _forget(self, digest: bytes) -> None:
        self._tell(digest, set())
        self._blocks.pop(digest, None)
