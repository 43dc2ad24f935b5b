"""Broken, hostile or impossible input: the right exit code and a message that names the culprit.

Exit codes: 2 bad usage, 3 bad input, 4 resource. A crash, a hang or a silent success fails.
"""

import dataclasses
import json
import struct

import pytest

import quire_cli
import random_model
import safetensors_np

CASE = random_model.Case("bad-input", layers=2, hidden=48, heads=4, kv_heads=2, head_dim=32,
                         intermediate=80, vocab=64, rope_theta=1e4, tied=True, prompt_tokens=100)
PROMPT = random_model.prompt_ids(CASE, 1)
GATE = "model.layers.1.mlp.gate_proj.weight"  # [80, 48]
UP = "model.layers.1.mlp.up_proj.weight"  # follows it in the file


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    random_model.write_model(CASE, 1, folder)
    return folder


def run(model, *arguments, ids=PROMPT):
    """Generates two tokens unless the arguments say otherwise."""
    if "--max-tokens" not in arguments:
        arguments = ("--max-tokens", 2, *arguments)
    return quire_cli.run("generate", "--model", model, "--prompt-ids", ",".join(map(str, ids)),
                         *arguments, "--json")


def assert_refused(done, exit_codes: tuple, words: tuple) -> None:
    """One of the exit codes, every word in the message, no result and no crash."""
    assert done.exit_code in exit_codes, done.describe()
    for word in words:
        assert word in done.stderr, f"{word!r} is not in the message\n{done.describe()}"
    assert "logits_digest" not in done.stdout
    assert "terminate called" not in done.stderr


def edit_config(model, change) -> None:
    config = json.loads((model / "config.json").read_bytes())
    change(config)
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")


def edit_header(model, change) -> None:
    header, payload = safetensors_np.split((model / "model.safetensors").read_bytes())
    change(header)
    (model / "model.safetensors").write_bytes(safetensors_np.join(header, payload))


def test_the_untouched_model_works(model):
    """Else every refusal below would prove nothing."""
    done = run(model)
    assert done.exit_code == 0, done.describe()
    assert done.json["prompt_tokens"] == len(PROMPT)


# ------------------------------------------------------------------------- safetensors, as bytes

RAW_DAMAGE = {
    "empty": lambda blob: b"",
    "shorter_than_its_length_field": lambda blob: blob[:5],
    "no_header": lambda blob: blob[:8],
    "cut_in_the_header": lambda blob: blob[:200],
    "cut_in_the_payload": lambda blob: blob[:-100],
    "only_the_header": lambda blob: blob[: 8 + struct.unpack_from("<Q", blob)[0]],
    "trailing_bytes": lambda blob: blob + b"\0" * 64,
    "header_length_zero": lambda blob: struct.pack("<Q", 0) + blob[8:],
    "header_longer_than_the_file": lambda blob: struct.pack("<Q", len(blob)) + blob[8:],
    "header_length_2_63": lambda blob: struct.pack("<Q", 1 << 63) + blob[8:],
    "header_length_all_ones": lambda blob: b"\xff" * 8 + blob[8:],
    "header_not_json": lambda blob: blob[:8] + b"x" + blob[9:],
    "header_not_utf8": lambda blob: blob.replace(b"_proj", b"_\xff\xfeoj", 1),
    "header_is_a_list": lambda blob: struct.pack("<Q", 8) + b"[1,2,3] " + blob,
    "header_is_deep": lambda blob: struct.pack("<Q", 1_000_000) + b"[" * 1_000_000,
    "header_is_deep_objects": lambda blob: struct.pack("<Q", 500_000) + b'{"a":' * 100_000,
}


@pytest.mark.parametrize("damage", sorted(RAW_DAMAGE))
def test_damaged_safetensors_file(model, damage):
    path = model / "model.safetensors"
    path.write_bytes(RAW_DAMAGE[damage](path.read_bytes()))
    assert_refused(run(model), (3,), ("model.safetensors",))


