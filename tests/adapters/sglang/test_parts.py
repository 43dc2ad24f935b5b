"""Parts of quire.sglang without an engine, on SGLang's own host pools: records of any layout, MLA's too,
which ranks and pools share them, what is refused by name, and a store that fails."""

import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed")

import cpu
import torch
from pools import LAYERS, PAGE, TOKENS, config, mha_pool, mla_pool, rows_of, runner
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKOnlyPoolHost

import quire
from quire.sglang import QuireHiCacheStorage, _identity
from quire.store import BlockStore

KEYS = [f"{number:064x}" for number in range(5)]
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
POOLS = [*itertools.product([mha_pool], LAYOUTS), *itertools.product([mla_pool], LAYOUTS[:3])]


@pytest.fixture(name="engine")
def made_engine(tmp_path, monkeypatch):
    """Makes a storage as one rank of an engine does, on one store for all."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    store = BlockStore(tmp_path / "store", cap_bytes=1 << 26, accepts_puts=True)
    monkeypatch.setattr("quire.sglang._open_store", lambda *_: store)
    monkeypatch.setattr("quire.sglang.process_start_s", lambda: 2e10)

    def make(pool, folder=tmp_path / "model", **changes):
        model_runner = runner(folder)
        monkeypatch.setattr(_identity, "model_runner", lambda: model_runner)
        storage = QuireHiCacheStorage(config(**changes), {})
        storage.register_mem_pool_host(pool)
        return storage

    yield make
    store.close()


def fill(pool):
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape))
    return pool


@pytest.mark.parametrize(("make", "layout"), POOLS)
def test_pages_come_back_where_they_are_wanted_and_touch_no_others(engine, make, layout):
    pool = fill(make(layout))
    storage = engine(pool)
    before = [pool.get_data_page(page * PAGE).clone() for page in range(TOKENS // PAGE)]
    assert storage.batch_set_v1(KEYS[:3], rows_of([3, 0, 7])) == [True] * 3
    assert storage.batch_exists(KEYS) == 3
    assert storage.batch_get_v1(KEYS[:4], rows_of([5, 6, 1, 2])) == [True] * 3 + [False]
    came_from = {5: 3, 6: 0, 1: 7}
    for page in range(TOKENS // PAGE):
        if page != 2:  # the page that is not there may hold anything
            assert torch.equal(pool.get_data_page(page * PAGE), before[came_from.get(page, page)])


@pytest.mark.parametrize(("writer", "reader"), itertools.product(LAYOUTS, LAYOUTS))
def test_only_layouts_with_the_same_bytes_share(engine, writer, reader):
    source, target = fill(mha_pool(writer)), mha_pool(reader)
    assert engine(source).batch_set_v1(KEYS[:1], rows_of([2])) == [True]
    is_same = writer == reader or {writer, reader} == {"layer_first", "page_first_direct"}
    assert engine(target).batch_get_v1(KEYS[:1], rows_of([4])) == [is_same]
    if is_same:
        for layer in range(LAYERS):
            assert torch.equal(cpu.rows(target, layer)[:, 4], cpu.rows(source, layer)[:, 2])


def test_ranks_of_mla_share_and_others_do_not(engine):
    for make, is_mla in ((mha_pool, False), (mla_pool, True)):
        ranks = [engine(fill(make("page_first")), tp_rank=rank, tp_size=2, is_mla_model=is_mla)
                 for rank in (0, 1)]
        ranks[0].batch_set_v1(KEYS[:1], rows_of([0]))
        assert ranks[0].exists(KEYS[0])
        assert ranks[1].exists(KEYS[0]) == is_mla
        stage = engine(fill(make("page_first")), tp_size=2, pp_rank=1, is_mla_model=is_mla)
        assert not stage.exists(KEYS[0])


@pytest.mark.parametrize("make", [mha_pool, mla_pool])
@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_tensors_and_rows_of_the_pool_are_the_same_pages(engine, make, layout):
    pool = fill(make(layout))
    storage = engine(pool)
    storage.batch_set_v1(KEYS[:1], rows_of([2]))
    page = pool.get_data_page(2 * PAGE)
    assert torch.equal(storage.get(KEYS[0]), page)
    target = pool.get_dummy_flat_data_page()
    assert storage.get(KEYS[0], target) is target
    assert torch.equal(target, page)
    assert storage.set(KEYS[1], page) and storage.set(KEYS[2], target_location=page)
    assert storage.batch_set(KEYS[3:], [page, page])
    assert storage.batch_get_v1(KEYS[1:2], rows_of([6])) == [True]
    assert torch.equal(pool.get_data_page(6 * PAGE), page)
    assert storage.batch_get([KEYS[3], "none"])[1] is None
    storage.clear()
    assert storage.get(KEYS[0]) is None
    assert storage.batch_exists(KEYS) == 0


def test_a_page_of_which_a_part_is_gone_is_not_there(engine):
    storage = engine(fill(mha_pool("layer_first")))
    storage.batch_set_v1(KEYS, rows_of(range(5)))
    assert storage._store.remove(f"{KEYS[2]}.1", namespace=storage._namespace)
    assert storage.batch_exists(KEYS) == 2
    assert storage.batch_get_v1(KEYS, rows_of(range(5, 10))) == [True, True, False, True, True]
    assert storage.batch_set_v1(KEYS, rows_of(range(5))) == [True] * 5
    assert storage.batch_exists(KEYS) == 5


def test_many_pieces_and_what_is_there_already(engine, monkeypatch):
    pool = fill(mha_pool("layer_first"))
    storage = engine(pool)
    monkeypatch.setattr("quire.sglang._PIECE_BYTES", 1)  # a record each
    keys = [f"{number:064x}" for number in range(16)]
    assert storage.batch_set_v1(keys[4:6], rows_of([4, 5])) == [True] * 2
    assert storage.batch_set_v1(keys, rows_of(range(16))) == [True] * 16
    before = pool.kv_buffer.clone()
    pool.kv_buffer.zero_()
    assert storage.batch_get_v1(keys, rows_of(range(16))) == [True] * 16
    assert torch.equal(pool.kv_buffer[:, :, :TOKENS], before[:, :, :TOKENS])


def test_other_weights_length_or_versions_are_others(engine, tmp_path, monkeypatch):
    first = engine(mha_pool("layer_first"))
    assert engine(mha_pool("layer_first"))._namespace == first._namespace
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"weight2")
    names = {first._namespace, engine(mha_pool("layer_first"), other)._namespace,
             engine(mha_pool("layer_first", torch.bfloat16))._namespace,
             engine(mha_pool("layer_first"), tp_size=2)._namespace}
    (other / "model.safetensors").write_bytes(b"weights")
    assert engine(mha_pool("layer_first"), other)._namespace == first._namespace
    (other / "modeling.py").write_text("")
    names.add(engine(mha_pool("layer_first"), other)._namespace)
    monkeypatch.setattr("sglang.__version__", "0.5.24")
    names.add(engine(mha_pool("layer_first"))._namespace)
    assert len(names) == 6


def test_weights_that_change_end_the_use_of_the_store(engine):
    storage = engine(fill(mha_pool("layer_first")))
    assert storage.batch_set_v1(KEYS[:1], rows_of([0])) == [True]
    storage._runner.model.weight.data.mul_(1.001)
    assert storage.batch_exists(KEYS[:1]) == 0
    assert storage.batch_get_v1(KEYS[:1], rows_of([0])) == [False]
    assert storage.batch_set_v1(KEYS[1:2], rows_of([0])) == [False]
    assert engine(mha_pool("layer_first")).batch_exists(KEYS) == 1


def test_files_that_are_younger_than_the_process_name_nothing(engine, monkeypatch):
    monkeypatch.setattr("quire.sglang.process_start_s", lambda: 0)
    storage = engine(fill(mha_pool("layer_first")))
    assert storage.batch_set_v1(KEYS[:1], rows_of([0])) == [False]
    assert storage.batch_exists(KEYS[:1]) == 0


def test_a_store_that_fails_costs_hits_alone(engine):
    storage = engine(fill(mha_pool("layer_first")))
    storage.batch_set_v1(KEYS[:2], rows_of([0, 1]))
    storage._store.close()
    assert storage.batch_exists(KEYS[:2]) == 0
    assert storage.batch_get_v1(KEYS[:2], rows_of([2, 3])) == [False, False]
    assert storage.batch_set_v1(KEYS[2:3], rows_of([0])) == [False]
    assert storage.get(KEYS[0]) is None
    storage.clear()
    storage.close()


@pytest.mark.parametrize(("changes", "what"), [
    ({"speculative_algorithm": "EAGLE"}, "speculative decoding"),
    ({"enable_lora": True}, "LoRA"), ({"lora_paths": ["a"]}, "LoRA"),
    ({"is_multimodal": True}, "images"), ({"is_generation": False}, "does not generate"),
    ({"nnodes": 2}, "several machines"), ({"disaggregation_mode": "decode"}, "another engine"),
    ({"load_format": "dummy"}, "load format dummy"), ({"forward_hooks": [{}]}, "hooks"),
    ({"enable_memory_saver": True}, "leave memory"),
])
def test_engines_that_cannot_be_kept_are_refused_by_name(changes, what, tmp_path):
    with pytest.raises(quire.UnsupportedError, match=what):
        _identity.check(config(), runner(tmp_path, **changes))
    _identity.check(config(), runner(tmp_path))


@pytest.mark.parametrize(("changes", "what"), [
    ({"attn_cp_size": 2}, "context parallelism"), ({"tp_lcm_size": 4}, "tp_lcm_size")])
def test_ranks_that_cannot_be_kept_are_refused_by_name(changes, what, tmp_path):
    with pytest.raises(quire.UnsupportedError, match=what):
        _identity.check(config(**changes), runner(tmp_path))


def test_pools_that_cannot_be_kept_are_refused_by_name(engine, tmp_path):
    with pytest.raises(quire.UnsupportedError, match="MHATokenToKOnlyPoolHost"):
        engine(object.__new__(MHATokenToKOnlyPoolHost))
    with pytest.raises(quire.UnsupportedError, match="quantized K and V"):
        engine(mha_pool("layer_first", torch.float8_e4m3fn))
    storage = engine(mha_pool("layer_first"))
    storage.register_mem_host_pool_v2(storage.mem_pool_host, PoolName.KV)
    with pytest.raises(quire.UnsupportedError, match="second cache"):
        storage.register_mem_host_pool_v2(storage.mem_pool_host, PoolName.SWA)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(quire.UnsupportedError, match="no weights"):
        engine(mha_pool("layer_first"), empty)


@pytest.mark.parametrize(("options", "ranks", "what"), [
    ({}, 1, "names no store"), ({"store": "a", "cap_byte": 1}, 1, "cap_byte is not known"),
    ({"store": "a"}, 2, "quire store serve")])
def test_a_store_that_cannot_be_used_is_refused_by_name(options, ranks, what):
    from quire.sglang import _open_store
    args = SimpleNamespace(tp_size=ranks, pp_size=1, dp_size=1)
    with pytest.raises(quire.InvalidArgumentError, match=what):
        _open_store(options, args)
    with pytest.raises(quire.NotFoundError):
        _open_store({"store": "unix:/nowhere", "interface_v1": 1}, args)


def test_a_directory_may_be_encrypted(tmp_path):
    from quire.sglang import _open_store
    keys = tmp_path / "keys"
    keys.write_bytes(bytes(range(32)))
    keys.chmod(0o600)
    args = SimpleNamespace(tp_size=1, pp_size=1, dp_size=1)
    options = {"store": str(tmp_path / "store"), "keys": str(keys)}
    _open_store(options, args).close()
    with pytest.raises(quire.InvalidArgumentError, match="it is encrypted"):
        BlockStore(tmp_path / "store")
    _open_store(options, args).close()
    with pytest.raises(quire.InvalidArgumentError, match="the process that serves it has them"):
        _open_store(options | {"store": "unix:/nowhere"}, args)
