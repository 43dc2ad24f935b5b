"""A worker's side: copies blocks between the engine's caches and the store."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.v1.kv_cache_interface import group_kernel_blocks

from quire._errors import Error
from quire._warnings import Warnings
from quire._weights import process_start_s
from quire.store import BlockStore, DeadlineError, Outcome, Result

from . import _identity
from ._plan import Introduction, Plan, Report, Transfer, log, namespace_of

_PIECE_BYTES = 32 << 20  # that one call of the store reads or writes, and at least one block
_PIECES_READ_MAX = 4  # at once
_WRITTEN_BYTES_MAX = 256 << 20  # of copies that wait to be written; a step waits beyond


class _Blocks:
    """The blocks of one cache group: a record is what its layers have of a block, one after the
    other, without padding between them."""

    def __init__(self, layers: list[torch.Tensor]) -> None:
        """layers: [blocks, ...] of each layer."""
        self._layers = layers
        self._sizes = [layer[0].numel() * layer.element_size() for layer in layers]
        self.bytes = sum(self._sizes)

    def read(self, block: int, record: torch.Tensor) -> None:
        """record: [bytes], in host memory"""
        for layer, part in zip(self._layers, record.split(self._sizes)):
            part.view(layer.dtype).view(layer.shape[1:]).copy_(layer[block])

    def write(self, block: int, record: torch.Tensor) -> None:
        for layer, part in zip(self._layers, record.split(self._sizes)):
            layer[block].copy_(part.view(layer.dtype).view(layer.shape[1:]))


class _Load:
    """What is left to read for one request."""

    def __init__(self, request_id: str, pieces: Iterator[list[Transfer]], namespace: str) -> None:
        self.request_id, self.pieces, self.namespace = request_id, pieces, namespace
        self.has_failed = False


class _Read(NamedTuple):
    load: _Load
    transfers: list[Transfer]
    records: list[torch.Tensor]
    batch: int


class _Write(NamedTuple):
    keys: list[bytes]
    bytes: int
    batch: int


class Worker:
    """Not thread-safe: vLLM calls it in each step, from one thread."""

    def __init__(self, config: Any, caches: Any, store: BlockStore) -> None:
        self._config, self._caches, self._store = config, caches, store
        self._rank = get_pp_group().rank_in_group, get_tp_group().rank_in_group
        self._watch = _identity.watch(config)
        self._weights_changed = False
        self._tensors: dict[str, torch.Tensor] = {}
        self._groups: list[_Blocks] = []
        self._loads: deque[_Load] = deque()
        self._reads: deque[_Read] = deque()
        self._writes: deque[_Write] = deque()
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._warnings = Warnings(log)
        # vLLM takes failures by block for one group alone. Those behind a block that failed are
        # computed with what is before it, which a window has partly left.
        windows = [_identity.window_of(group.kv_cache_spec) for group in caches.kv_cache_groups]
        self._fails_by_block = windows == [None]

    def register(self, tensors: dict[str, torch.Tensor]) -> None:
        """tensors: [blocks, ...] of each layer; a block of several kernel blocks lies together."""
        self._tensors = tensors
        for group in self._caches.kv_cache_groups:
            layers = {tensor.data_ptr(): tensor for name, tensor in tensors.items()
                      if name in group.layer_names}  # some layers use the cache of another
            self._groups.append(_Blocks([group_kernel_blocks(tensor, self._caches.num_blocks)
                                         for tensor in layers.values()]))

    def introduce(self) -> Introduction:
        self._watch.remember()
        return Introduction(_identity.worker_facts(self._config, self._tensors),
                            process_start_s())

    def load(self, plan: Plan) -> None:
        """Begins to load; `results` tells what has ended."""
        if plan.loads or plan.saves or plan.doubts_weights or self._loads or self._reads:
            self._weights_changed = self._weights_changed or self._watch.changed(
                thorough=plan.doubts_weights)
        for request_id, transfers in plan.loads:
            self._loads.append(_Load(request_id, self._pieces(transfers),
                                     namespace_of(plan.identity, *self._rank)))
        self._begin_reads()

    def results(self) -> KVConnectorTransferResults:
        """Takes the requests whose loads have ended."""
        while self._reads:
            read = self._reads[0]
            try:
                results = self._store.wait(read.batch, 0)
            except DeadlineError:
                break
            except Error as error:
                self._warnings.tell("loading blocks", error)
                results = [Result(Outcome.IO, 0)] * len(read.transfers)
            self._reads.popleft()
            self._take(read, results)
            self._begin_reads()
        ended = KVConnectorTransferResults(finished_recving=self._finished,
                                           failed_recving=self._failed)
        self._finished, self._failed = set(), set()
        return ended

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def save(self, plan: Plan) -> None:
        """Copies what the store has not, and writes it behind the steps that follow."""
        self._reap_writes(0)
        if self._weights_changed or not plan.saves:
            return
        namespace = namespace_of(plan.identity, *self._rank)
        under_way = {key for write in self._writes for key in write.keys}
        wanted = [one for one in plan.saves if one.key not in under_way]
        with self._warnings.failing_softly("saving blocks"):
            found = self._store.wait(self._store.submit_exists(
                [one.key for one in wanted], namespace=namespace))
            missing = {one.key: one for one, result in zip(wanted, found)  # some requests share
                       if result.outcome == Outcome.ABSENT}
            for piece in self._pieces(list(missing.values())):
                keys, records = [one.key for one in piece], self._records(piece)
                for one, record in zip(piece, records):
                    self._groups[one.group].read(one.block_id, record)
                size = sum(record.nbytes for record in records)
                self._reap_writes(size)
                self._writes.append(_Write(keys, size, self._store.submit_put(
                    keys, records, namespace=namespace)))

    def report(self) -> Report | None:
        return Report() if self._weights_changed else None

    def close(self) -> None:
        """Waits until what was saved is stored."""
        self._reap_writes(_WRITTEN_BYTES_MAX)
        with self._warnings.failing_softly("making blocks durable"):
            self._store.flush()

    # -- Inside ------------------------------------------------------------------------------------

    def _pieces(self, transfers: list[Transfer]) -> Iterator[list[Transfer]]:
        piece: list[Transfer] = []
        size = 0
        for one in transfers:
            size += self._groups[one.group].bytes
            if piece and size > _PIECE_BYTES:
                yield piece
                piece, size = [], self._groups[one.group].bytes
            piece.append(one)
        if piece:
            yield piece

    def _records(self, piece: list[Transfer]) -> list[torch.Tensor]:
        sizes = [self._groups[one.group].bytes for one in piece]
        return list(torch.empty(sum(sizes), dtype=torch.uint8).split(sizes))

    def _begin_reads(self) -> None:
        while self._loads and len(self._reads) < _PIECES_READ_MAX:
            load = self._loads[0]
            piece = None if load.has_failed else next(load.pieces, None)
            if piece is None:
                self._loads.popleft()
                self._end_if_done(load)
                continue
            if self._weights_changed:
                self._fail(load, piece[0])
                continue
            records = self._records(piece)
            try:
                batch = self._store.submit_get([one.key for one in piece], records,
                                               namespace=load.namespace)
            except Error as error:
                self._warnings.tell("loading blocks", error)
                self._fail(load, piece[0])
                continue
            self._reads.append(_Read(load, piece, records, batch))

    def _take(self, read: _Read, results: list[Result]) -> None:
        for one, record, result in zip(read.transfers, read.records, results):
            if read.load.has_failed or self._weights_changed:
                self._fail(read.load, one)
            elif result.outcome == Outcome.OK and result.length == record.nbytes:
                self._groups[one.group].write(one.block_id, record)
            else:
                self._fail(read.load, one)
                if result.outcome in (Outcome.OK, Outcome.TOO_SMALL):  # it is none of ours
                    with self._warnings.failing_softly("removing a foreign block"):
                        self._store.remove(one.key, namespace=read.load.namespace)
        self._end_if_done(read.load)

    def _fail(self, load: _Load, one: Transfer) -> None:
        load.has_failed = True  # what lies behind is computed, too
        if self._fails_by_block:
            self._failed_blocks.add(one.block_id)
        else:
            self._failed.add(load.request_id)

    def _end_if_done(self, load: _Load) -> None:
        if load not in self._loads and all(read.load is not load for read in self._reads):
            self._finished.add(load.request_id)

    def _reap_writes(self, more_bytes: int) -> None:
        """Takes the writes that have ended, and waits for some if there were too many bytes."""
        while self._writes:
            write = self._writes[0]
            is_too_much = more_bytes + sum(one.bytes for one in self._writes) > _WRITTEN_BYTES_MAX
            try:
                results = self._store.wait(write.batch, None if is_too_much else 0)
            except DeadlineError:
                return
            except Error as error:
                self._warnings.tell("saving blocks", error)
                results = []
            self._writes.popleft()
            for result in results:
                if result.outcome not in (Outcome.OK, Outcome.PRESENT):
                    self._warnings.tell("saving blocks", result.outcome.name.lower())