# ----------------------------------------------------------------- safetensors, field by field


def set_offsets(begin: int, end: int):
    return lambda header: header[GATE].update(data_offsets=[begin, end])


HOSTILE_FIELDS = {
    # name: (change of the header, words the message must have)
    "overlap": (lambda header: header[GATE].update(data_offsets=header[UP]["data_offsets"]), ()),
    "overlap_by_one_byte": (
        lambda header: header[GATE].update(
            data_offsets=[offset + 1 for offset in header[GATE]["data_offsets"]]), ()),
    "offsets_past_the_end": (set_offsets(1 << 40, (1 << 40) + 80 * 48 * 4), (GATE,)),
    "offsets_reversed": (
        lambda header: header[GATE].update(data_offsets=header[GATE]["data_offsets"][::-1]),
        (GATE,)),
    "offsets_near_2_64": (set_offsets((1 << 64) - 80 * 48 * 4, (1 << 64) - 1), (GATE,)),
    "offsets_above_2_64": (set_offsets(0, 1 << 70), (GATE,)),
    "offsets_negative": (set_offsets(-80 * 48 * 4, 0), (GATE,)),
    "offsets_fractional": (set_offsets(0.5, 80 * 48 * 4 + 0.5), (GATE,)),
    "offsets_text": (lambda header: header[GATE].update(data_offsets="0"), (GATE, "data_offsets")),
    "offsets_three": (lambda header: header[GATE].update(data_offsets=[0, 1, 2]),
                      (GATE, "data_offsets")),
    "offsets_absent": (lambda header: header[GATE].pop("data_offsets"), (GATE, "data_offsets")),
    "shape_absent": (lambda header: header[GATE].pop("shape"), (GATE, "shape")),
    "shape_text": (lambda header: header[GATE].update(shape="80x48"), (GATE, "shape")),
    "shape_negative": (lambda header: header[GATE].update(shape=[-80, -48]), (GATE, "shape")),
    "shape_product_wraps": (lambda header: header[GATE].update(shape=[1 << 33, 1 << 33]), (GATE,)),
    "shape_product_wraps_to_the_right_size": (
        # 80 * 48 * 4 bytes modulo 2^64, for whoever multiplies without looking.
        lambda header: header[GATE].update(shape=[80 * 48, (1 << 62) + 1]), (GATE,)),
    "shape_larger_than_bytes": (lambda header: header[GATE].update(shape=[81, 48]), (GATE,)),
    "dtype_absent": (lambda header: header[GATE].pop("dtype"), (GATE, "dtype")),
    "dtype_unknown": (lambda header: header[GATE].update(dtype="F31"), (GATE, "F31")),
    "dtype_number": (lambda header: header[GATE].update(dtype=7), (GATE, "dtype")),
    "dtype_of_another_width": (lambda header: header[GATE].update(dtype="F16"), (GATE,)),
    "entry_is_a_list": (lambda header: header.update({GATE: []}), (GATE,)),
    "entry_is_null": (lambda header: header.update({GATE: None}), (GATE,)),
}


@pytest.mark.parametrize("field", sorted(HOSTILE_FIELDS))
def test_hostile_safetensors_header(model, field):
    change, words = HOSTILE_FIELDS[field]
    edit_header(model, change)
    assert_refused(run(model), (3,), ("model.safetensors", *words))


def test_duplicate_tensor_name(model):
    path = model / "model.safetensors"
    header, payload = safetensors_np.split(path.read_bytes())
    text = json.dumps(header).encode()
    text = text[:-1] + b', "' + GATE.encode() + b'": ' + json.dumps(header[UP]).encode() + b"}"
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)
    assert_refused(run(model), (3,), ("model.safetensors",))


# ------------------------------------------------------------------- tensors the model needs


