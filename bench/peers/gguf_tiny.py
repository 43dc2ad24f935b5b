"""Writes the bundled model (models/tiny) as a GGUF file: the same weights, bit for bit, and tokens."""

import json
import pathlib

import gguf
import numpy

# llama.cpp wants merges of a byte-level tokenizer; these two bytes never follow each other in text.
UNUSED_MERGE = "\u0100 \u0100"

_LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_model(source, path):
    """Writes the model of a Hugging Face folder (Qwen3, bf16, a byte-level tokenizer)."""
    source, path = pathlib.Path(source), pathlib.Path(path)
    config = json.loads((source / "config.json").read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, config, json.loads((source / "tokenizer.json").read_text()))
    _add_tensors(writer, source / "model.safetensors")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def _add_tokenizer(writer, config, tokenizer):
    texts = [f"<unused{i}>" for i in range(config["vocab_size"])]
    kinds = [gguf.TokenType.UNUSED] * len(texts)
    for text, number in tokenizer["model"]["vocab"].items():
        texts[number], kinds[number] = text, gguf.TokenType.NORMAL
    for token in tokenizer["added_tokens"]:
        texts[token["id"]], kinds[token["id"]] = token["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges([UNUSED_MERGE])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


def _add_tensors(writer, path):
    data = path.read_bytes()
    header_bytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + header_bytes])
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        if tensor["dtype"] != "BF16":
            raise RuntimeError(f"{path}: {name} is {tensor['dtype']}, not BF16")
        begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
        halves = numpy.frombuffer(data[begin:end], numpy.uint16).astype(numpy.uint32)
        weights = (halves << 16).view(numpy.float32).reshape(tensor["shape"])
        if weights.ndim == 1:  # llama.cpp multiplies by norms in f32
            writer.add_tensor(_name_of(name), weights)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(_name_of(name), gguf.quants.quantize(weights, kind), raw_dtype=kind)


def _name_of(name):
    whole = {"model.embed_tokens.weight": "token_embd.weight",
             "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)  # model.layers.3.mlp.up_proj.weight
    return f"blk.{layer}.{_LAYER_TENSORS[rest.removesuffix('.weight')]}.weight"
