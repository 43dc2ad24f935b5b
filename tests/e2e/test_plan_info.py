"""`quire plan` and `quire info`: numbers one can check with pencil and paper."""

import json

import pytest

import quire_cli

# config.json of Qwen/Qwen3-0.6B, the fields that decide the cache.
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": None,
    "max_position_embeddings": 40960, "attention_bias": False, "use_sliding_window": False,
    "sliding_window": None, "max_window_layers": 28, "tie_word_embeddings": True,
}
BITS = {"f32": 32, "f16": 16, "bf16": 16}


def plan(tmp_path, tokens, codec, residual=0, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_0_6B | changes), encoding="utf-8")
    done = quire_cli.run("plan", "--config", path, "--tokens", tokens, "--kv", codec,
                         "--residual", residual, "--json")
    assert done.exit_code == 0, done.describe()
    return done.json


@pytest.mark.parametrize("codec", sorted(BITS))
def test_plan_of_100_tokens(tmp_path, codec):
    got = plan(tmp_path, 100, codec)
    assert got["kv_heads"] == 8
    assert got["blocks"] == 7
    # blocks * block_tokens * layers * (K and V) * heads * head_dim * bytes
    assert got["bytes_total"] == 7 * 16 * 28 * 2 * 8 * 128 * BITS[codec] // 8
    assert got["bits_per_value"] == BITS[codec]


@pytest.mark.parametrize("tokens, blocks", [(1, 1), (16, 1), (17, 2), (200_000, 12_500)])
def test_plan_rounds_up_to_blocks(tmp_path, tokens, blocks):
    got = plan(tmp_path, tokens, "f16")
    assert got["blocks"] == blocks
    assert got["bytes_total"] == blocks * 16 * 28 * 2 * 8 * 128 * 2


@pytest.mark.parametrize("residual, blocks", [(0, 0), (1, 1), (16, 1), (17, 2), (128, 8)])
@pytest.mark.parametrize("dtype, value_bytes", [("bfloat16", 2), ("float32", 4)])
def test_plan_counts_the_open_blocks_of_a_step(tmp_path, residual, blocks, dtype, value_bytes):
    """Beside what is encoded: 512 tokens from anywhere in a block, and what is read open."""
    got = plan(tmp_path, 200_000, "int8", residual=residual, torch_dtype=dtype)
    assert got["open_blocks"] == 512 // 16 + 1 + blocks
    assert got["bytes_open"] == got["open_blocks"] * 16 * 28 * 2 * 8 * 128 * value_bytes
    assert got["bytes_total"] == 12_500 * got["bytes_per_block"] + got["bytes_open"]
    short = plan(tmp_path, 20, "int8", residual=residual)
    assert short["open_blocks"] == 2


def test_plan_of_codecs_that_do_not_encode_has_nothing_open(tmp_path):
    assert plan(tmp_path, 200_000, "f16")["bytes_open"] == 0
    done = quire_cli.run("plan", "--config", tmp_path / "config.json", "--tokens", 100, "--kv",
                         "f16", "--residual", 16, "--json")
    assert done.exit_code == 3 and "--residual 16" in done.stderr, done.describe()


def test_plan_of_200k_tokens_for_24_layers(tmp_path):
    """4 KV heads of 128: 8 bits are more than 4 GB, 4 bits are not; 2 KV heads are not at 8."""
    shape = {"num_hidden_layers": 24, "num_key_value_heads": 4}
    values = 200_000 * 24 * 2 * 4 * 128
    for codec, bits in (("fp8_e4m3", 8.125), ("int8", 8.25), ("nf4", 4.125), ("int4", 4.25)):
        got = plan(tmp_path, 200_000, codec, **shape)
        assert got["bytes_total"] - got["bytes_open"] == values * bits / 8
        assert (got["bytes_total"] > 4e9) == (bits > 8)
    assert plan(tmp_path, 200_000, "int4", **shape)["bytes_total"] == pytest.approx(2.6e9, rel=0.02)
    for codec in ("fp8_e4m3", "int8"):
        got = plan(tmp_path, 200_000, codec, **shape | {"num_key_value_heads": 2})
        assert got["bytes_total"] == pytest.approx(2.5e9, rel=0.02)


def ranks_plan(tmp_path, ranks, tokens=200_000, codec="f16", **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_0_6B | changes), encoding="utf-8")
    return quire_cli.run("plan", "--config", path, "--tokens", tokens, "--kv", codec, "--ranks", ranks, "--json")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 28])
