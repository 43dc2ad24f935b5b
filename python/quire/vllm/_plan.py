"""What scheduler and workers tell each other, and the store that they share."""

import logging
import os
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from quire._errors import InvalidArgumentError
from quire.store import ENCRYPTION, BlockStore

log = logging.getLogger("quire.vllm")

_OPTIONS = {"store", "cap_bytes", *ENCRYPTION}


class Transfer(NamedTuple):
    """A block between the store and the engine: one group's part of a run of tokens."""

    key: bytes
    group: int
    block_id: int


@dataclass
class Plan(KVConnectorMetadata):  # type: ignore[misc]
    """What the workers do in one step."""

    identity: str  # "": nothing, as the scheduler does not know all workers
    loads: list[tuple[str, list[Transfer]]] = field(default_factory=list)  # by request
    saves: list[Transfer] = field(default_factory=list)
    doubts_weights: bool = False


@dataclass
class Introduction(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """What decides a worker's bytes, told to the scheduler before the first request."""

    facts: str
    started_s: float  # when the process began, before it read the weights


@dataclass
class Report(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """A worker found that its weights are others than those that were loaded."""

    def aggregate(self, other: "Report") -> "Report":
        return self


def namespace_of(identity: str, pipeline_rank: int, tensor_rank: int) -> str:
    return f"vllm {identity} pp{pipeline_rank} tp{tensor_rank}"


def open_store(vllm_config: Any) -> BlockStore:
    """The store that the configuration names. Scheduler and worker of one process share it."""
    transfer = vllm_config.kv_transfer_config
    options = transfer.kv_connector_extra_config
    unknown = set(options) - _OPTIONS
    if unknown:
        raise InvalidArgumentError(f"kv_connector_extra_config: {sorted(unknown)[0]} is not known")
    if not options.get("store"):
        raise InvalidArgumentError(
            'kv_connector_extra_config names no store: {"store": "unix:PATH"}, or a directory')
    if transfer.kv_load_failure_policy != "recompute":
        raise InvalidArgumentError(
            'kv_load_failure_policy must be "recompute": a damaged block would end its request')
    name = os.fspath(options["store"])
    encryption = {each: options[each] for each in ENCRYPTION if each in options}
    if name.startswith("unix:"):
        return BlockStore(name, **encryption)
    if vllm_config.parallel_config.distributed_executor_backend != "uni":
        raise InvalidArgumentError(
            f"store: {name!r} is a directory, which one process owns, but the scheduler and the "
            "workers are several. Run `quire store serve DIR --socket PATH` and name unix:PATH")
    path = os.path.realpath(name)
    store = _opened.get(path)
    if store is None:
        store = _opened[path] = BlockStore(path, cap_bytes=options.get("cap_bytes", 8 << 30),
                                           accepts_puts=True, **encryption)
    return store


_opened: weakref.WeakValueDictionary[str, BlockStore] = weakref.WeakValueDictionary()
