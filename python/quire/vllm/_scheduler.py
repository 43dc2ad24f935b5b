"""The scheduler's side: which blocks of a request are stored, and which are to be."""

import hashlib
import struct
from typing import Any

from quire._errors import UnsupportedError
from quire._warnings import Warnings
from quire._weights import identity_of
from quire.store import BlockStore, Outcome

from . import _identity
from ._events import Events
from ._plan import Introduction, Plan, Report, Transfer, log, namespace_of

_NULL_BLOCK = 0  # stands in a block table for what lies outside a window


class _Request:
    """A request's blocks, each named by a digest of all tokens up to its end."""

    def __init__(self, request: Any, block_tokens: int) -> None:
        self.request = request
        self.saved = 0  # blocks that were looked at to be saved
        self.first = 0  # block that a load begins with
        self.loaded_at = -1  # preemptions when it was loaded: a load that failed is not tried again
        self._block_tokens = block_tokens
        self._digests: list[bytes] = []
        salt = (request.cache_salt or "").encode()
        self._last = hashlib.blake2b(salt, digest_size=32).digest()

    def digests(self, count: int) -> list[bytes]:
        tokens = self.request.all_token_ids
        for block in range(len(self._digests), count):
            begin = block * self._block_tokens
            ids = tokens[begin:begin + self._block_tokens]
            self._last = hashlib.blake2b(self._last + struct.pack(f"<{len(ids)}q", *ids),
                                         digest_size=32).digest()
            self._digests.append(self._last)
        return self._digests[:count]