def rewrite_weights(model, change) -> None:
    """A well-formed file again, with other tensors in it."""
    weights = random_model.tensors(CASE, 1)
    change(weights)
    (model / "model.safetensors").write_bytes(safetensors_np.encode(weights, "F32"))


@pytest.mark.parametrize("name", [
    "model.embed_tokens.weight", "model.norm.weight", GATE,
    "model.layers.0.self_attn.k_norm.weight", "model.layers.1.self_attn.v_proj.weight"])
def test_missing_tensor(model, name):
    rewrite_weights(model, lambda weights: weights.pop(name))
    assert_refused(run(model), (3,), ("model.safetensors", name))


@pytest.mark.parametrize("name", [
    "model.embed_tokens.weight", GATE, "model.layers.0.self_attn.q_proj.weight"])
def test_transposed_tensor(model, name):
    rewrite_weights(model, lambda weights: weights.update({name: weights[name].T.copy()}))
    assert_refused(run(model), (3,), ("model.safetensors", name))


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.self_attn.q_norm.weight"])
def test_norm_of_the_wrong_length(model, name):
    rewrite_weights(model, lambda weights: weights.update({name: weights[name][:-1]}))
    assert_refused(run(model), (3,), ("model.safetensors", name))


def test_missing_output_matrix_of_an_untied_model(model):
    edit_config(model, lambda config: config.update(tie_word_embeddings=False))
    assert_refused(run(model), (3,), ("model.safetensors", "lm_head.weight"))


# ------------------------------------------------------------------------------ config.json

BROKEN_JSON = {
    "empty": b"",
    "cut": b'{"architectures": ["Qwen3ForCausalLM"], "hidden_size"',
    "list": b"[]",
    "number": b"7",
    "binary": bytes(range(256)),
    "deep": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("text", sorted(BROKEN_JSON))
def test_broken_config(model, text):
    (model / "config.json").write_bytes(BROKEN_JSON[text])
    assert_refused(run(model), (3,), ("config.json",))


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads",
                                   "intermediate_size", "vocab_size"])
def test_config_without_a_needed_field(model, field):
    edit_config(model, lambda config: config.pop(field))
    assert_refused(run(model), (3,), ("config.json", field))


@pytest.mark.parametrize("field, value", [
    ("hidden_size", "48"), ("hidden_size", -48), ("hidden_size", 0), ("hidden_size", 48.5),
    ("hidden_size", 1 << 62), ("hidden_size", None), ("num_hidden_layers", 0),
    ("num_hidden_layers", 1 << 40), ("num_attention_heads", 0), ("num_attention_heads", [4]),
    ("num_key_value_heads", 3), ("num_key_value_heads", 0), ("head_dim", 0), ("head_dim", 31),
    ("head_dim", 1 << 31), ("vocab_size", -1), ("vocab_size", 1 << 40), ("intermediate_size", {}),
    ("rms_norm_eps", "small"), ("rms_norm_eps", -1), ("rope_theta", 0), ("rope_theta", "big"),
])
def test_config_with_an_impossible_value(model, field, value):
    edit_config(model, lambda config: config.update({field: value}))
    assert_refused(run(model), (3,), ("config.json", field))


@pytest.mark.parametrize("field, value", [
    # Well formed, but computing on as if they were not there would give wrong answers in silence.
    ("hidden_act", "gelu"), ("mlp_bias", True), ("is_causal", False),
    ("rope_scaling", {"rope_type": "dynamic", "factor": 4.0}),
    ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}),
    ("rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ("rope_parameters", {"full_attention": {"rope_theta": 1e4}}),
    ("layer_types", ["full_attention", "chunked_attention"]),
    ("quantization_config", {"quant_method": "fp8"}), ("final_logit_softcapping", 30.0),
])
def test_config_asks_for_what_is_not_supported(model, field, value):
    edit_config(model, lambda config: config.update({field: value}))
    assert_refused(run(model), (3,), ("config.json", field))


