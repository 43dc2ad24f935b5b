"""The compiled half of quire.engine; import that instead."""

import os


import os
from ._types import (
    CacheEntry, EngineStats, FreeRuns, LoadedAdapter, SequenceEntry, StoredSession)

class Event:
    """
    What an answer says: kind "progress" (prompt_done of prompt_tokens are read), "token" (token, and the characters that it completes as text), or "done" (the rest). Units: tokens.
    """

    @property
    def kind(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def token(self) -> int: ...

    @property
    def prompt_done(self) -> int: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def reused_tokens(self) -> int: ...

    @property
    def loaded_tokens(self) -> int: ...

    @property
    def generated_tokens(self) -> int: ...

    @property
    def dropped_tokens(self) -> int: ...

    @property
    def retained_tokens(self) -> int: ...

    @property
    def approximate_tokens(self) -> int: ...

    @property
    def approximate_error(self) -> float: ...

    @property
    def finish(self) -> str: ...

    def __repr__(self) -> str: ...

class Answer:
    """
    The answer to one prompt, as it is generated: an iterator of Event. Threads: any, one after the other; cancel() beside one that waits.
    """

    def __iter__(self) -> Answer: ...

    def __next__(self) -> Event:
        """Waits for the next event. Raises: what made it fail."""

    def read(self) -> Event:
        """
        Hears it to its end and returns the last event; text and tokens have the rest. Raises: what made it fail.
        """

    def cancel(self) -> None:
        """Ends it soon: a last event follows, and a session is as before."""

    @property
    def text(self) -> str:
        """What it said so far."""

    @property
    def tokens(self) -> list[int]:
        """The same as token ids."""

    @property
    def done(self) -> Event | None:
        """Its last event, when it has come."""

    def close(self) -> None:
        """Cancels what was not heard; twice is once."""

    def __enter__(self) -> Answer: ...

    def __exit__(self, *_: object) -> None: ...

    def __repr__(self) -> str: ...

class Session:
    """
    Turns that build on each other. With a store it outlives the process under its name. It is let go of when it and its answers have been closed. Threads: any, one turn at a time.
    """

    def turn(self, prompt: object, *, max_tokens: int = 16, stop_tokens: list[int] | None = None, stop: bool = True, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, min_tokens: int = 0, logit_bias: dict[int, float] = {}, on_full: str = 'reject', timeout_s: float | None = None, priority: int = 0, retain_s: float | None = None, retain_tokens: int = 0, approximate_error_max: float = 0.0) -> Answer:
        """
        Feeds a prompt and begins its answer; max_tokens=0 only reads.

        prompt: a text, token ids, or None. stop_tokens: that end the answer (None: the model's own); stop=False: none do. on_full: where memory has no room, "reject" waits and may be preempted, "halt" ends, "spill" streams from the store. priority: -50 to 50, lower ones go first. logit_bias: by token. retain_s: it will be asked for again, so its first retain_tokens (0: all, with the answer) are kept in memory so long, at most an hour, within a quarter of what the cache may hold; the last event says how many are. approximate_error_max: with a ladder, the largest relative error of blocks in the lower precision that it may begin with; 0: the answer is exact.

        Raises: InvalidArgumentError, UnsupportedError; what makes it fail later is raised by the answer. Threads: any.
        """

    def fork(self, name: str | None = None) -> Session:
        """
        A second session with the same text and sampler. Raises: BusyError a turn is under way.
        """

    def end(self) -> None:
        """
        Forgets it for good: its file is overwritten and removed when this returns.
        """

    @property
    def name(self) -> str:
        """For Engine.reopen_session()."""

    def __repr__(self) -> str: ...

    def close(self) -> None:
        """Lets go of it; twice is once."""

    def __enter__(self) -> Session: ...

    def __exit__(self, *_: object) -> None: ...

class Lease:
    """
    Bytes of an engine's budget that something else has, until it is closed. Threads: any.
    """

    def resize(self, bytes: int, *, wait_s: float = 0.0) -> None:
        """More or less bytes. Raises: as Engine.lease; it stays as it is then."""

    def __repr__(self) -> str: ...

    def close(self) -> None:
        """Lets go of it; twice is once."""

    def __enter__(self) -> Lease: ...

    def __exit__(self, *_: object) -> None: ...

class Engine:
    """
    A model, its cache and a thread that computes. It ends when it and all that came of it have been closed; then what was published is written to the store. Threads: any.
    """

    def __init__(self, model: str | os.PathLike[str], *, store: str | os.PathLike[str] | None = None, hot_bytes: int = 4000000000, hot_bytes_max: int = 0, store_bytes: int = 8589934592, session_bytes: int = 1073741824, tokens_max: int = 0, block_tokens: int = 16, chunk_tokens: int = 512, threads: int = 0, codec: str | None = None, resident_tokens: int = 0, policy: str = 'lru', load: str = 'auto', eviction_batch: str = 'exact', window_tokens: int = 0, sink_tokens: int = 0, layout: str = 'block_major', placement: str = 'free_list', remote: str = '', fleet_key: str | os.PathLike[str] | None = None, remote_writes_all: bool = False, keys: str | os.PathLike[str] | None = None, keys_command: str = '', key: bytes | None = None, arithmetic: str = 'fma32', ladder: str | None = None) -> None:
        """
        Loads a model of Hugging Face's form and opens the store, where blocks and sessions outlive the process.

        hot_bytes: budget of K and V in memory, up to hot_bytes_max later (resize). tokens_max: of one text, 0: the model's. codec: of K and V, None: the model's type. resident_tokens: what memory cannot hold whole is read back from the store while layers attend, all but so many of its last tokens; 0: it is refused. policy, load, eviction_batch: docs/policies.md, docs/durability.md. window_tokens, sink_tokens: every layer sees these alone, and memory stays the same however long the text is. remote, fleet_key, remote_writes_all: as of quire.DiskStore; sessions are in the store alone. keys, keys_command, key: as of quire.DiskStore, for store and sessions. arithmetic: how matrices are multiplied, 'dot16' for a model of bf16 on a processor with products of bf16 (docs/numerics.md). ladder: 'f16:int8': blocks that grow cold stay in the second codec alone, and so they go to the store, or in a third one: 'f16:int8:int4'; answers find them that accept them (docs/ladder.md).

        Raises: NotFoundError, CorruptError, UnsupportedError of the model's files; NoSpaceError hot_bytes; BusyError another process has the store; IoError.
        """

    def ask(self, prompt: object, *, max_tokens: int = 16, stop_tokens: list[int] | None = None, stop: bool = True, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, min_tokens: int = 0, logit_bias: dict[int, float] = {}, on_full: str = 'reject', timeout_s: float | None = None, priority: int = 0, retain_s: float | None = None, retain_tokens: int = 0, keep: float = 1.0, keep_blocks: int = 0, keep_by: str | None = None, seed: int = 0, temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, adapter: str | None = None, approximate_error_max: float = 0.0) -> Answer:
        """
        One prompt and its answer, in no session.

        adapter: one that load_adapter() named; None: the base model. keep: with less than 1 it goes on with this share of the prompt's blocks, those that keep_by says ("observed", "accumulated", "recent"); keep_blocks: it never holds more than so many; the answer is an approximation then. prompt: a text, token ids, or None. stop_tokens: that end the answer (None: the model's own); stop=False: none do. on_full: where memory has no room, "reject" waits and may be preempted, "halt" ends, "spill" streams from the store. priority: -50 to 50, lower ones go first. logit_bias: by token. retain_s: it will be asked for again, so its first retain_tokens (0: all, with the answer) are kept in memory so long, at most an hour, within a quarter of what the cache may hold; the last event says how many are. approximate_error_max: with a ladder, the largest relative error of blocks in the lower precision that it may begin with; 0: the answer is exact.

        Raises: InvalidArgumentError, UnsupportedError; what makes it fail later is raised by the answer. Threads: any.
        """

    def open_session(self, name: str | None = None, *, seed: int = 0, temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, adapter: str | None = None) -> Session:
        """
        A new session; temperature 0 says the most likely token. With a store it is durable when this returns. adapter: that all its turns are computed with.

        Raises: InvalidArgumentError the name is none, or taken; NotFoundError the adapter.
        """

    def load_adapter(self, name: str, directory: str | os.PathLike[str]) -> None:
        """
        Reads a LoRA adapter as PEFT writes it, which asks and sessions may name from now on.

        Raises: NotFoundError, CorruptError, UnsupportedError of its files; BusyError one of that name is loaded; NoSpaceError, TooLargeError 64 adapters, or 4 GiB of them.
        """

    def unload_adapter(self, name: str) -> None:
        """
        No new answer finds it; those that are under way end with it. Raises: NotFoundError.
        """

    def adapters(self) -> list[LoadedAdapter]:
        """Those that are loaded, by name."""

    def reopen_session(self, name: str) -> Session:
        """
        Goes on with a session of the store, as it was after its last whole turn.

        Raises: NotFoundError; BusyError it is open; UnsupportedError another model's.
        """

    def resize(self, hot_bytes: int) -> None:
        """
        Another budget in memory while sessions go on. Raises: as Cache.resize.
        """

    def lease(self, owner: str, bytes: int, *, wait_s: float = 0.0) -> Lease:
        """
        Takes bytes out of the budget for something outside the engine, such as the quire.Registry of a training run, until the lease is closed. Turns that run give way for at most wait_s seconds.

        Raises: BusyError they hold more after that; TooLargeError the budget has no more than that; NoSpaceError the rest holds no block.
        """

    def demote(self, prompt: object) -> int:
        """
        Moves what memory has of a text's whole blocks to the store now, and returns how many left memory. Raises: as Cache.demote.
        """

    def sessions(self) -> list[StoredSession]:
        """Sessions that there are, open or in the store."""

    def sequences(self) -> list[SequenceEntry]:
        """Who holds what of the cache: requests by age, then sessions."""

    def stats(self) -> EngineStats:
        """What engine, cache and store count."""

    def entries(self, entries_max: int = 18446744073709551615) -> list[CacheEntry]:
        """As Cache.entries()."""

    def free_slots(self) -> list[FreeRuns]:
        """As Cache.free_slots()."""

    def block_map(self) -> str:
        """As Cache.block_map()."""

    def __repr__(self) -> str: ...

    def close(self) -> None:
        """Lets go of it; twice is once."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...
