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

import json
import statistics
import subprocess
import sys

import gguf_model
import kernels_arguments
import llama

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
    """The best of rounds."""
    best = min if unit == "ms/token" else max
    return {"case": case, "unit": unit, "peer": best(theirs), "value": best(ours),
            "ratio": best(ours) / best(theirs),
            "median": statistics.median(a / b for a, b in zip(ours, theirs))}


def decode_row(args, kv, flash, where, depth, shallow, deep, state):
    name = f"decode/{kv}/flash_{'on' if flash else 'off'}/{where}/t{args.threads}"
    deep.restore(llama.repeated(state, depth))
    if deep.depth != depth:
        raise RuntimeError(f"a restored cache of {deep.depth} tokens instead of {depth}")
    wanted = f"decode/{CODECS[kv]}/{where}/t{args.threads}"
    ours, theirs = [], []
    for number in range(args.rounds):
        at_zero_ms = median_token_ms(shallow, 0)
        theirs.append(median_token_ms(deep, depth) - at_zero_ms)
        ours.append(quire_rows(args, "attention", "--case", wanted)[wanted]["value"])
        say(f"{name}: round {number + 1} of {args.rounds}: llama.cpp {theirs[-1]:.1f} ms, "
            f"quire {ours[-1]:.1f} ms")
    return row_of(name, "ms/token", ours, theirs)


def arithmetic_classes(args):
    done = subprocess.run([args.quire, "info", "--json"], check=True, stdout=subprocess.PIPE)
    classes = json.loads(done.stdout)["arithmetic_classes"]
    return [name for name in classes if name == "fma32" or name.startswith("dot16")]


def prompt_rate(args, count, arithmetic):
    """Tokens a second of a prompt in one of the processor's classes."""
    if arithmetic != "fma32":
        row = f"prefill/bf16/{arithmetic}/tokens{count}/t{args.threads}"
        ms = quire_rows(args, "model", "--case", row)[row]["value"]
        return count / (ms * 1e-3 * gguf_model.LAYERS)
    what = f"chunk{count}" if count == CHUNK_TOKENS else f"tokens{count}"
    row = f"prefill/bf16/{what}/t{args.threads}"
    return quire_rows(args, "model", "--case", row)[row]["value"] / gguf_model.GIGAFLOPS_PER_TOKEN


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
            for arithmetic in arithmetic_classes(args):
                ours.setdefault(arithmetic, []).append(prompt_rate(args, count, arithmetic))
            rates = ", ".join(f"{key} {rates[-1]:.0f}" for key, rates in ours.items())
            say(f"{name}: round {number + 1} of {args.rounds}: llama.cpp {theirs[-1]:.0f}, "
                f"quire {rates} tokens/s")
    for arithmetic, rates in ours.items():
        yield row_of(f"prefill/{count}/{arithmetic}/t{args.threads}", "tokens/s", rates, theirs)


def all_rows(args, model, group):
    of_model = group == kernels_arguments.GROUP
    for count in args.prompts if of_model else []:
        yield from prefill_rows(args, model, count)
    depths = [depth for depth in args.depths if depth in kernels_arguments.DEPTHS[group]]
    suffix = "" if of_model else f"/g{group}"
    for kv, flash in SUBJECTS:
        if kv not in args.kv or not depths:
            continue
        say(f"{kv}, flash {'on' if flash else 'off'}: computing {llama.TEMPLATE_TOKENS} tokens")
        deepest = max(depths) + 256
        with (
            llama.Context(model, kv, flash, args.threads, 1024, llama.TEMPLATE_TOKENS) as shallow,
            llama.Context(model, kv, flash, args.threads, deepest, 16) as deep,
        ):
            state = llama.template(shallow)
            for depth in depths:
                yield decode_row(args, kv, flash, f"{depth}{suffix}", depth, shallow, deep, state)


def print_table(rows):
    print(f"{'case':<36} {'quire':>10} {'llama.cpp':>10} {'unit':<10} {'ratio':>6} {'median':>6}")
    for row in rows:
        print(f"{row['case']:<36} {row['value']:>10.2f} {row['peer']:>10.2f} {row['unit']:<10} "
              f"{row['ratio']:>6.3f} {row['median']:>6.3f}")


def main():
    args = kernels_arguments.parse(__doc__)
    rows = []
    for group in args.groups:
        path = args.models / f"qwen3-0.6b-g{group}-random-bf16.gguf"
        say(f"the model: {path}")
        gguf_model.write_model(path, group)
        rows += all_rows(args, llama.load_model(path), group)
    if args.json:
        print(json.dumps({"bench": "kernels", "peer": llama.VERSION, "threads": args.threads,
                          "rounds": args.rounds, "rows": rows}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