@pytest.mark.parametrize("field, value", [
    ("rope_scaling", {"rope_type": "yarn"}), ("rope_scaling", {"rope_type": "linear", "factor": 0}),
    ("rope_scaling", {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                      "high_freq_factor": 1}),
    ("rope_scaling", 4), ("rope_scaling", {"rope_type": "yarn", "factor": 1e400}),
    ("sliding_window", 0), ("sliding_window", -1), ("sliding_window", 1 << 40),
    ("max_window_layers", -1), ("layer_types", ["full_attention"]), ("layer_types", 2),
])
def test_config_with_an_impossible_window_or_rotation(model, field, value):
    edit_config(model, lambda config: config.update(
        {"use_sliding_window": True, "max_window_layers": 0, field: value}))
    assert_refused(run(model), (3,), ("config.json",))


def test_config_with_biases_that_the_weights_lack(model):
    edit_config(model, lambda config: config.update(attention_bias=True))
    assert_refused(run(model), (3,), ("model.safetensors", "self_attn.k_proj.bias"))


# ------------------------------------------------------------------------------ several files

SHARDED = dataclasses.replace(CASE, shards=2)


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    random_model.write_model(SHARDED, 1, folder)
    return folder


def edit_index(model, change) -> None:
    path = model / "model.safetensors.index.json"
    index = json.loads(path.read_bytes())
    change(index)
    path.write_text(json.dumps(index), encoding="utf-8")


def test_several_files_are_the_model_in_one(model, sharded):
    assert run(sharded).json["logits_digest"] == run(model).json["logits_digest"]


@pytest.mark.parametrize("name", [
    "", ".", "..", "/etc/passwd", "../sharded/model-00001-of-00002.safetensors", "sub/file",
    "model-00001-of-00002.safetensors\0", 7, None, ["model-00001-of-00002.safetensors"]])
def test_index_that_leads_elsewhere(sharded, name):
    edit_index(sharded, lambda index: index["weight_map"].update({GATE: name}))
    assert_refused(run(sharded), (3,), ("index.json", GATE))


@pytest.mark.parametrize("change", [
    lambda index: index.pop("weight_map"), lambda index: index.update(weight_map=[]),
    lambda index: index["weight_map"].pop(GATE),
    lambda index: index["weight_map"].update({"no.such": "model-00001-of-00002.safetensors"}),
    lambda index: index["weight_map"].update({name: "model-00002-of-00002.safetensors"
                                              for name in index["weight_map"]}),
    lambda index: index["weight_map"].update({GATE: "model-00003-of-00002.safetensors"}),
], ids=["no_map", "no_object", "too_few", "too_many", "moved", "no_file"])
def test_index_that_disagrees_with_its_files(sharded, change):
    edit_index(sharded, change)
    assert_refused(run(sharded), (3,), ("model",))


@pytest.mark.parametrize("damage", sorted(RAW_DAMAGE))
def test_damaged_file_of_several(sharded, damage):
    path = sharded / "model-00002-of-00002.safetensors"
    path.write_bytes(RAW_DAMAGE[damage](path.read_bytes()))
    assert_refused(run(sharded), (3,), (path.name,))


@pytest.mark.parametrize("change, words", [
    ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, ("model_type", "gpt2")),
    ({"architectures": ["Qwen3MoeForCausalLM"]}, ("architectures",)),
    ({"architectures": "Qwen3ForCausalLM"}, ("architectures",)),
    ({"model_type": None}, ("model_type",)),
], ids=["other", "disagree", "no_list", "no_type"])
def test_unknown_architecture(model, change, words):
    edit_config(model, lambda config: config.update(change))
    assert_refused(run(model), (3,), ("config.json", *words))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file(model, name):
    (model / name).unlink()
    assert_refused(run(model), (3,), (name,))


def test_missing_directory(tmp_path):
    assert_refused(run(tmp_path / "nowhere"), (3,), ("nowhere",))


