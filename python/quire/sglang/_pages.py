"""Where the pages of SGLang's host pool lie, and in which order a page's bytes are."""

from typing import Any

import torch
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

from quire._errors import UnsupportedError

# Pages of two of the layouts have the same bytes.
_ORDERS = {"layer_first": "layers tokens heads", "page_first_direct": "layers tokens heads",
           "page_first": "tokens layers heads", "page_head": "heads tokens layers"}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Pages:
    """A page is one or two parts: K and V of all layers, or MLA's latents. Each is a record, so
    that it goes between the store and the pool without a copy where a page lies in one piece."""

    def __init__(self, pool: Any) -> None:
        """Raises UnsupportedError, naming what cannot be kept."""
        if type(pool) not in (MHATokenToKVPoolHost, MLATokenToKVPoolHost):
            raise UnsupportedError(f"quire.sglang does not keep caches of {type(pool).__name__}")
        if pool.layout not in _ORDERS:
            raise UnsupportedError(f"quire.sglang does not keep the layout {pool.layout}")
        if pool.dtype not in _DTYPES:
            raise UnsupportedError(f"quire.sglang does not keep quantized K and V ({pool.dtype})")
        self._pool = pool
        self._has_k_and_v = type(pool) is MHATokenToKVPoolHost
        self.tokens: int = pool.page_size
        parts = self.parts(0)
        self.part_count = len(parts)
        self.part_bytes = parts[0].numel() * parts[0].element_size()

    def parts(self, index: int) -> list[torch.Tensor]:
        """Views of the page that begins with row `index` of the pool."""
        page = self._pool.get_data_page(index, flat=False)
        return list(page) if self._has_k_and_v else [page]

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a page whose parts lie one behind the other."""
        return list(flat.view(-1).chunk(self.part_count))

    def facts(self) -> dict[str, Any]:
        """What decides the meaning of a page's bytes."""
        pool = self._pool
        width = [pool.head_num, pool.head_dim] if self._has_k_and_v else [pool.kv_cache_dim]
        return {"kind": "K and V" if self._has_k_and_v else "latents", "dtype": str(pool.dtype),
                "order": _ORDERS[pool.layout], "tokens": pool.page_size, "width": width,
                "layers": [pool.start_layer, pool.layer_num]}
