"""SGLang with quire.sglang: the same greedy tokens without a store, on a miss, on a hit, after a
restart, with records that are damaged, cut off, missing or foreign; what another model finds; the cap."""

import importlib.util
import os
import shutil
import time

import pytest
from world import Engine, make_model  # first: it says where the next is
from engine_processes import AGED_S, BINARY, CAP, Owner, bytes_of_files, harm, prompt, recorded_keys

if importlib.util.find_spec("sglang") is None:  # its import takes as long as an engine's start
    pytest.skip("SGLang is not installed", allow_module_level=True)

HIT = 192  # whole pages of 16 of a prompt's 200 tokens
SHARED = 144  # of the 150 that prompts share
LAYOUTS = {"layer_first": "direct", "page_first": "kernel", "page_first_direct": "direct"}


def ask_once(model, store, *prompts, **options):
    with Engine(model, store, **options) as engine:
        return engine.ask(*prompts)


def layout(name):
    return {"hicache_mem_layout": name, "hicache_io_backend": LAYOUTS[name]}


@pytest.fixture(scope="module", name="folder")
def made_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module", name="model")
def made_model(folder):
    model = make_model(folder / "model")
    time.sleep(AGED_S)
    return model


@pytest.fixture(scope="module", name="tokens")
def computed(model):
    """Of prompts 0 to 7, without a store."""
    tokens = ask_once(model, "none", *map(prompt, range(8)))["tokens"]
    assert len({tuple(answer) for answer in tokens}) == 8
    assert all(len(set(answer)) > 10 for answer in tokens)
    return tokens


@pytest.fixture(scope="module", name="stored")
def made_store(folder, model, tokens):
    """A store that has prompt 0; folder / "keys" names its records."""
    with Engine(model, folder / "stored", keys=str(folder / "keys")) as engine:
        engine.ask_until_stored((tokens[:1], [HIT]), prompt())
    return folder / "stored"


@pytest.fixture(name="store")
def copied_store(stored, tmp_path):
    return shutil.copytree(stored, tmp_path / "store")


@pytest.mark.parametrize(("name", "interface_v1", "dtype"), [
    ("layer_first", 1, "float32"), ("page_first", 1, "float32"),
    ("page_first_direct", 1, "float32"), ("layer_first", 0, "float32"),
    ("layer_first", 1, "bfloat16")])
def test_the_same_tokens_from_a_miss_a_hit_and_another_process(model, tmp_path, name, interface_v1,
                                                               dtype):
    options = layout(name) | {"interface_v1": interface_v1, "dtype": dtype}
    plain = ask_once(model, "none", prompt(), prompt(5), dtype=dtype)["tokens"]
    with Engine(model, tmp_path / "store", **options) as engine:
        answer = engine.ask(prompt())
        assert (answer["tokens"], answer["cached"]) == (plain[:1], [0])
        engine.ask_until_stored((plain[:1], [HIT]), prompt())
    with Engine(model, tmp_path / "store", **options) as engine:
        answer = engine.ask(prompt())
        assert (answer["tokens"], answer["stored"]) == (plain[:1], [HIT]), "after a restart"
        engine.flush()
        answer = engine.ask(prompt(5))
        assert (answer["tokens"], answer["stored"]) == (plain[1:], [SHARED])


def test_layouts_with_the_same_bytes_share_and_others_do_not(model, tokens, store):
    """SGLang's own keys have no layout: a store that trusts them gives wrong tokens here."""
    for name, stored in (("page_first_direct", HIT), ("page_first", 0), ("layer_first", HIT)):
        answer = ask_once(model, store, prompt(), **layout(name))
        assert (answer["tokens"], answer["stored"]) == (tokens[:1], [stored]), name


def test_both_interfaces_have_the_same_records(model, tokens, store):
    answer = ask_once(model, store, prompt(), interface_v1=0)
    assert (answer["tokens"], answer["stored"]) == (tokens[:1], [HIT])


@pytest.mark.parametrize("how", ["bits", "cut", "missing"])
def test_what_is_damaged_is_computed_again(model, tokens, store, how):
    harm(store, how)
    with Engine(model, store) as engine:
        answer = engine.ask(prompt())
        assert answer["tokens"] == tokens[:1]
        assert answer["stored"][0] < HIT
        engine.ask_until_stored((tokens[:1], [HIT]), prompt())


def test_foreign_pages_are_misses_and_give_way(folder, stored, model, tokens, tmp_path):
    from quire.store import BlockStore
    records = list(recorded_keys(folder / "keys"))
    assert len(records) == 2 * (HIT // 16 + 1)  # K and V, also of a page of the answer
    for change in (-1, 1, -10**9):
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        with BlockStore(tmp_path / "store", cap_bytes=CAP) as store:
            for namespace, key, size in records:
                store.put(key, os.urandom(max(0, size + change)), namespace=namespace)
        with Engine(model, tmp_path / "store") as engine:
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["stored"]) == (tokens[:1], [0])
            engine.ask_until_stored((tokens[:1], [HIT]), prompt())


