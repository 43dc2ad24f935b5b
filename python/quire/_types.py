"""What stats() and the like return, as types."""

from __future__ import annotations

from typing import TypedDict


class SlotStats(TypedDict):
    """Slots of one size."""

    slot_bytes: int
    slots_max: int
    slots_used: int
    slots_used_peak: int


class FreeRuns(TypedDict):
    """Of Cache.free_slots(): how the free slots of one class lie."""

    slots: str
    free_slots: int
    runs: int
    largest: int
    fragmentation: float


class CacheEntry(TypedDict):
    """Of Cache.entries(): one published block. A key stands for the block's tokens, all before them
    and their identity; parent_key is None of the first block of a path."""

    key: str
    parent_key: str | None
    account: int
    first_token: int
    holders: int
    pinned: bool
    in_memory: bool
    in_store: bool
    age_s: int
    idle_s: int


class CacheStats(TypedDict):
    """Of Cache.stats(); include/quire/stats.h says what each number is."""

    hot_bytes_limit: int
    hot_bytes_used: int
    hot_bytes_peak: int
    sealed: SlotStats
    sealed_second: SlotStats
    open: SlotStats
    open_second: SlotStats
    published_blocks: int
    evictable_blocks: int
    passed_blocks: int
    hollow_blocks: int
    pinned_blocks: int
    twin_slots: int
    sequences: int
    sequence_bytes: int
    lookups: int
    lookup_tokens: int
    hit_tokens: int
    approximate_hit_tokens: int
    evicted_twins_total: int
    key_error_mean: float
    value_error_mean: float
    published_total: int
    deduplicated_total: int
    evicted_total: int
    evicted_passed_total: int
    refused_total: int
    stored_blocks: int
    unwritten_blocks: int
    evicted_unwritten_total: int
    loaded_total: int
    streamed_requests_total: int
    streamed_bytes_total: int
    stream_wait_us_total: int
    codec_fallbacks: int


class TenantStats(TypedDict):
    """Of Cache.tenant_stats(); missed_tokens by reason, lru_hit_ratio_at by size ("2.0x")."""

    name: str
    quota_bytes: int
    floor_bytes: int
    bytes_used: int
    bytes_peak: int
    evictable_bytes: int
    published_blocks: int
    lookups: int
    lookup_tokens: int
    hit_tokens: int
    missed_tokens: dict[str, int]
    evicted_total: int
    refused_total: int
    erased_total: int
    erase_pending_slots: int
    pinned_blocks: int
    pinned_bytes: int
    store_records: int
    store_bytes: int
    store_space_bytes: int
    store_quota_bytes: int
    store_floor_bytes: int
    reuse_lookup_blocks: int
    lru_hit_ratio_at: dict[str, float]


class SequenceStats(TypedDict):
    """Of Sequence.stats()."""

    tokens_used: int
    tokens_reserved: int
    tokens_max: int
    blocks_shared: int
    blocks_own: int
    bytes: int
    tokens_streamed: int
    tokens_approximate: int
    approximate_error: float


class RemoteStats(TypedDict):
    """Of a remote behind a store; include/quire/disk_store.h says what each number is."""

    where: str
    breaker: str
    epochs_known: bool
    breaker_opened: int
    hits: int
    misses: int
    rejected: int
    late: int
    failures: int
    retries: int
    written: int
    writes_failed: int
    writes_skipped: int
    bytes_read: int
    bytes_written: int
    reading: int
    writing: int
    read_us_total: int
    write_us_total: int
    read_us_log2: list[int]
    write_us_log2: list[int]


class _MayHaveRemote(TypedDict, total=False):
    remote: RemoteStats  # where there is one


