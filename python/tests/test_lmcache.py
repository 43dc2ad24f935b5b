"""quire.lmcache: the six methods that LMCache's native_plugin calls, and its adapter on them."""

import select
import threading

import pytest

import quire
from quire.lmcache import QuireStore


@pytest.fixture
def connector(tmp_path):
    made = QuireStore(str(tmp_path / "store"), namespace="weights", cap_bytes=32 << 20,
                      commit_interval_s=0.002)
    yield made
    made.close()


def drained(connector, count=1):
    """The next batches that end, as LMCache's thread takes them."""
    completions = []
    while len(completions) < count:
        assert select.select([connector.event_fd()], [], [], 10)[0], "nothing ended"
        completions += connector.drain_completions()
    return completions


def test_six_methods_and_delete(connector):
    keys = ["model@0@0@aa", "model@0@0@bb"]
    blocks = [memoryview(bytearray(b"a" * 5000)), memoryview(bytearray(b"b" * 70_000))]
    put = connector.submit_batch_set(keys, blocks)
    assert drained(connector) == [(put, True, "", None)]
    number = connector.submit_batch_exists(keys + ["model@0@0@cc"])
    assert drained(connector) == [(number, True, "", [True, True, False])]
    out = [memoryview(bytearray(5000)), memoryview(bytearray(70_000))]
    number = connector.submit_batch_get(keys, out)
    assert drained(connector) == [(number, True, "", [True, True])]
    assert out == blocks
    number = connector.submit_batch_delete([keys[0], "model@0@0@cc"])
    assert drained(connector) == [(number, True, "", [True, False])]
    number = connector.submit_batch_get(keys, out)
    assert drained(connector) == [(number, False, "1 of 2 blocks missed", [False, True])]
    assert connector.drain_completions() == []


def test_a_buffer_of_another_length_is_a_miss(connector):
    connector.submit_batch_set(["key"], [b"x" * 10_000])
    drained(connector)
    for length in (9_999, 10_001, 4_096, 20_000, 0):
        connector.submit_batch_get(["key"], [bytearray(length)])
        assert drained(connector)[0][1:] == (False, "1 of 1 blocks missed", [False])


def test_storing_again_counts_as_stored(connector):
    for _ in range(2):
        number = connector.submit_batch_set(["key"], [b"data"])
        assert drained(connector) == [(number, True, "", None)]


def test_a_batch_of_which_a_part_cannot_be_stored_failed(connector):
    number = connector.submit_batch_set(["key", "long"], [b"data", bytes(33 << 20)])
    assert drained(connector) == [
        (number, False, "1 of 2 blocks were not stored: too_large", None)]
    connector.submit_batch_exists(["key", "long"])
    assert drained(connector)[0][3] == [True, False]


def test_a_directory_may_be_encrypted(tmp_path):
    keys = tmp_path / "keys"
    keys.write_bytes(bytes(range(32)))
    keys.chmod(0o600)
    QuireStore(str(tmp_path / "store"), namespace="weights", keys=str(keys)).close()
    with pytest.raises(quire.InvalidArgumentError, match="it is encrypted"):
        QuireStore(str(tmp_path / "store"), namespace="weights")
    QuireStore(str(tmp_path / "store"), namespace="weights", keys=str(keys)).close()


def test_blocks_are_there_after_a_restart_in_their_namespace_only(tmp_path):
    for namespace, found in (("weights 1", False), ("weights 1", True), ("weights 2", False)):
        connector = QuireStore(str(tmp_path / "store"), cap_bytes=32 << 20, commit_interval_s=0.002,
                               namespace=namespace)
        out = bytearray(3000)
        connector.submit_batch_get(["key"], [out])
        assert drained(connector)[0][3] == [found]
        assert out == (b"x" * 3000 if found else bytes(3000))
        connector.submit_batch_set(["key"], [b"x" * 3000])
        drained(connector)
        connector.close()


def test_what_names_no_weights_is_refused(tmp_path):
    with pytest.raises(TypeError, match="namespace"):
        QuireStore(str(tmp_path / "store"))
    with pytest.raises(ValueError, match="namespace"):
        QuireStore(str(tmp_path / "store"), namespace=" ")
    assert not (tmp_path / "store").exists()


def test_one_thread_drains_what_others_submit(connector):
    numbers, ends = [], []
    lock = threading.Lock()

    def work(thread):
        for i in range(40):
            data = bytes([thread]) * (1000 + i)
            with lock:
                numbers.append(connector.submit_batch_set([f"{thread} {i}"], [data]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    ends = drained(connector, 160)
    for thread in threads:
        thread.join()
    assert sorted(end[0] for end in ends) == sorted(numbers)
    assert all(end[1] for end in ends)


def test_lmcaches_adapter_stores_looks_up_loads_and_deletes(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("lmcache.lmcache_native", reason="LMCache is not installed")
    import lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter as plugin
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    def block(fill):
        data = torch.full((50_000,), fill, dtype=torch.float32)
        return TensorMemoryObj(data, MemoryObjMetadata(
            shape=data.shape, dtype=data.dtype, address=0, phy_size=200_000,
            fmt=MemoryFormat.KV_2LTD, ref_count=1), parent_allocator=None)

    def wait(descriptor):
        assert select.select([descriptor], [], [], 10)[0]

    config = plugin.NativePluginL2AdapterConfig.from_dict({
        "type": "native_plugin", "module_path": "quire.lmcache", "class_name": "QuireStore",
        "adapter_params": {"directory": str(tmp_path / "store"), "cap_bytes": 32 << 20,
                           "namespace": "weights", "commit_interval_s": 0.002}})
    keys = [ObjectKey(chunk_hash=ObjectKey.IntHash2Bytes(i), model_name="m/n", kv_rank=0)
            for i in range(3)]
    for again in (False, True):
        adapter = plugin._create_native_plugin_l2_adapter(config)
        try:
            if not again:
                stored = [block(1.0), block(2.0)]
                task = adapter.submit_store_task(keys[:2], stored)
                wait(adapter.get_store_event_fd())
                assert adapter.pop_completed_store_tasks()[task].is_successful()
            task = adapter.submit_lookup_and_lock_task(keys, {})
            wait(adapter.get_lookup_and_lock_event_fd())
            found = adapter.query_lookup_and_lock_result(task)
            assert [found.test(i) for i in range(3)] == [True, True, False]
            loaded = [block(0.0), block(0.0), block(0.0)]
            task = adapter.submit_load_task(keys, loaded)
            wait(adapter.get_load_event_fd())
            found = adapter.query_load_result(task)
            assert [found.test(i) for i in range(3)] == [True, True, False]
            assert [float(b.tensor.flatten()[-1]) for b in loaded] == [1.0, 2.0, 0.0]
        finally:
            adapter.close()