def test_another_model_type_size_or_version_finds_nothing(model, tokens, store, tmp_path):
    def stored(model, **options):
        time.sleep(AGED_S)
        return ask_once(model, store, prompt(), **options)["stored"]

    mine = shutil.copytree(model, tmp_path / "elsewhere")
    assert stored(mine) == [HIT], "the same weights at another path"
    shutil.rmtree(mine)
    make_model(mine, seed=1)
    assert stored(mine) == [0], "other weights at the same path"
    for options in ({"dtype": "bfloat16"}, {"page_size": 32}, {"version": "0.5.24"},
                    {"json_model_override_args": '{"rope_theta": 20000.0}'}):
        assert stored(model, **options) == [0], options
    answer = ask_once(model, store, prompt())
    assert (answer["tokens"], answer["stored"]) == (tokens[:1], [HIT])


def test_weights_that_were_written_while_the_engine_started_are_not_named(model, tokens, store,
                                                                          tmp_path):
    mine = shutil.copytree(model, tmp_path / "mine")
    os.utime(mine / "model.safetensors", (time.time() + 3600, time.time() + 3600))
    with Engine(mine, store) as engine:
        for _ in range(2):
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["stored"]) == (tokens[:1], [0])
            engine.flush()
        assert "model.safetensors changed after the engine began" in engine.log.read_text()


def test_eight_prompts_at_once_that_share_what_they_begin_with(model, tokens, tmp_path):
    prompts = [prompt(number) for number in range(8)]
    with Engine(model, tmp_path / "store") as engine:
        assert engine.ask(*prompts)["tokens"] == tokens
        for number in range(8):
            engine.flush()
            engine.ask_until_stored((tokens[number:number + 1], [HIT]), prompts[number])
    answer = ask_once(model, tmp_path / "store", *reversed(prompts))
    assert answer["tokens"] == tokens[::-1]
    assert answer["cached"] == [HIT] * 8
    assert max(answer["stored"]) == HIT


def test_the_cap_holds_and_a_killed_engine_leaves_a_good_store(model, tokens, tmp_path):
    cap = 64 << 20
    engine = Engine(model, tmp_path / "store", cap_bytes=cap, new_tokens=1)
    for number in range(24):  # 6 MB each
        engine.ask([(i * 31 + number * 7) % 500 + 3 for i in range(1500)])
        assert bytes_of_files(tmp_path / "store") <= cap
    engine.send(prompt(), [9] * 2000)
    engine.kill()
    with Engine(model, tmp_path / "store", cap_bytes=cap) as engine:
        engine.ask_until_stored((tokens[:1], [HIT]), prompt())
        assert bytes_of_files(tmp_path / "store") <= cap


def test_weights_that_change_under_the_engine_end_its_use_of_the_store(model, tokens, store,
                                                                       tmp_path):
    other = make_model(tmp_path / "other", seed=1)
    others = ask_once(other, "none", prompt(), prompt(1))["tokens"]
    with Engine(model, store) as engine:
        assert engine.ask(prompt())["stored"] == [HIT]
        engine.update_weights(other)
        for _ in range(3):
            answer = engine.ask(prompt(), prompt(1))
            assert (answer["tokens"], answer["stored"]) == (others, [0, 0])
            engine.flush()
        assert "weights were changed" in engine.log.read_text()
    answer = ask_once(model, store, prompt(), prompt(1))
    assert answer["tokens"] == tokens[:2]
    assert answer["stored"][0] == HIT


@pytest.mark.skipif(not BINARY.is_file(), reason=f"{BINARY} is not built")
def test_engines_of_several_processes_on_one_served_store(model, tokens, tmp_path):
    socket = tmp_path / "socket"
    owner = Owner(tmp_path / "store", socket)
    try:
        with Engine(model, f"unix:{socket}") as first:
            first.ask_until_stored((tokens[:1], [HIT]), prompt())
            second = Engine(model, f"unix:{socket}")
            answer = second.ask(prompt())
            assert (answer["tokens"], answer["stored"]) == (tokens[:1], [HIT])
            second.send(*map(prompt, range(8)))
            second.kill()
            assert first.ask(prompt(1))["tokens"] == tokens[1:2]
            owner.kill()
            first.flush()
            assert first.ask(prompt(), prompt(2))["tokens"] == [tokens[0], tokens[2]], "no owner"
            owner = Owner(tmp_path / "store", socket)
            first.flush()
            first.ask_until_stored((tokens[:1], [HIT]), prompt())
    finally:
        owner.end()


@pytest.mark.skipif(not BINARY.is_file(), reason=f"{BINARY} is not built")
def test_two_tensor_ranks_have_records_of_their_own(model, tokens, tmp_path):
    socket = tmp_path / "socket"
    owner = Owner(tmp_path / "store", socket)
    try:
        with Engine(model, f"unix:{socket}", tp_size=2) as engine:
            engine.ask_until_stored((tokens[:1], [HIT]), prompt())
        with Engine(model, f"unix:{socket}", tp_size=2) as engine:
            answer = engine.ask(prompt())
            assert (answer["tokens"], answer["stored"]) == (tokens[:1], [HIT])
        with Engine(model, f"unix:{socket}") as engine:
            assert engine.ask(prompt())["stored"] == [0], "one rank alone"
    finally:
        owner.end()
