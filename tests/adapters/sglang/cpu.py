"""What SGLang's hierarchical cache lacks on a machine without an accelerator: copies between its
caches and the host's pool (kernels of devices), page-locking, and methods of torch.cpu's streams."""

import torch
from sglang.srt.mem_cache.pool_host import common
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost


def rows(pool, layer):
    """K and V of a layer in the host's pool, whatever its layout: [2, pages, page, heads, values]."""
    data = pool.kv_buffer
    if pool.layout == "layer_first":
        return data[:, layer].unflatten(1, (-1, pool.page_size))
    if pool.layout == "page_first":
        return data[:, :, layer].unflatten(1, (-1, pool.page_size))
    if pool.layout == "page_first_direct":
        return data[:, :, layer]
    return data[..., layer, :].transpose(2, 3)  # page_head


def load(self, device_pool, host_indices, device_indices, layer_id, io_backend, *, is_draft=False):
    at = host_indices // self.page_size, host_indices % self.page_size
    key, value = rows(self, layer_id)
    self.device_k_buffers[layer_id][device_indices] = key[at]
    self.device_v_buffers[layer_id][device_indices] = value[at]


def back_up(self, device_pool, host_indices, device_indices, io_backend):
    at = host_indices // self.page_size, host_indices % self.page_size
    for layer in range(self.layer_num):
        key, value = rows(self, layer)
        key[at] = self.device_k_buffers[layer][device_indices]
        value[at] = self.device_v_buffers[layer][device_indices]


def empty_page(self):
    return torch.zeros(self.get_data_page(0).shape, dtype=self.dtype)


MHATokenToKVPoolHost.load_to_device_per_layer = load
MHATokenToKVPoolHost.backup_from_device_all_layer = back_up
MHATokenToKVPoolHost.get_dummy_flat_data_page = empty_page
common._cuda_host_register = lambda *_: None
for name in ("synchronize", "wait_event"):
    setattr(torch.cpu.Stream, name, lambda self, *_: None)
for name in ("synchronize", "query", "record", "wait", "elapsed_time"):
    setattr(torch.cpu.Event, name, lambda self, *_: True)