# ------------------------------------------------------------------------- prompt and budget


@pytest.mark.parametrize("token", [-1, CASE.vocab, 1 << 31, 1 << 40])
def test_prompt_id_outside_the_vocabulary(model, token):
    assert_refused(run(model, ids=[1, 2, token]), (2, 3), (str(token),))


def test_prompt_over_the_limit(model):
    done = run(model, "--max-seq-len", 64)
    assert_refused(done, (3, 4), ("100", "64"))


def test_prompt_and_output_over_the_limit(model):
    done = run(model, "--max-seq-len", 101, "--max-tokens", 8)
    assert_refused(done, (3, 4), ("101",))


def test_prompt_at_the_limit(model):
    """100 + 2 tokens fit into 102: the limit is neither above nor below what it says."""
    done = run(model, "--max-seq-len", 102)
    assert done.exit_code == 0, done.describe()


def test_text_prompt_without_a_tokenizer(model):
    done = quire_cli.run("generate", "--model", model, "--prompt", "hello", "--json")
    assert_refused(done, (3,), ("tokenizer.json",))


def test_prompt_file_that_is_not_there(model):
    path = model / "nowhere.txt"
    done = quire_cli.run("generate", "--model", model, "--prompt-file", path, "--json")
    assert_refused(done, (2, 3), (str(path),))


# One block of 16 tokens: 2 layers, K and V, 2 heads of 32, f32.
BLOCK_BYTES = 16 * 2 * 2 * 2 * 32 * 4


@pytest.mark.parametrize("hot_bytes", [1, 1000, 2 * BLOCK_BYTES, 6 * BLOCK_BYTES])
def test_arena_too_small(model, hot_bytes):
    """102 tokens are 7 blocks; one oversized request is refused like any other."""
    assert_refused(run(model, "--kv", "f32", "--hot-bytes", hot_bytes), (4,),
                   ("hot_bytes", str(hot_bytes), "block"))


def test_arena_just_large_enough(model):
    """Seven blocks and their metadata are enough: the refusals above are about the budget."""
    done = run(model, "--kv", "f32", "--hot-bytes", 8 * BLOCK_BYTES)
    assert done.exit_code == 0, done.describe()


# ----------------------------------------------------------------------------------- usage


@pytest.mark.parametrize("arguments", [
    ("--no-such-flag",), ("--kv", "q9"), ("--kv", ""), ("--block-tokens", "8"),
    ("--block-tokens", "17"), ("--block-tokens", "512"), ("--block-tokens", "x"), ("--chunk", "-1"),
    ("--chunk", "0"), ("--threads", "-1"), ("--max-tokens", "-1"), ("--max-tokens", "1e400"),
    ("--repeat", "0"), ("--layout", "spiral"), ("--compute", "f8"), ("--temperature", "-1"),
    ("--temperature", "nan"), ("--hot-bytes", "lots"), ("--kv", "f16", "--k", "f32"),
], ids=" ".join)
def test_bad_flag(model, arguments):
    assert_refused(run(model, *arguments), (2,), (arguments[0],))


@pytest.mark.parametrize("ids", ["", "1,", "1,,2", "1;2", "one", "1.5", "9" * 40])
def test_bad_prompt_ids(model, ids):
    done = quire_cli.run("generate", "--model", model, "--prompt-ids", ids, "--json")
    assert_refused(done, (2, 3), ("prompt-ids",))


@pytest.mark.parametrize("arguments", [
    (), ("levitate",), ("generate",), ("generate", "--prompt-ids", "1"), ("plan",),
    ("generate", "--model", "m"),
    ("generate", "--model", "m", "--prompt-ids", "1", "--prompt", "x"),
], ids=lambda arguments: " ".join(arguments) or "nothing")
def test_bad_command(arguments):
    done = quire_cli.run(*arguments)
    assert done.exit_code == 2, done.describe()
    assert done.stderr.strip(), done.describe()