def test_plan_of_a_pipeline_divides_layers(tmp_path, ranks):
    whole = plan(tmp_path, 200_000, "f16")
    each = ranks_plan(tmp_path, ranks).json["pipeline"]
    assert [rank["rank"] for rank in each] == list(range(ranks))
    assert sum(rank["layers"] for rank in each) == 28
    assert max(rank["layers"] for rank in each) == -(-28 // ranks)
    assert sum(rank["bytes_total"] for rank in each) == whole["bytes_total"]
    # A layer's matrices: q and out, k and v, gate, up and down; two bytes a value.
    layer = 2 * 1024 * (2 * 16 * 128 + 2 * 8 * 128 + 3 * 3072)
    embedding = 2 * 1024 * 151936
    for rank in each:
        ends = 1 if ranks == 1 else (rank["rank"] == 0) + (rank["rank"] == ranks - 1)
        assert rank["bytes_weights"] == rank["layers"] * layer + ends * embedding


def test_plan_of_a_pipeline_whose_head_is_a_matrix_of_its_own(tmp_path):
    each = ranks_plan(tmp_path, 1, tie_word_embeddings=False).json["pipeline"]
    tied = ranks_plan(tmp_path, 1).json["pipeline"]
    assert each[0]["bytes_weights"] - tied[0]["bytes_weights"] == 2 * 1024 * 151936


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("tokens", [100, 256 * 16, 200_000])
def test_plan_of_sequence_parallel_divides_splits(tmp_path, ranks, tokens):
    whole = plan(tmp_path, tokens, "f16")
    each = ranks_plan(tmp_path, ranks, tokens).json["sequence"]
    assert sum(rank["splits"] for rank in each) == -(-tokens // 256)
    assert sum(rank["bytes_total"] for rank in each) == whole["bytes_total"]
    split = 256 // 16 * whole["bytes_per_block"]
    assert all(rank["bytes_total"] <= whole["bytes_total"] / ranks + split for rank in each)
    assert len({rank["bytes_weights"] for rank in each}) == 1


def test_plan_says_which_modes_cannot_have_so_many_ranks(tmp_path):
    three = ranks_plan(tmp_path, 3).json
    assert three["sequence"] is None and len(three["pipeline"]) == 3
    sixteen = ranks_plan(tmp_path, 16, num_hidden_layers=8).json
    assert sixteen["pipeline"] is None and len(sixteen["sequence"]) == 16
    none = ranks_plan(tmp_path, 29)
    assert none.exit_code == 3 and "at most 28 ranks" in none.stderr, none.describe()
    table = quire_cli.run("plan", "--config", tmp_path / "config.json", "--tokens", 1000, "--ranks", 2)
    assert table.stdout.count("pipeline rank") == 2 and table.stdout.count("sequence rank") == 2


def test_plan_of_a_device_has_all_that_it_holds(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_0_6B), encoding="utf-8")
    command = ["plan", "--config", path, "--tokens", 4096, "--device", "cuda:0"]
    got = quire_cli.run(*command, "--chunk", 32, "--json").json
    assert got["bytes_device_weights"] == ranks_plan(tmp_path, 1).json["pipeline"][0]["bytes_weights"]
    # Of a row: hidden three times, queries twice, queries with keys and values, the two parts of the gate
    # and its outcome, angles, a token; and as many logits as are brought at once.
    row = 3 * 1024 + 2 * 2048 + 4096 + 3 * 3072 + 128 + 1
    assert got["bytes_device_pass"] == 4 * 32 * (row + 151936)
    assert got["bytes_device"] == (got["bytes_total"] + got["bytes_device_weights"] + got["bytes_device_pass"] +
                                   got["bytes_device_attention_max"])
    assert "bytes_device" not in plan(tmp_path, 4096, "f16")
    assert "on the device" in quire_cli.run(*command).stdout
    wrong = quire_cli.run(*command[:-1], "tpu")
    assert wrong.exit_code == 2 and "--device" in wrong.stderr, wrong.describe()


@pytest.mark.parametrize("kv_heads", [1, 2, 16])
def test_plan_reads_the_kv_heads(tmp_path, kv_heads):
    got = plan(tmp_path, 100, "f16", num_key_value_heads=kv_heads)
    assert got["kv_heads"] == kv_heads
    assert got["bytes_total"] == 7 * 16 * 28 * 2 * kv_heads * 128 * 2


def test_plan_does_not_guess_the_head_dim(tmp_path):
    """Qwen3 files always give it, and it is not hidden_size / num_attention_heads (64 here)."""
    config = {name: value for name, value in QWEN3_0_6B.items() if name != "head_dim"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    done = quire_cli.run("plan", "--config", path, "--tokens", 16, "--kv", "f16", "--json")
    assert done.exit_code == 3, done.describe()
    assert "head_dim" in done.stderr


# Other families; what is absent or null is what each means by it.
FAMILIES = {
    # name: (config.json, layers, KV heads, head_dim)
    "Llama-2-7b": ({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
                    "intermediate_size": 11008, "num_hidden_layers": 32, "rms_norm_eps": 1e-5,
                    "num_attention_heads": 32, "max_position_embeddings": 4096}, 32, 32, 128),
    "Mistral-7B-v0.3": ({"model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096,
                         "intermediate_size": 14336, "num_hidden_layers": 32, "rms_norm_eps": 1e-5,
                         "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 1e6,
                         "max_position_embeddings": 32768, "sliding_window": None}, 32, 8, 128),
    "Qwen2-0.5B": ({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
                    "intermediate_size": 4864, "num_hidden_layers": 24, "rms_norm_eps": 1e-6,
                    "num_attention_heads": 14, "num_key_value_heads": 2, "rope_theta": 1e6,
                    "max_position_embeddings": 131072, "sliding_window": 131072,
                    "use_sliding_window": False}, 24, 2, 64),
}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_plan_of_every_family(tmp_path, name):
    config, layers, kv_heads, head_dim = FAMILIES[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    done = quire_cli.run("plan", "--config", path, "--tokens", 100, "--kv", "f16", "--json")
    assert done.exit_code == 0, done.describe()
    assert done.json["kv_heads"] == kv_heads
    assert done.json["bytes_total"] == 7 * 16 * layers * 2 * kv_heads * head_dim * 2


def test_plan_of_a_broken_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"num_hidden_layers": 28', encoding="utf-8")
    done = quire_cli.run("plan", "--config", path, "--tokens", 100, "--kv", "f16", "--json")
    assert done.exit_code == 3, done.describe()
    assert "config.json" in done.stderr


def test_info_lists_the_codecs():
    done = quire_cli.run("info", "--json")
    assert done.exit_code == 0, done.describe()
    codecs = {codec["name"]: codec for codec in done.json["codecs"]}
    assert set(BITS) <= set(codecs)
    for name, bits in BITS.items():
        assert codecs[name]["bits_per_value"] == bits
        assert codecs[name]["kernels"], f"{name} has no kernel"
        assert all(isinstance(kernel, str) for kernel in codecs[name]["kernels"])