class Scheduler:
    """Not thread-safe, as vLLM's scheduler is not."""

    def __init__(self, config: Any, caches: Any, store: BlockStore) -> None:
        _identity.check(config, caches)
        self._config, self._caches, self._store = config, caches, store
        self._windows = [_identity.window_of(group.kv_cache_spec)
                         for group in caches.kv_cache_groups]
        self._block_tokens: int = caches.kv_cache_groups[0].kv_cache_spec.block_size
        self._identity = ""
        self._namespaces: list[str] = []  # of all workers
        self._requests: dict[str, _Request] = {}
        self._loads: list[tuple[str, list[Transfer]]] = []
        self._doubts_weights = False
        self._warnings = Warnings(log)
        events = config.kv_events_config
        self._events = None
        if events is not None and events.enable_kv_cache_events:
            self._events = Events(self._block_tokens,
                                  config.cache_config.prefix_match_unit or self._block_tokens,
                                  _identity.kinds_of(caches), self._stored)

    def meet(self, workers: dict[tuple[int, int], Introduction]) -> None:
        """Learns what decides the bytes of the workers; (pipeline rank, tensor rank) of each. K and
        V of one depend on the weights of all."""
        parallel = self._config.parallel_config
        expected = {(pipeline, tensor) for pipeline in range(parallel.pipeline_parallel_size)
                    for tensor in range(parallel.tensor_parallel_size)}
        if set(workers) != expected:
            raise UnsupportedError(f"quire.vllm heard of workers {sorted(workers)}, "
                                   f"not {sorted(expected)}")
        started_s = min(worker.started_s for worker in workers.values())
        facts, why_not = _identity.model_facts(self._config, self._caches, started_s)
        if why_not:
            log.warning("quire: %s, so what it holds may not be what was loaded. Nothing is "
                         "found or stored until the engine starts again", why_not)
            return
        self._identity = identity_of(
            [facts, *([list(rank), workers[rank].facts] for rank in sorted(workers))])
        self._namespaces = [namespace_of(self._identity, *rank) for rank in sorted(workers)]

    def add(self, request: Any) -> None:
        if _is_of_tokens(request):
            self._requests[request.request_id] = _Request(request, self._block_tokens)

    def remove(self, request: Any) -> None:
        self._requests.pop(request.request_id, None)

    def find(self, request: Any, computed_tokens: int) -> int:
        """Tokens behind `computed_tokens` that all workers have stored, in whole blocks. At least
        one token of a request is left to compute."""
        known = self._requests.get(request.request_id)
        if known is None or not self._identity or known.loaded_at == request.num_preemptions:
            return 0
        first = computed_tokens // self._block_tokens
        digests = known.digests((request.num_tokens - 1) // self._block_tokens)[first:]
        known.first = first
        if not digests:
            return 0
        with self._warnings.failing_softly("looking up blocks"):
            count = self._longest(self._stored(digests), first)
            if self._events is not None:
                self._events.follow(request, digests[:count], first)
            return count * self._block_tokens
        return 0

    def load(self, request: Any, block_ids: tuple[list[int], ...], tokens: int) -> None:
        """Plans to load so many tokens, behind those that `find` began with."""
        known = self._requests[request.request_id]
        known.loaded_at = request.num_preemptions
        end = known.first + tokens // self._block_tokens
        digests = known.digests(end)
        transfers = [Transfer(_key(digests[at], group), group, ids[at])
                     for group, ids in enumerate(block_ids)
                     for at in range(max(known.first, self._begin(group, end)), end)
                     if ids[at] != _NULL_BLOCK]
        self._loads.append((request.request_id, transfers))

    def plan(self, step: Any) -> Plan:
        """What the workers load from now on, and save when this step has ended."""
        plan = Plan(self._identity, self._loads, doubts_weights=self._doubts_weights)
        self._loads, self._doubts_weights = [], False
        for request_id, tokens in step.num_scheduled_tokens.items():
            known = self._requests.get(request_id)
            if known is not None and self._identity:
                plan.saves += self._saves_of(known, tokens, step.kv_connector_block_state)
        return plan

    def _saves_of(self, known: _Request, tokens: int, tables: Any) -> list[Transfer]:
        """Blocks that are whole when a step has computed so many tokens, and known: of tokens that
        are drawn in steps under way the ids come later."""
        request = known.request
        computed = min(request.num_computed_tokens + tokens, request.num_tokens)
        begin, known.saved = known.saved, max(known.saved, computed // self._block_tokens)
        if begin == known.saved:
            return []
        digests = known.digests(known.saved)
        if self._events is not None:
            self._events.follow(request, digests[begin:], begin)
        return [Transfer(_key(digests[at], group), group, ids[at])
                for group, ids in enumerate(tables.get_block_ids(request.request_id))
                for at in range(begin, min(known.saved, len(ids))) if ids[at] != _NULL_BLOCK]

    def hear(self, report: Report | None) -> None:
        """A worker's weights changed: blocks that the engine has computed may be of either."""
        if report is not None and self._identity:
            self._identity = ""
            if self._events is not None:
                self._events.forget_all()
            log.warning("quire: the model's weights were changed. Nothing is found or stored "
                         "until the engine starts again")

    def doubt(self) -> None:
        self._doubts_weights = True

    def events(self) -> list[Any]:
        """vLLM's KV events of what the store has, since the last call."""
        if self._events is not None:
            with self._warnings.failing_softly("looking up blocks"):
                return self._events.take()
        return []

    # -- Inside ------------------------------------------------------------------------------------

    def _begin(self, group: int, end: int) -> int:
        """The first block that a group's layers need once `end` blocks are computed."""
        window = self._windows[group]
        return max(0, end * self._block_tokens - window + 1) // self._block_tokens if window else 0

    def _stored(self, digests: list[bytes]) -> list[list[bool]]:
        """Of each group, which blocks all workers have."""
        keys = [_key(digest, group) for group in range(len(self._windows)) for digest in digests]
        batches = [self._store.submit_exists(keys, namespace=name) for name in self._namespaces]
        results = [self._store.wait(batch) for batch in batches]
        stored = [all(result.outcome == Outcome.OK for result in of_key)
                  for of_key in zip(*results)]
        return [stored[begin:begin + len(digests)] for begin in range(0, len(keys), len(digests))]

    def _longest(self, stored: list[list[bool]], first: int) -> int:
        """The most blocks with which every group has what it needs; `stored` begins at `first`."""
        runs = [_runs(of_group) for of_group in stored]
        for count in range(len(stored[0]), 0, -1):
            end = first + count
            if all(run[count - 1] >= min(count, end - self._begin(group, end))
                   for group, run in enumerate(runs)):
                return count
        return 0


def _runs(stored: list[bool]) -> list[int]:
    """For each block, how many up to it are stored without a gap."""
    runs, run = [], 0
    for is_stored in stored:
        run = run + 1 if is_stored else 0
        runs.append(run)
    return runs


def _key(digest: bytes, group: int) -> bytes:
    return digest + struct.pack("<H", group)


def _is_of_tokens(request: Any) -> bool:
    """Whether token ids alone say what a request's K and V are computed of. Adapters are known to
    vLLM by name, images by what their sender calls them, and what is streamed in may replace
    tokens."""
    return not (request.lora_request or request.mm_features or request.resumable or
                request.prompt_embeds is not None or request.pooling_params is not None)
