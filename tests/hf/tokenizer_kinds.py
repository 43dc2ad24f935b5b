"""Tokenizers built as released models build theirs, trained on the spot."""

import json

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

# Patterns as in the released files.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
            "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
            "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
MARK = "\u2581"


def split_bytes(*patterns):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return pre_tokenizers.Sequence([*steps, last])


def template(before, behind=()):
    names = [*before, *behind]
    single = [*before, "$A", *behind]
    return lambda ids: processors.TemplateProcessing(
        single=" ".join(single), special_tokens=[(name, ids(name)) for name in names])


def byte_level(pre_tokenizer, special, added=(), normalizer=None, post=None, **model):
    """A byte-level tokenizer, not yet trained, as (tokenizer, trainer options, finish)."""
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()

    def finish():
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False)
                                      for name in special])
        tokenizer.add_tokens(list(added))
        byte_post = processors.ByteLevel(trim_offsets=False)
        tokenizer.post_processor = byte_post if post is None else processors.Sequence(
            [byte_post, post(tokenizer.token_to_id)])

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, {"initial_alphabet": alphabet, "limit_alphabet": len(alphabet)}, finish


def sentencepiece(normalizer, pre_tokenizer, strip, added=()):
    """BPE of characters with bytes to fall back on."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))

    def finish():
        tokenizer.add_tokens(list(added))
        tokenizer.post_processor = template(["<s>"])(tokenizer.token_to_id)

    special = ["<unk>", "<s>", "</s>", *fallback]
    return tokenizer, {"special_tokens": special}, finish


def kinds():
    """Every kind by name."""
    plain = pre_tokenizers.ByteLevel
    prefix = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    turns = [AddedToken("<tool_call>", special=False, normalized=False),
             AddedToken("<think>", special=False, normalized=False)]
    greedy = [AddedToken("<l>", lstrip=True, normalized=False),
              AddedToken("<r>", rstrip=True, normalized=False),
              AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
              AddedToken("word", single_word=True, normalized=False),
              AddedToken("\u00e9t\u00e9", normalized=True), AddedToken("  ", normalized=True),
              AddedToken("<lo", normalized=False), AddedToken("<longer>", normalized=False)]
    return {
        "llama3": byte_level(split_bytes(LLAMA3), ["<|begin_of_text|>", "<|eot_id|>"],
                             post=template(["<|begin_of_text|>"]), ignore_merges=True),
        "qwen2": byte_level(split_bytes(QWEN2), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                            turns, normalizers.NFC()),
        "tekken": byte_level(split_bytes(TEKKEN), ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
                             post=template(["<s>"]), ignore_merges=True),
        "deepseek": byte_level(split_bytes(r"\p{N}{1,3}", DEEPSEEK_CJK, DEEPSEEK), ["<bos>"],
                               post=template(["<bos>"])),
        "gpt2": byte_level(plain(add_prefix_space=False), ["<|endoftext|>"]),
        "roberta": byte_level(plain(add_prefix_space=True), ["<s>", "</s>"],
                              post=template(["<s>"], ["</s>"])),
        "digits": byte_level(pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), plain(add_prefix_space=False)]),
                             ["<e>"]),
        "greedy": byte_level(split_bytes(QWEN2), ["<e>"], greedy, normalizers.NFC()),
        "behaviors": byte_level(pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=False),
             pre_tokenizers.Split(Regex(r"[.,]"), "merged_with_next"),
             pre_tokenizers.Split(Regex(r"\s"), "contiguous"),
             pre_tokenizers.Split("e", "merged_with_previous"),
             pre_tokenizers.Split(Regex(r"[^x\p{Han}]+"), "removed", invert=True),
             plain(add_prefix_space=False, use_regex=False)]), ["<e>"]),
        "llama2": sentencepiece(prefix, None, True),
        "mistral": sentencepiece(None, pre_tokenizers.Metaspace(MARK, prepend_scheme="first",
                                                                split=False), True,
                                 [AddedToken("[INST]", special=True, normalized=False)]),
        "metaspace": sentencepiece(None, pre_tokenizers.Metaspace(MARK, prepend_scheme="always",
                                                                  split=True), True),
        "gemma": sentencepiece(normalizers.Replace(" ", MARK),
                               pre_tokenizers.Split(" ", "merged_with_previous"), False,
                               [AddedToken("\n\n", normalized=False)]),
    }


def train(kind, texts, vocab_size) -> str:
    """tokenizer.json of a trained kind; merges as "a b" where the name's length is odd."""
    tokenizer, options, finish = kinds()[kind]
    options.setdefault("limit_alphabet", vocab_size // 6)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **options)
    tokenizer.train_from_iterator(texts, trainer)
    finish()
    data = json.loads(tokenizer.to_str())
    # The tokens of bytes are plain tokens in released files.
    data["added_tokens"] = [token for token in data["added_tokens"]
                            if not token["content"].startswith("<0x")]
    if len(kind) % 2 == 1:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    return json.dumps(data, ensure_ascii=False)