class DiskStoreStats(_MayHaveRemote):
    """Of DiskStore.stats(); include/quire/disk_store.h says what each number is. Entry i of
    load_us_log2 counts the loads that took 2^i to 2^(i+1) microseconds."""

    records: int
    bytes: int
    bytes_cap: int
    memory_bytes: int
    records_written: int
    bytes_put: int
    bytes_written: int
    bytes_read: int
    read_requests: int
    records_loaded: int
    loads_failed: int
    records_dropped: int
    records_recycled: int
    records_damaged: int
    in_flight: int
    writes_pending: int
    disk_full: bool
    warm_records: int
    warm_bytes: int
    warm_loads: int
    warm_pinned_bytes: int
    load_us_log2: list[int]


class BlockStoreStats(TypedDict):
    """Of quire.store.BlockStore.stats(); quire.h says what each number is."""

    blocks: int
    bytes: int
    bytes_cap: int
    bytes_live: int
    block_bytes_max: int
    memory_bytes: int
    bytes_written: int
    bytes_read: int
    evicted: int
    damaged: int
    puts: int
    puts_present: int
    puts_failed: int
    hits: int
    misses: int
    gets_failed: int
    removed: int
    disk_full: int
    puts_lost: int
    memory_hits: int
    clients: int


class NamespaceUsage(TypedDict):
    """Of quire.store.BlockStore.usage(); quire.h says what each number is."""

    blocks: int
    bytes_live: int
    bytes: int


class LoadProgress(TypedDict):
    """Of Ticket.progress."""

    blocks: int
    blocks_ready: int
    bytes: int
    meet_tokens: int
    layers_ready: int
    elapsed_us: int


class EraseReport(TypedDict):
    """Of Cache.erase()."""

    blocks: int
    slots_zeroed: int
    slots_pending: int


class Codecs(TypedDict):
    """Of Cache.codecs: names of quire.CODECS."""

    key: str
    value: str
    open: str


class StoredSession(TypedDict):
    """Of Engine.sessions(); unusable says why it cannot go on here."""

    name: str
    tokens: int
    open: bool
    unusable: str | None


class SequenceEntry(TypedDict):
    """Of Engine.sequences(): a request, or a session that idles (request is None), and what it
    holds; stage is "waiting", "loading", "reading", "generating" or "idle"."""

    request: int | None
    session: int | None
    session_name: str | None
    tenant: str
    stage: str
    priority: int | None
    age_ms: int
    text_tokens: int
    generated_tokens: int
    held_tokens: int
    blocks_shared: int
    blocks_own: int
    bytes: int
    tokens_streamed: int
    tokens_approximate: int
    approximate_error: float


class EngineCounters(TypedDict):
    """The engine's part of EngineStats; what was not measured lately is None."""

    waiting: int
    running: int
    chunk_tokens: int
    steps: int
    step_us: int
    prompt_tokens: int
    decode_tokens: int
    recomputed_tokens: int
    loads: int
    loads_from_end: int
    loads_by_layer: int
    loaded_tokens: int
    load_bytes_per_s: float | None
    read_tokens_per_s: float | None
    streamed: int
    streams_renewed: int
    spilled: int
    brought_back: int
    prefix_waits: int
    preemptions: int
    sessions_released: int
    session_write_failures: int
    adapters: int
    adapter_bytes: int


class LoadedAdapter(TypedDict):
    """One entry of Engine.adapters()."""

    name: str
    rank: int
    modules: int
    bytes: int


class LeaseEntry(TypedDict):
    """Bytes of a budget that something outside the engine has."""

    object: str
    id: int
    owner: str
    bytes: int


class EngineStats(TypedDict):
    """Of Engine.stats()."""

    engine: EngineCounters
    cache: CacheStats
    store: DiskStoreStats | None
    leases: list[LeaseEntry]


class OwnerStats(TypedDict):
    """One owner in RegistryStats; kind is "inference", "request" or "training"."""

    owner: str
    kind: str
    tokens: int
    bytes: int
    last_access_us: int
    evictable: bool


class RegistryStats(TypedDict):
    """Of Registry.stats()."""

    budget_bytes: int
    bytes_used: int
    owners: list[OwnerStats]
