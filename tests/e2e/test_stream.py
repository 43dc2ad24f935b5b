"""--resident-tokens: a context that --hot-bytes cannot hold is read back from the store, and every bit stays the same."""

import functools
import random
import re

import pytest

import quire_cli
import quire_server
import random_model

TINY = quire_cli.REPOSITORY / "models/tiny"
TOKENS = 4000  # of 2 KiB in bf16: 8 MiB
SMALL = ("--hot-bytes", "3500KiB", "--chunk", "16", "--resident-tokens", "200")
WAYS = {"bf16": (), "int8": ("--kv", "int8"), "q25": ("--kv", "q25")}


def ids(tokens=TOKENS, seed=1):
    prng = random.Random(seed)
    return ",".join(str(prng.randrange(256)) for _ in range(tokens))


def generate(*flags, tokens=TOKENS):
    return quire_cli.run("generate", "--model", TINY, "--prompt-ids", ids(tokens), "--max-tokens", 6,
                         "--threads", 1, "--json", *flags)


@functools.cache
def whole(way, tokens=TOKENS):
    done = generate(*WAYS[way], tokens=tokens)
    assert done.exit_code == 0, done.describe()
    return done.json


def small(way):
    """Memory for about a third of the context in this codec."""
    return SMALL if way == "bf16" else ("--hot-bytes", "2400KiB" if way == "int8" else "1800KiB", *SMALL[2:])


@pytest.mark.parametrize("way", WAYS)
def test_a_small_memory_and_a_store_give_the_bits_of_a_large_memory(tmp_path, way):
    store = ("--store", tmp_path / "store")
    first = generate(*WAYS[way], *small(way), *store, "--stats")
    assert first.exit_code == 0, first.describe()
    assert first.json["streamed_tokens"] >= TOKENS - 200 - 256
    assert first.json["logits_digest"] == whole(way)["logits_digest"]
    cache = first.json["cache"]
    assert cache["streamed_bytes_total"] > 0
    assert cache["hot_bytes_peak"] <= cache["hot_bytes_limit"]
    # A later process goes on with what is there, at another size.
    again = generate(*WAYS[way], *small(way), "--chunk", "9", *store)
    assert again.exit_code == 0, again.describe()
    assert again.json["loaded_tokens"] == (TOKENS - 1) // 16 * 16
    assert again.json["logits_digest"] == whole(way)["logits_digest"]


def test_beside_windows_a_layer_of_a_split_is_one_request(tmp_path):
    """Of the layers with full attention; those with a window read nothing."""
    full, layers, tokens = 2, 4, 6000
    case = random_model.Case(
        "windows", family="qwen2", layers=layers, hidden=64, heads=4, kv_heads=2, head_dim=32,
        intermediate=96, vocab=256, rope_theta=1e6, tied=True, prompt_tokens=tokens, dtype="BF16",
        fields={"use_sliding_window": True, "sliding_window": 300, "layer_types":
                ["sliding_attention", "full_attention"] * full})
    random_model.write_model(case, 3, tmp_path / "model")
    prompt = ",".join(map(str, random_model.prompt_ids(case, 3)))

    def run(*flags):
        done = quire_cli.run("generate", "--model", tmp_path / "model", "--prompt-ids", prompt,
                             "--max-tokens", 8, "--threads", 1, "--json", *flags)
        assert done.exit_code == 0, done.describe()
        return done.json

    digest = run()["logits_digest"]
    streams = ("--hot-bytes", "1900KiB", "--chunk", 64, "--resident-tokens", 400, "--store",
               tmp_path / "store", "--stats")
    assert run(*streams)["logits_digest"] == digest
    again = run(*streams)
    assert again["logits_digest"] == digest
    assert again["loaded_tokens"] == (tokens - 1) // 16 * 16
    splits = again["streamed_tokens"] // 256
    steps = 8  # the last block's tokens and the first answer are one
    assert splits >= 20
    assert again["cache"]["streamed_requests_total"] <= 1.05 * steps * splits * full


def test_steps_are_cut_to_what_their_lane_states_have_room_for(tmp_path):
    done = generate(*SMALL, "--chunk", "512", "--store", tmp_path / "store")
    assert done.exit_code == 0, done.describe()
    assert done.json["streamed_tokens"] > 0
    assert done.json["logits_digest"] == whole("bf16")["logits_digest"]


