"""Compares token ids and decoded text with the `tokenizers` package on text of many scripts, more
than 1 MB for each kind of tokenizer; run by tests/hf/text.sh."""

import argparse
import json
import pathlib
import random
import sys

import text_corpus
import tokenizer_kinds
from text_tool import TextTool
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tokenizer"
GOLDEN_KINDS = ("llama3", "qwen2", "tekken", "deepseek", "roberta", "greedy", "llama2", "mistral",
                "gemma")
GOLDEN_VOCAB = 460
EXTRA = ["<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|endoftext|>", "<think>", "[INST]",
         "<s>", "</s>", "<l>", "<r>", "<both>", "word", "e\u0301te\u0301", "\u00e9t\u00e9", "<lo",
         "<longer>", " <l> ", " <r> ", "sword word words", "<0x41>", "\u2581", "<unk>"]


def differences(reference, tool, texts, byte_level):
    """(what, text, wanted, found) of every difference."""
    rng = random.Random(7)
    for text in texts:
        for special in (True, False):
            wanted = reference.encode(text, add_special_tokens=special).ids
            found = tool(encode=text, special=special)
            if found.get("ids") != wanted:
                yield "ids", text, wanted, found
                break
        for skip in (True, False):
            if tool(decode=wanted, skip=skip)["text"] != (
                    said := reference.decode(wanted, skip_special_tokens=skip)):
                yield "text", text, said, tool(decode=wanted, skip=skip)["text"]
        if byte_level and wanted:
            # Out of order, characters break.
            rng.shuffle(wanted)
            said = reference.decode(wanted, skip_special_tokens=False)
            if tool(decode=wanted, skip=False)["text"] != said:
                yield "shuffled", wanted, said, tool(decode=wanted, skip=False)["text"]


def compare(kind, arguments, folder):
    training = text_corpus.texts(1, 600_000, [])
    path = folder / f"{kind}.json"
    path.write_text(tokenizer_kinds.train(kind, training, arguments.vocab), encoding="utf-8")
    reference = Tokenizer.from_file(str(path))
    texts = text_corpus.texts(2, arguments.bytes, EXTRA)
    texts += text_corpus.random_strings(3, 4000, EXTRA)
    texts += [chr(code) for code in range(0x3000) if not 0xD800 <= code <= 0xDFFF]
    tool = TextTool(arguments.tool, path)
    found = 0
    byte_level = kind not in ("llama2", "mistral", "metaspace", "gemma")
    for what, text, wanted, got in differences(reference, tool, texts, byte_level):
        found += 1
        if found <= 3:
            print(f"{kind}: {what}: {text!r}\n  wanted {wanted!r}\n  found  {got!r}"[:3000])
    tool.close()
    total = sum(len(text.encode()) for text in texts)
    print(f"{kind}: {len(texts)} texts, {total} bytes, {found} differences", flush=True)
    return found


def write_golden(kind, lines):
    """A small tokenizer of the kind, and what it says of a few lines."""
    data = json.loads(tokenizer_kinds.train(kind, text_corpus.texts(4, 100_000, []), GOLDEN_VOCAB))
    reference = Tokenizer.from_str(json.dumps(data))
    ids = [reference.encode(line).ids for line in lines]
    golden = {"ids": ids, "texts": [reference.decode(one) for one in ids],
              "texts_with_special": [reference.decode(one, skip_special_tokens=False)
                                     for one in ids],
              "tokenizer": data}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (GOLDEN / f"{kind}.json").write_text(text + "\n", encoding="utf-8")


def golden_lines():
    rng = random.Random(5)
    lines = ["", " ", "Hello, world!", "  two  spaces\r\n\r\n\tand lines \n", "x" * 300,
             "I'll say it's 12345 o'clock", *(text_corpus.line(rng, EXTRA) for _ in range(14))]
    return [line[:160] for line in lines]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=ROOT / "build/release/bin/text_tool")
    parser.add_argument("--bytes", type=int, default=1_200_000)
    parser.add_argument("--vocab", type=int, default=6000)
    parser.add_argument("--write-golden", action="store_true")
    parser.add_argument("kinds", nargs="*", default=[])
    arguments = parser.parse_args()
    names = arguments.kinds or list(tokenizer_kinds.kinds())
    if arguments.write_golden:
        GOLDEN.mkdir(exist_ok=True)
        lines = golden_lines()
        (GOLDEN / "lines.json").write_text(json.dumps(lines, indent=0) + "\n")
        for kind in GOLDEN_KINDS:
            write_golden(kind, lines)
    folder = ROOT / "build" / "tokenizers"
    folder.mkdir(parents=True, exist_ok=True)
    sys.exit(1 if sum(compare(kind, arguments, folder) for kind in names) else 0)


if __name__ == "__main__":
    main()
