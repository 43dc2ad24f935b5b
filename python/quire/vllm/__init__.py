"""vLLM's KV connector on a quire.store.BlockStore: blocks of K and V as the engine lays them out,
found again after a restart, in other engines and by other workers. docs/adapters/vllm.md.

    KVTransferConfig(kv_connector="QuireConnector", kv_connector_module_path="quire.vllm",
                     kv_role="kv_both", kv_load_failure_policy="recompute",
                     kv_connector_extra_config={"store": "unix:/run/quire/store"})
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ._plan import open_store
from ._scheduler import Scheduler
from ._worker import Worker

__all__ = ["QuireConnector"]


class QuireConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """What KVTransferConfig names. vLLM makes one beside its scheduler and one in each worker.

    kv_connector_extra_config: `store`, "unix:PATH" of a store that is served, or a directory where
    scheduler and worker are one process; `cap_bytes` of all files of such a directory (8 GiB).

    A record is a block of all layers of one cache group and one worker. Loads run beside the steps
    of other requests, and a request waits for its own. Saves are copied when a step has ended, and
    written behind it. Nothing happens layer by layer: a layer of a block is a small record, and
    would be looked up as often as there are layers.

    Raises, when the engine starts: UnsupportedError what cannot be kept, by its name;
    InvalidArgumentError the configuration; what BlockStore raises. Later a store that fails costs
    hits, never an answer.
    """

    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        store = open_store(vllm_config)
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(vllm_config, kv_cache_config, store)
        else:
            self._worker = Worker(vllm_config, kv_cache_config, store)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a block that is not saved is a miss

    # -- Scheduler ---------------------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        assert self._scheduler is not None
        self._scheduler.meet(metadata)

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.add(request)

    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int) -> tuple[int, bool]:
        assert self._scheduler is not None
        found = self._scheduler.find(request, num_computed_tokens)
        return found, found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        if num_external_tokens > 0:
            self._scheduler.load(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        assert self._scheduler is not None
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.hear(connector_output.kv_connector_worker_meta)

    def take_events(self) -> Any:
        assert self._scheduler is not None
        return self._scheduler.events()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Any,
                                    block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        assert self._scheduler is not None
        self._scheduler.remove(request)
        return False, None

    def reset_cache(self) -> None:
        """Forgets nothing that is stored, which belongs to these weights for good. vLLM calls this
        when weights were changed, so they are looked at again."""
        assert self._scheduler is not None
        self._scheduler.doubt()

    # -- Worker ------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        assert self._worker is not None
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> Any:
        assert self._worker is not None
        return self._worker.introduce()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker is not None
        self._worker.load(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        assert self._worker is not None
        self._worker.save(self._get_connector_metadata())

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        assert self._worker is not None
        return self._worker.results()

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._worker is not None
        return self._worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> Any:
        assert self._worker is not None
        return self._worker.report()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
