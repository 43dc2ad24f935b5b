"""A tiny random model as GGUF: `make_model.py FILE SEED`."""

import sys

import gguf
import numpy as np

VOCAB, WIDTH, FORWARD, LAYERS, HEADS, KV_HEADS, HEAD = 512, 128, 256, 3, 4, 2, 32


def main(path, seed):
    random = np.random.default_rng(seed)

    def tensor(*shape):
        return (random.standard_normal(shape) * 2.0 / np.sqrt(shape[-1])).astype(np.float32)

    model = gguf.GGUFWriter(path, "llama")
    model.add_name("tiny")
    model.add_context_length(4096)
    model.add_embedding_length(WIDTH)
    model.add_block_count(LAYERS)
    model.add_feed_forward_length(FORWARD)
    model.add_head_count(HEADS)
    model.add_head_count_kv(KV_HEADS)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_rope_dimension_count(HEAD)
    model.add_vocab_size(VOCAB)
    model.add_file_type(gguf.LlamaFileType.ALL_F32)
    tokens = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % i for i in range(256)]
    tokens += [b"t%d" % i for i in range(VOCAB - len(tokens))]
    model.add_tokenizer_model("llama")
    model.add_token_list(tokens)
    model.add_token_scores([0.0] * VOCAB)
    model.add_token_types([2, 3, 3] + [6] * 256 + [1] * (VOCAB - 259))
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)
    model.add_add_bos_token(False)
    model.add_tensor("token_embd.weight", tensor(VOCAB, WIDTH) * 5)
    model.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    model.add_tensor("output.weight", tensor(VOCAB, WIDTH))
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        for part, shape in (("attn_q", (HEADS * HEAD, WIDTH)), ("attn_k", (KV_HEADS * HEAD, WIDTH)),
                            ("attn_v", (KV_HEADS * HEAD, WIDTH)), ("attn_output", (WIDTH, HEADS * HEAD)),
                            ("ffn_gate", (FORWARD, WIDTH)), ("ffn_up", (FORWARD, WIDTH)),
                            ("ffn_down", (WIDTH, FORWARD))):
            model.add_tensor(f"{name}{part}.weight", tensor(*shape))
        for part in ("attn_norm", "ffn_norm"):
            model.add_tensor(f"{name}{part}.weight", np.ones(WIDTH, np.float32))
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
