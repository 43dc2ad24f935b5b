"""The compiled half of quire; import quire instead."""

from collections.abc import Sequence as _Sequence
import os
from typing import Any, overload

import numpy
from numpy.typing import NDArray


import os
from ._arrays import ReadOnlyArray
from ._types import (
    CacheEntry, CacheStats, Codecs, DiskStoreStats, EraseReport, FreeRuns, LoadProgress,
    RegistryStats, SequenceStats, TenantStats,
)

CODECS: dict[str, float]

class View:
    """
    The blocks of one stream of a sequence, in place and pinned until this is closed and every array made of it is gone.

    Made by Sequence.view(). Pinned blocks count against the budget. Threads: any; it may end on any thread.
    """

    def __len__(self) -> int: ...

    @property
    def tokens(self) -> int:
        """Tokens that can be read, from first_token on."""

    @property
    def first_token(self) -> int:
        """Of the sequence, the first that is shown: a multiple of block_tokens."""

    def has_block(self, block: int) -> bool:
        """False for a block that the layer's window has passed."""

    def numpy(self, block: int) -> ReadOnlyArray:
        """
        Block `block` as [heads, tokens, dim] in place: nothing is copied, and nothing can be written.

        The array pins the block while it lives. DLPack is refused, because torch would write through it: use copy().

        Raises: InvalidArgumentError no such block; NotFoundError the window has passed it; UnsupportedError bf16, which NumPy lacks.
        """

    def array(self) -> ReadOnlyArray:
        """
        All blocks as one array in place, where they lie equally far apart, as in a contiguous sequence: [heads, tokens, dim] in a head-major arena, elsewhere [blocks, heads, block_tokens, dim].

        Raises: UnsupportedError they do not lie so.
        """

    def copy(self, block: int) -> Any:
        """
        Block `block` as an array [heads, tokens, dim] of its own, of the stored type; numpy.from_dlpack and torch.from_dlpack take it without another copy.
        """

    def __repr__(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Ends the pin, as far as no array made of this holds it."""

    def __enter__(self) -> View: ...

    def __exit__(self, *exception: object) -> None: ...

class Sequence:
    """
    One sequence: shared blocks, then blocks of its own. Made by Cache.open().

    Threads: any. Calls that write take turns; the others run beside them.
    """

    def reserve(self, tokens: int) -> None:
        """Room for so many tokens in all; all or nothing. Raises: NoSpaceError."""

    def append(self, layer: int, key: Any, value: Any = None) -> None:
        """
        Writes the next rows of one layer.

        key, value: [tokens, heads, dim], float32, float16 or bfloat16, of NumPy, torch or whatever speaks DLPack; any strides, as long as the values of a head lie together. They are read during the call, without another copy. A latent model has no value.
        Raises: InvalidArgumentError shape, type or layer; NoSpaceError. Nothing changes then.
        """

    def commit(self, tokens: object) -> None:
        """
        Makes the next len(tokens) tokens visible, and shares the whole blocks they complete.

        Raises: InvalidArgumentError names the layer that was not appended that far.
        """

    def await_layer(self, layer: int, timeout_s: float | None = None) -> bool:
        """
        Of a sequence of Ticket.arriving(): waits until a layer of what is loaded is there, or so long: whether it is. Until all layers are, nothing but append() is possible.

        Raises: NotFoundError the load has ended without some of it: nothing of it is to be used.
        """

    def rollback(self, position: int) -> None:
        """
        Truncates to `position` tokens, committed or not. What is published stays in the cache.

        Raises: InvalidArgumentError more than were written, inside a block that is encoded already, or before what a window kept; NoSpaceError no room for the copy of a block.
        """

    def fork(self) -> Sequence:
        """A second sequence with the same committed tokens: shares whole blocks."""

    def select(self, kept_blocks: _Sequence[int]) -> Sequence:
        """
        A private second sequence that has only these whole blocks, and the last partial one.
        """

    def retain(self, begin_token: int = 0, end_token: int | None = None, *, priority: int = 50, ttl_s: float = 0.0) -> None:
        """
        How much the blocks of a range are wanted, 0 to 100 (policy "priority"), for ttl_s, then 50 again (0: for good).
        """

    def reset(self) -> None:
        """Back to zero tokens."""

    @property
    def length(self) -> int:
        """Committed tokens."""

    def __len__(self) -> int: ...

    def cursor(self, layer: int) -> int:
        """Tokens written in a layer, committed or not."""

    @property
    def dropped_tokens(self) -> int:
        """Tokens before length that select left out."""

    def stats(self) -> SequenceStats: ...

    def gather(self, layer: int, role: str, begin: int = 0, end: int | None = None) -> NDArray[numpy.float32]:
        """
        A copy of tokens [begin, end) of one stream, float32 [heads, end - begin, dim].

        role: "key", "value" or "latent".
        Raises: InvalidArgumentError past what is written; NotFoundError a window has passed a block of the range.
        """

    def view(self, layer: int, role: str, begin: int = 0, end: int | None = None) -> View:
        """
        The blocks of one stream in place and pinned.

        Raises: UnsupportedError the codec encodes.
        """

    def __repr__(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Returns every byte that it alone held."""

    def __enter__(self) -> Sequence: ...

    def __exit__(self, *exception: object) -> None: ...

def gather_padded(sequences: _Sequence[Sequence], layer: int, role: str, tokens_max: int) -> NDArray[numpy.float32]:
    """
    A copy of the committed tokens of many sequences, float32 [batch, heads, tokens_max, dim], zeros after each one's last token.
    """

class DiskStore:
    """
    The store below memory, in one directory of a local disk (docs/durability.md): what caches publish is written there behind their back, and a later process finds it.

    Several caches may share one; one process at a time owns a directory. Threads: any.
    """

    def __init__(self, directory: str | bytes | os.PathLike[str] | os.PathLike[bytes], *, cap_bytes: int = 8589934592, commit_interval_s: float = 1.0, staging_bytes: int = 67108864, scrub_bytes_per_s: int = 8388608, warm_bytes: int = 0, remote: str = '', fleet_key: str | os.PathLike[str] | None = None, remote_writes_all: bool = False, keys: str | os.PathLike[str] | None = None, keys_command: str = '', key: bytes | None = None) -> None:
        """
        directory: made if there is none. Empty: nothing is on disk, there are warm_bytes or a remote alone.
        cap_bytes: hard, of all its files.
        commit_interval_s: what a crash may lose.
        staging_bytes: memory for bytes on their way.
        scrub_bytes_per_s: re-reads what it has, so fast; 0: never.
        warm_bytes: memory in front of the disk, for caches whose blocks are on a device.
        remote: a service that machines share, behind the others: redis://HOST, rediss://HOST or s3://BUCKET (docs/remote.md).
        fleet_key: a file of 32 random bytes that they have in common; without it nothing is shared.
        remote_writes_all: not only what is used again is written there.
        keys, keys_command, key: one of them encrypts the directory, or opens an encrypted one: a file of 32 bytes that its owner alone may read, a command that wraps and unwraps, or 32 bytes (docs/encryption.md).
        Raises: BusyError another process has it; InvalidArgumentError keys that are not the directory's; CorruptError they are damaged; UnsupportedError a newer version wrote it; NoSpaceError; IoError.
        """

    def secret(self) -> bytes:
        """
        32 bytes for Identity(domain_secret=...), kept beside the store in a file that its owner alone may read. With another one nothing in the store is found.
        """

    def flush(self) -> None:
        """
        Returns when everything that was published before is durable. Raises: IoError, NoSpaceError some of it could not be written.
        """

    def stats(self) -> DiskStoreStats:
        """What it did and holds."""

    def __repr__(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Flushes and lets go of it. It ends with its last cache."""

    def __enter__(self) -> DiskStore: ...

    def __exit__(self, *exception: object) -> None: ...

class Ticket:
    """
    A load under way, made by Cache.load(). What has come is held until it is taken or closed. Threads: any.
    """

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns when the load has ended, or after so long: whether it has."""

    def take(self) -> Plan:
        """
        Waits for the end. The plan it was made from, with what was loaded resident; its misses say why the rest was not. Uses the ticket up.
        """

    def cancel(self) -> None:
        """What has not come yet will not be waited for."""

    @property
    def done(self) -> bool:
        """Whether the load has ended."""

    @property
    def progress(self) -> LoadProgress:
        """
        blocks to be loaded, blocks_ready, and their bytes; from_end: meet_tokens, the tokens before what has come; by_layer: layers_ready, so many are there; elapsed_us, to its end.
        """

    def front(self, tokens: int) -> Plan:
        """
        Of a load from_end: what was resident when it began, pinned once more, as a plan of the first `tokens` of the prompt, to compute from.
        """

    def arriving(self) -> Plan:
        """
        Of a load by_layer some of whose layers are ready: a plan that has the blocks on their way as resident ones. A sequence that is opened from it has the tokens of a layer when Sequence.await_layer() says so.

        Raises: UnsupportedError not by_layer; BusyError no layer is ready, or the load has ended or fails: wait for its end.
        """

    def meet(self, tokens: int) -> None:
        """
        Of a load from_end: the first `tokens` of the prompt are computed and published, and stay held until the ticket ends. Blocks that end there are not read any more.
        """

    def __repr__(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Cancels what has not come."""

    def __enter__(self) -> Ticket: ...

    def __exit__(self, *exception: object) -> None: ...

class Identity:
    """
    Who computed the values: equal identity and equal tokens mean equal bytes.

    Whatever decides K and V besides the tokens belongs in here. Programs that leave something out share blocks that differ.
    """

    def __init__(self, weights: bytes, *, adapter: str = '', adapter_version: int = 0, position_encoding: str = '', domain: str = '', domain_secret: bytes | None = None) -> None:
        """
        weights: 32 bytes, a digest of every weight and of the config that shapes them.
        adapter, adapter_version: a LoRA and its version, which moves at every training step.
        position_encoding: for example "rope:theta=1000000".
        domain, domain_secret: who shares; the secret (32 bytes) keys the hash of the tokens.
        """

    @property
    def weights(self) -> bytes: ...

    @property
    def adapter(self) -> str: ...

    @property
    def adapter_version(self) -> int: ...

    @property
    def position_encoding(self) -> str: ...

    @property
    def domain(self) -> str: ...

    def __repr__(self) -> str: ...

    @overload
    def __eq__(self, arg: Identity, /) -> bool: ...

    @overload
    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class LayerGroup:
    """Layers that share kind, window and streams (Cache(groups=...))."""

    def __init__(self, layers: _Sequence[int], *, kv_heads: int, head_dim: int, value_dim: int = 0, window_tokens: int = 0, sink_tokens: int = 0, latent: bool = False) -> None:
        """
        layers: absolute numbers, ascending.
        value_dim: 0: head_dim.
        window_tokens: a query sees itself and window_tokens - 1 before it; 0: all.
        sink_tokens: with a window, the first tokens that stay visible.
        latent: one stream that is read as K and as V (MLA), passed as `key`.
        """

    def __repr__(self) -> str: ...

    @property
    def layers(self) -> list[int]: ...

    @property
    def window_tokens(self) -> int: ...

    @property
    def sink_tokens(self) -> int: ...

class SharedBudget:
    """
    A hard budget in bytes that several caches pay from, besides each its own (Cache(shared_budget=...)). Threads: any.
    """

    def __init__(self, bytes: int, bytes_max: int = 0) -> None:
        """bytes_max: the most that resize may raise it to; 0: bytes."""

    @property
    def bytes(self) -> int: ...

    @property
    def used_bytes(self) -> int: ...

    def __repr__(self) -> str: ...

    def resize(self, bytes: int) -> None:
        """
        Evicts nothing. Raises: TooLargeError above bytes_max; BusyError more is charged.
        """

class Plan:
    """
    What the cache has of a prompt, pinned until it is opened or closed.

    Made by Cache.acquire(), used up by Cache.open(), also when that fails.
    """

    @property
    def resident_tokens(self) -> int:
        """Tokens found: a multiple of block_tokens, less than the prompt."""

    @property
    def missing_tokens(self) -> int:
        """Tokens that must be computed; never 0."""

    @property
    def loadable_tokens(self) -> int:
        """Of the missing tokens, those that Cache.load can bring from the store."""

    @property
    def approximate_tokens(self) -> int:
        """Of the resident tokens, those in the lower precision of a ladder."""

    @property
    def approximate_error(self) -> float:
        """The largest relative error of theirs."""

    @property
    def reason(self) -> str:
        """Why the first missing token is missing, for example "never_seen"."""

    @property
    def differs_at(self) -> int | None:
        """
        Where in the prompt the first token stands that differs from what is cached behind the tokens that are alike; None: nothing that is cached goes on from there.
        """

    @property
    def missing(self) -> list[tuple[str, int]]:
        """All missing tokens in order, as (reason, tokens)."""

    def __repr__(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Drops the pins. Does nothing once it was opened."""

    def __enter__(self) -> Plan: ...

    def __exit__(self, *exception: object) -> None: ...

class Cache:
    """
    A paged K/V cache, shared by prefix, within a hard budget.

    Threads: any thread, any call. The GIL is let go while the engine works.
    """

    def __init__(self, *, hot_bytes: int, layers: int = 0, kv_heads: int = 0, head_dim: int = 0, groups: _Sequence[LayerGroup] = [], codec: str = 'f16', value_codec: str | None = None, open_codec: str | None = None, ladder: str | None = None, block_tokens: int = 16, residual_tokens: int = 0, compute: str = 'f32', arithmetic: str = 'fma32', layout: str = 'block_major', placement: str = 'free_list', huge_pages: bool = False, tokens_max: int = 1048576, hot_bytes_max: int = 0, policy: str = 'lru', eviction_batch: str = 'exact', codec_fallback: bool = False, shared_budget: SharedBudget | None = None, store: DiskStore | None = None, events: str = '', events_replay: str = '', events_topic: str = '') -> None:
        """
        hot_bytes: the hard budget, slots in use and their metadata.
        layers, kv_heads, head_dim: the model; or groups, for windows and mixed layers.
        codec, value_codec, open_codec: names of quire.CODECS (docs/codecs.md).
        ladder: "f16:int8" instead of these: blocks that grow cold stay in the second codec alone, and so they go to a store, or in a third one: "f16:int8:int4"; see acquire (docs/ladder.md).
        block_tokens: a power of two from 16 to 256.
        store: where published blocks are kept below memory; a later process finds them.
        events, events_replay, events_topic: endpoints of ZeroMQ where the blocks that come and go are told while the cache lives, and the first frame of each message (docs/events.md).
        compute, arithmetic: how K and V are made; part of every block's identity.
        Raises: InvalidArgumentError names the field; NoSpaceError hot_bytes holds no block; UnsupportedError a codec or layout that this build lacks.
        """

    def acquire(self, tokens: object, identity: Identity, *, tenant: int = 0, reuse: bool = True, approximate_error_max: float = 0.0) -> Plan:
        """
        Pins the longest cached prefix of a prompt; at least one token is left to compute.

        tokens: the whole prompt, a list or an array [n] of int32 or int64.
        approximate_error_max: with a ladder, the largest relative error of blocks in the lower precision that it accepts; what a sequence computes after them is published for requests that accept it, too. 0: it is exact.
        Raises: InvalidArgumentError no tokens, or more than tokens_max; NotFoundError no such tenant. A miss is no error. Threads: any.
        """

    def open(self, plan: Plan, *, reserve_tokens: int = 0, step_tokens: int = 512, on_full: str = 'reject', publish: bool = True, contiguous: bool = False, resident_tokens: int = 0, query_heads: int = 0) -> Sequence:
        """
        A sequence that starts with the plan's resident tokens and has room for the rest.

        reserve_tokens: prompt and expected output; 0: the prompt.
        step_tokens: most tokens appended between two commits, where windows or codecs that encode need room for them.
        on_full: "reject" reserves all of it or refuses; "halt" reserves the prompt, and growing may fail; "no_evict" takes free room only; "fewer" reserves what there is room for, at least the prompt.
        publish: False: its blocks are never shared.
        contiguous: its blocks are consecutive slots (reuse=False, a placement with runs).
        resident_tokens: for a context that hot_bytes do not hold, with a disk_store: at least so many of its last tokens stay in memory, and Attention reads the others back, with the same bits. It needs query_heads, the heads that query a layer.
        Raises: NoSpaceError, TooLargeError, InvalidArgumentError, UnsupportedError. The plan is used up then too.
        """

    def load(self, plan: Plan, *, timeout_s: float | None = None, from_end: bool = False, by_layer: int = 0) -> Ticket:
        """
        Begins to read what the store has of a plan; Ticket.take() gives the plan back, with what came resident.

        timeout_s: what is not there by then is left to be computed.
        from_end: the last block first, for a caller that computes the front meanwhile, on Ticket.front(), and says with Ticket.meet() how far it is.
        by_layer: in so many slices (2 to 8) the first layers of all blocks, then the next ones, for a caller that computes what follows meanwhile, on Ticket.arriving(); 0: whole blocks.
        Raises: NoSpaceError no room for it; UnsupportedError from_end with windows or residual_tokens. The plan is used up in any case.
        """

    def prefetch(self, tokens: object, identity: Identity, *, tenant: int = 0, approximate_error_max: float = 0.0) -> int:
        """
        For a prompt that is expected: begins to read what the store has of it, and returns how many tokens are on their way. They are cached then; nothing holds them.

        Raises: NoSpaceError no room for them. Threads: any.
        """

    def demote(self, tokens: object, identity: Identity, *, tenant: int = 0) -> int:
        """
        Moves what memory has of the whole blocks of `tokens` to the store now, and returns how many blocks left memory: from the last one on, up to one that is in use, pinned or continued by another prompt.

        Raises: UnsupportedError there is no store; NoSpaceError and IoError none left, for the store took nothing. Threads: any.
        """

    def pin(self, tokens: object, identity: Identity, *, tenant: int = 0, ttl_s: float = 0.0) -> int:
        """
        Keeps the whole blocks of `tokens` whoever uses them, for ttl_s (0: until unpin); returns how many.

        Raises: NotFoundError not all of it is cached; NoSpaceError over the tenant's quota.
        """

    def unpin(self, tokens: object, identity: Identity, *, tenant: int = 0) -> None:
        """Takes one pin back. Raises: NotFoundError there is none."""

    def add_tenant(self, name: str, *, quota_bytes: int = 0, floor_bytes: int = 0, domain: str = '', shared: bool = False, ttl_s: float = 0.0, store_quota_bytes: int = 0, store_floor_bytes: int = 0) -> int:
        """
        A party that pays for its blocks and reads no one else's (or, with shared, a domain for tenants to name); returns its number.

        ttl_s: blocks that it has not used for so long go; 0: none.
        """

    def find_tenant(self, name: str) -> int:
        """The number of a tenant. Raises: NotFoundError."""

    def remove_tenant(self, tenant: int) -> None:
        """
        Erases what it published and takes it out. Raises: BusyError something of it is held.
        """

    def set_limits(self, tenant: int, *, quota_bytes: int = 0, floor_bytes: int = 0) -> None:
        """
        Another quota (0: as much as the budget) and floor while sequences live; what it has cached beyond the quota goes. Raises: NotFoundError, InvalidArgumentError, NoSpaceError the floors do not fit, BusyError it holds more; the limits stay then.
        """

    def erase(self, tenant: int) -> EraseReport:
        """Forgets all that a tenant published and wrote, and zeroes it."""

    def tenant_stats(self, tenant: int) -> TenantStats: ...

    def evict(self, blocks: int) -> int:
        """Evicts up to so many unleased blocks; returns how many went."""

    def trim(self) -> int:
        """Returns free slots' pages to the system; returns their bytes."""

    def resize(self, hot_bytes: int) -> None:
        """
        Changes the hard budget while sequences live, up to hot_bytes_max.

        Raises: TooLargeError, NoSpaceError, BusyError; nothing changes then.
        """

    def verify(self) -> tuple[int, int]:
        """
        Recomputes every published block's checksum; returns (blocks, damaged). Damaged ones are never found again.
        """

    def stats(self) -> CacheStats:
        """
        Numbers of the allocator and the ledger: bytes, slots, lookups, hit_tokens, ...
        """

    def block_map(self) -> str:
        """
        One character per slot: '.' free, 'p' private, 's' published, 'S' published and leased, 'w' a window has passed it.
        """

    def free_slots(self) -> list[FreeRuns]:
        """
        How free slots lie, class by class: fragmentation is 0 where they are one run.
        """

    def entries(self, tenant: int | None = None, entries_max: int = 18446744073709551615) -> list[CacheEntry]:
        """
        The published blocks that lookups of a tenant (None: everybody's) may find, in no order: where each is, what holds it, and since when.

        Raises: NotFoundError.
        """

    @property
    def codecs(self) -> Codecs:
        """What is stored: key, value and open (of what is not encoded yet)."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers, as stored."""

    @property
    def block_tokens(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def tokens_max(self) -> int: ...

    def __repr__(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """
        Lets go of it. Its memory goes with its last sequence, plan and view. What is to be found in a store later: DiskStore.flush() first.
        """

    def __enter__(self) -> Cache: ...

    def __exit__(self, *exception: object) -> None: ...

class Attention:
    """
    The CPU's attention kernels with threads and scratch. The bits do not depend on the threads.

    Threads: any; calls take turns, so make one per thread that attends.
    """

    def __init__(self, threads: int = 1) -> None:
        """
        threads: that run at once, the caller included.
        Raises: UnsupportedError a processor without fused multiply-add.
        """

    @property
    def target(self) -> str:
        """Instruction set in use, for example "avx3"."""

    def __repr__(self) -> str: ...

    @overload
    def attend(self, layer: int, sequence: Sequence, queries: object, *, first_position: int | None = None, scale: float | None = None, sink_logits: object = None, alibi_slopes: object = None, out: Any = None) -> Any:
        """
        Attention of one sequence over what is written in a layer; returns out.

        queries: [rows, query_heads, dim], float32 in C order; float16, bfloat16 and other strides are copied. Row r stands at first_position + r and sees the tokens up to and including its own.
        first_position: None: the rows are the last ones written.
        scale: None: 1 / sqrt(dim).
        sink_logits: float32 [query_heads], a logit of each head that takes part in its softmax and has no value (-inf: the head has none); None: no head has one.
        alibi_slopes: float32 [query_heads], ALiBi's slope of each head, times (key position - query position) added to its scores; None: none.
        out: float32 [rows, query_heads, value dim] in C order; None: a new NumPy array.
        The layer's window and the tokens it keeps are those of the cache.
        Raises: InvalidArgumentError shapes, or a row past what is written or before what its window kept; UnsupportedError a shape that the kernels lack.
        """

    @overload
    def attend(self, layer: int, owner: Owner, queries: object, *, first_position: int | None = None, scale: float | None = None, sink_logits: object = None, alibi_slopes: object = None, out: Any = None) -> Any:
        """
        The same over what an owner holds; appends to this layer wait meanwhile. Raises: InvalidArgumentError a checkpoint layer; NotFoundError it was evicted or released.
        """

    def attend_batch(self, layer: int, sequences: list[Sequence], queries: list[Any], outs: list[Any], *, first_positions: list[int] | None = None, scale: float | None = None, sink_logits: object = None, alibi_slopes: object = None) -> None:
        """
        The same for many sequences of one cache in one call: lists of equal length, `outs` are written.
        """

class Owner:
    """
    What one owner holds. Layers are the model's, and different threads may append to different ones at once. Raises: NotFoundError it was evicted or released. Threads: any.
    """

    def append(self, layer: int, key: Any, value: Any) -> None:
        """
        Writes the next rows [tokens, heads, dim] of one layer, as Sequence.append. Raises: InvalidArgumentError a checkpoint layer, or past tokens_max.
        """

    def commit(self, tokens: object) -> None:
        """Makes the next tokens visible, once each cached layer has them."""

    def gather(self, layer: int, role: str, begin: int = 0, end: int | None = None) -> NDArray[numpy.float32]:
        """
        A copy of tokens [begin, end) of "key" or "value" as float32 [heads, tokens, dim].
        """

    def view(self, layer: int, role: str, begin: int = 0, end: int | None = None) -> View:
        """
        The blocks of tokens [begin, end) in place, as Sequence.view. They stay until the view and all arrays made of it end, also after the owner's end.
        """

    def clear(self) -> None:
        """Back to zero tokens; what it alone held is free again."""

    def release(self) -> bool:
        """
        Its end, of a training run too; what it published stays cached. False: it had ended.
        """

    @property
    def name(self) -> str:
        """"inference 7", "training lora/3"."""

    @property
    def length(self) -> int:
        """Committed tokens; 0 after its end."""

    @property
    def bytes(self) -> int:
        """Of all that it holds, shared blocks included."""

    @property
    def evictable(self) -> bool: ...

    def __repr__(self) -> str: ...

class Registry:
    """
    Owners by name, whose caches pay from one budget: inference, which may be evicted, and training runs, which hold K and V across optimizer steps and never are. Threads: any.
    """

    def __init__(self, *, hot_bytes: int, layers: int, kv_heads: int, head_dim: int, codec: str = 'f16', block_tokens: int = 16, hot_bytes_max: int = 0, tokens_max: int = 1048576, policy: str = 'lru') -> None:
        """
        hot_bytes: the budget over all owners, up to hot_bytes_max later. The rest as Cache.
        """

    def inference(self, id: int, identity: Identity, prompt: object = None, *, tokens_max: int = 0, codec: str | None = None) -> Owner:
        """
        An inference owner, made if there is none; it starts with what is cached of the prompt. Raises: InvalidArgumentError it exists with other options; NoSpaceError.
        """

    def training(self, adapter: str, run: int, *, version: int = 0, tokens_max: int = 0, codec: str | None = None, checkpoint_layers: _Sequence[int] = []) -> Owner:
        """
        A training run, made if there is none: it starts empty, publishes nothing and is never evicted. checkpoint_layers, ascending, are recomputed by the caller and hold nothing. Raises: as inference.
        """

    def evict_to(self, bytes: int) -> int:
        """
        Brings the bytes in use down to `bytes`, as far as inference goes: first what is cached and not in use, then the least recent owners. Returns the bytes in use.
        """

    def resize(self, hot_bytes: int) -> None:
        """
        Moves the budget. Raises: TooLargeError, NoSpaceError, BusyError training runs hold more; it stays then.
        """

    def stats(self) -> RegistryStats:
        """The budget, and each owner's part of it."""

    def close(self) -> None:
        """Lets go of it; it ends with its last owner object. Twice is once."""

    def __enter__(self) -> Registry: ...

    def __exit__(self, *_: object) -> None: ...

    def __repr__(self) -> str: ...

__version__: str
