"""Quire beside llama.cpp on this machine: the attention of one decoded token, and a prompt.

Both compute a model of Qwen3-0.6B's shape with random bf16 weights. What is compared:

  decode/KV/flash_X/DEPTH   milliseconds of attention per decoded token. llama.cpp: a token at
                            DEPTH minus a token at depth 0, both whole steps of the model, so that
                            everything but attention over the cache cancels out. Quire: `quire bench
                            attention`, the kernels over all layers of a cache of DEPTH tokens.
  prefill/TOKENS/CLASS      tokens a second of a prompt in chunks of 512, K and V in f16 there and bf16
                            here. llama.cpp: its whole step. Quire: `quire bench model`, one layer
                            times their number, in each arithmetic class that the processor has.

The two take turns, and a neighbour only makes them slower: a row is the best of its rounds of each.
`ratio` is Quire / llama.cpp, `median` the median of the same over the rounds: less than 1 for times,
more than 1 for rates is where Quire is ahead.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import gguf_model
import llama

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKENS_PER_SAMPLE = 3
CHUNK_TOKENS = 512
# Quire's codec of as many bits as llama.cpp's type.
CODECS = {"f16": "f16", "q8_0": "int8", "q4_0": "int4"}
# Quantized V needs flash attention there.
SUBJECTS = [("f16", False), ("f16", True), ("q8_0", True), ("q4_0", True)]


def say(line):
    print(line, file=sys.stderr, flush=True)


def quire_rows(args, *flags):
    command = [args.quire, "bench", *flags, "--json", "--pairs", "5"]
    command += ["--threads", str(args.threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return {row["case"]: row for row in json.loads(done.stdout)["rows"]}


def median_token_ms(context, depth):
    context.cut(depth)
    seconds = [context.decode([1 + i]) for i in range(TOKENS_PER_SAMPLE)]
    context.cut(depth)
    return statistics.median(seconds) * 1e3


def row_of(case, unit, ours, theirs):
    """The best of rounds; `ours` is empty where Quire has no such codec in this build."""
    best = min if unit == "ms/token" else max
    row = {"case": case, "unit": unit, "peer": best(theirs)}
    if ours:
        row["value"] = best(ours)
        row["ratio"] = row["value"] / row["peer"]
        row["median"] = statistics.median(a / b for a, b in zip(ours, theirs))
    else:
        row["note"] = "no such codec in this build of quire"
    return row


def decode_row(args, kv, flash, depth, shallow, deep, state):
    name = f"decode/{kv}/flash_{'on' if flash else 'off'}/{depth}/t{args.threads}"
    deep.restore(llama.repeated(state, depth))
    if deep.depth != depth:
        raise RuntimeError(f"a restored cache of {deep.depth} tokens instead of {depth}")
    wanted = f"decode/{CODECS[kv]}/{depth}"
    ours, theirs = [], []
    for number in range(args.rounds):
        at_zero_ms = median_token_ms(shallow, 0)
        theirs.append(median_token_ms(deep, depth) - at_zero_ms)
        row = quire_rows(args, "attention", "--case", wanted).get(f"{wanted}/t{args.threads}")
        value = None if row is None else row["value"]
        if value is not None:
            ours.append(value)
        say(f"{name}: round {number + 1} of {args.rounds}: llama.cpp {theirs[-1]:.1f} ms"
            + (f", quire {value:.1f} ms" if value is not None else ""))
    return row_of(name, "ms/token", ours, theirs)


def prompt_rates(args, count):
    """Tokens a second of a prompt by arithmetic class, in chunks of CHUNK_TOKENS."""
    rows = quire_rows(args, "model", "--case", f"/tokens{count}/t{args.threads}")
    names = [name.split("/")[2] for name in rows]
    per_layer = {name: row["value"] for name, row in zip(names, rows.values())}
    if rows:  # each beside fma32
        per_layer["fma32"] = min(row["floor"] for row in rows.values())
        return {name: count / (ms * 1e-3 * gguf_model.LAYERS) for name, ms in per_layer.items()}
    if count != CHUNK_TOKENS:
        return {}
    row = f"prefill/bf16/chunk{CHUNK_TOKENS}/t{args.threads}"
    rates = quire_rows(args, "model", "--case", row)
    return {"fma32": rates[row]["value"] / gguf_model.GIGAFLOPS_PER_TOKEN}


def prefill_rows(args, model, count):
    tokens = [i * 7919 % 1000 for i in range(count)]
    chunks = [tokens[at:at + CHUNK_TOKENS] for at in range(0, count, CHUNK_TOKENS)]
    ours, theirs = {}, []
    name = f"prefill/{count}/t{args.threads}"
    with llama.Context(model, "f16", True, args.threads, count + 512, CHUNK_TOKENS) as context:
        context.decode(chunks[0])
        for number in range(args.rounds):
            context.clear()
            theirs.append(count / sum(context.decode(chunk) for chunk in chunks))
            for arithmetic, rate in prompt_rates(args, count).items():
                ours.setdefault(arithmetic, []).append(rate)
            rates = ", ".join(f"{key} {rates[-1]:.0f}" for key, rates in ours.items())
            say(f"{name}: round {number + 1} of {args.rounds}: llama.cpp {theirs[-1]:.0f}, "
                f"quire {rates} tokens/s")
    for arithmetic, rates in ours.items():
        yield row_of(f"prefill/{count}/{arithmetic}/t{args.threads}", "tokens/s", rates, theirs)


def all_rows(args, model):
    for count in args.prompts:
        yield from prefill_rows(args, model, count)
    for kv, flash in SUBJECTS:
        if kv not in args.kv:
            continue
        say(f"{kv}, flash {'on' if flash else 'off'}: computing {llama.TEMPLATE_TOKENS} tokens")
        deepest = max(args.depths) + 256
        with (
            llama.Context(model, kv, flash, args.threads, 1024, llama.TEMPLATE_TOKENS) as shallow,
            llama.Context(model, kv, flash, args.threads, deepest, 16) as deep,
        ):
            state = llama.template(shallow)
            for depth in args.depths:
                yield decode_row(args, kv, flash, depth, shallow, deep, state)


def print_table(rows):
    print(f"{'case':<36} {'quire':>10} {'llama.cpp':>10} {'unit':<10} {'ratio':>6}")
    for row in rows:
        ours = f"{row['value']:.2f}" if "value" in row else "-"
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else "-"
        print(f"{row['case']:<36} {ours:>10} {row['peer']:>10.2f} {row['unit']:<10} {ratio:>6}"
              f"  {row.get('note', '')}".rstrip())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quire", default=str(ROOT / "build/release/quire"))
    parser.add_argument("--model", default=str(ROOT / "build/peers/qwen3-0.6b-random-bf16.gguf"))
    parser.add_argument("--depths", default="4096,16384,32768")
    parser.add_argument("--prompts", default="512,4096", help="of `quire bench model`'s cases")
    parser.add_argument("--kv", default="f16,q8_0,q4_0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    args.depths = [int(depth) for depth in args.depths.split(",")]
    args.prompts = [int(count) for count in args.prompts.split(",")]
    args.kv = args.kv.split(",")

    say(f"the model: {args.model}")
    gguf_model.write_model(args.model)
    rows = list(all_rows(args, llama.load_model(args.model)))
    if args.json:
        print(json.dumps({"bench": "kernels", "peer": llama.VERSION, "threads": args.threads,
                          "rounds": args.rounds, "rows": rows}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
