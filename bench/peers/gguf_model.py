"""Writes a GGUF file of Qwen3-0.6B's shape with random weights: all that speed depends on."""

import pathlib

import gguf
import numpy

from kernels_arguments import GROUP

LAYERS = 28
HIDDEN = 1024
INTERMEDIATE = 3072
KV_HEADS = 8
HEAD_DIM = 128
VOCAB = 1024  # small, so that the output layer does not blur a decoded token
CONTEXT = 40960

# Multiply-adds of one token in the layers' matrix products, which are nearly all of its work.
LAYER_WEIGHTS = HIDDEN * (2 * KV_HEADS * HEAD_DIM * (GROUP + 1) + 3 * INTERMEDIATE)
GIGAFLOPS_PER_TOKEN = 2 * LAYERS * LAYER_WEIGHTS * 1e-9


def write_model(path, group):
    """Writes the model, 0.9 GB of bf16 or more, unless the file is there already."""
    path = pathlib.Path(path)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "qwen3", use_temp_file=True)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(group * KV_HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("no_vocab")
    _add_tensors(writer, group)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def _add_tensors(writer, group):
    random = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        weights = random.standard_normal((rows, columns), dtype=numpy.float32) * columns**-0.5
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)

    def ones(name, count):
        writer.add_tensor(name, numpy.ones(count, dtype=numpy.float32))

    query_dim, kv_dim = group * KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    matrix("token_embd.weight", VOCAB, HIDDEN)
    matrix("output.weight", VOCAB, HIDDEN)
    ones("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        ones(prefix + "attn_norm.weight", HIDDEN)
        ones(prefix + "attn_q_norm.weight", HEAD_DIM)
        ones(prefix + "attn_k_norm.weight", HEAD_DIM)
        ones(prefix + "ffn_norm.weight", HIDDEN)
        matrix(prefix + "attn_q.weight", query_dim, HIDDEN)
        matrix(prefix + "attn_k.weight", kv_dim, HIDDEN)
        matrix(prefix + "attn_v.weight", kv_dim, HIDDEN)
        matrix(prefix + "attn_output.weight", HIDDEN, query_dim)
        matrix(prefix + "ffn_gate.weight", INTERMEDIATE, HIDDEN)
        matrix(prefix + "ffn_up.weight", INTERMEDIATE, HIDDEN)
        matrix(prefix + "ffn_down.weight", HIDDEN, INTERMEDIATE)