def test_plan_says_what_streaming_takes(tmp_path):
    """--hot-bytes of that much are enough, and of less are not."""
    plan = quire_cli.run("plan", "--config", TINY / "config.json", "--tokens", TOKENS + 6, "--kv", "bf16",
                         "--resident-tokens", 200, "--chunk", 16, "--json")
    assert plan.exit_code == 0, plan.describe()
    needed = plan.json["bytes_streamed"]
    assert needed < plan.json["bytes_total"] / 2
    assert TOKENS * 2048 < plan.json["bytes_store"] < TOKENS * 2048 * 3
    for hot_bytes, code in ((needed, 0), (needed - 1, 4)):
        done = generate("--kv", "bf16", "--hot-bytes", hot_bytes, *SMALL[2:], "--store", tmp_path / "store")
        assert done.exit_code == code, done.describe()


def test_warm_memory_alone_is_a_store_too():
    done = generate(*SMALL, "--warm-bytes", "64MiB")
    assert done.exit_code == 0, done.describe()
    assert done.json["streamed_tokens"] > 0
    assert done.json["logits_digest"] == whole("bf16")["logits_digest"]


def test_on_the_kernels_of_devices(tmp_path):
    store = ("--store", tmp_path / "store")
    assert generate(*SMALL, *store, tokens=3000).exit_code == 0
    # What is read passes through memory of the host, which is paid for too.
    memory = ("--hot-bytes", "5000KiB", *SMALL[2:])
    done = generate(*memory, *store, "--device", "emulated", tokens=3000)
    assert done.exit_code == 0, done.describe()
    assert done.json["loaded_tokens"] == 2992
    assert done.json["streamed_tokens"] > 0
    assert done.json["logits_digest"] == whole("bf16", 3000)["logits_digest"]


def test_what_is_missing_is_said(tmp_path):
    store = ("--store", tmp_path / "store")
    for flags, why in (((*SMALL[:4], *store), "can never fit"),
                       (SMALL, "can never fit"),
                       ((*SMALL, "--warm-bytes", "8MiB"), "raise its cap"),
                       ((*SMALL[:-1], "3000", *store), "lower resident_tokens")):
        refused = generate(*flags)
        assert refused.exit_code == 4 and why in refused.stderr, refused.describe()


def complete(server, seeds, on_full):
    """The answers to prompts of one call, so they begin at once."""
    prompts = [[int(each) for each in ids(1600, seed).split(",")] for seed in seeds]
    status, answer = server.ask("/v1/completions", {"prompt": prompts, "max_tokens": 40, "on_full": on_full,
                                                    "ignore_eos": True}, timeout=120)
    assert status == 200, answer
    return [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("said, default", [("spill", ()), (None, ("--on-full", "spill"))])
def test_requests_spill_where_memory_has_room_for_one_of_them(tmp_path, said, default):
    roomy = ("--hot-bytes", "64MiB", "--chunk", 16)
    tight = ("--hot-bytes", "6500KiB", "--chunk", 16, "--resident-tokens", 100, "--store", tmp_path / "store")
    with quire_server.serving(tmp_path / "a", *roomy) as server:
        alone = [complete(server, [seed], "reject")[0] for seed in (1, 2)]
        status, answer = server.ask("/v1/completions", {"prompt": "a", "on_full": "spill"})
        assert status == 400 and "resident_tokens" in answer["error"]["message"]
        status, answer = server.ask("/v1/completions", {"prompt": "a", "on_full": "flee"})
        assert status == 400 and answer["error"]["param"] == "on_full"
    with quire_server.serving(tmp_path / "b", *tight, *default) as server:
        assert complete(server, (1, 2), said) == alone
        metrics = server.ask("/metrics")[1]
        assert int(re.search(r"^quire_engine_spilled_total (\d+)$", metrics, re.MULTILINE)[1]) > 0


def test_generate_spills_into_what_there_is(tmp_path):
    refused = generate("--on-full", "spill", tokens=100)
    assert refused.exit_code != 0 and "store" in refused.stderr, refused.describe()
    done = generate(*SMALL, "--on-full", "spill", "--store", tmp_path / "store")
    assert done.exit_code == 0, done.describe()
    assert done.json["logits_digest"] == whole("bf16")["logits_digest"]
