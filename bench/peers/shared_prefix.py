"""Many clients with one long prefix: `quire serve` beside llama-cpp-python's server, same weights.

64 clients ask at once. Their prompts begin with the same 8,000 tokens of text and end with a
question of each; every answer has 32 tokens, greedy. What is measured is generated tokens a second,
from the first request to the last answer, on caches that have not seen the prefix:

  sharing       Quire: the prefix is computed once, and the answers are computed together
  no sharing    the same server; each request says "reuse": false and computes all of its prompt
  llama.cpp     python -m llama_cpp.server on the same model as a GGUF file: one request at a time,
                which goes on from what it has in common with the one before

They take turns on one machine, each round with a prefix of its own; without sharing, which takes
minutes, only the first. A row is the best of its rounds; `ratio` is Quire / llama.cpp, `median` the
median of the same over the rounds.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import llama_cpp

import gguf_tiny

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models/tiny"
HOT_BYTES = 3 << 30  # all clients at once without sharing, with room to spare
START_S = 120
SAME_FIRST_MIN = 0.9  # of answers whose first characters agree; rounding may decide the others
FIRST_CHARACTERS = 4


def say(line):
    print(line, file=sys.stderr, flush=True)


def post(url, call):
    request = urllib.request.Request(url + "/v1/completions", data=json.dumps(call).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)


@contextlib.contextmanager
def running(command, log):
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(ready, process, log):
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        found = ready()
        if found:
            return found
        time.sleep(0.1)
    raise RuntimeError(f"{process.args[0]} does not serve:\n" + pathlib.Path(log).read_text()[-3000:])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def quire_server(args, folder):
    log = folder / "quire.log"
    command = [args.quire, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--hot-bytes",
               str(HOT_BYTES), "--threads", str(args.threads), "--access-log", "",
               "--running", str(args.clients), "--calls-per-tenant", str(2 * args.clients)]
    with running(command, log) as process:
        def ready():
            found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
            return found and found.group()
        yield wait_until(ready, process, log)


@contextlib.contextmanager
def llama_server(args, folder):
    model, log, port = folder / "tiny.gguf", folder / "llama.log", free_port()
    gguf_tiny.write_model(MODEL, model)
    config = json.loads((MODEL / "config.json").read_text())
    command = [sys.executable, "-m", "llama_cpp.server", "--model", model, "--model_alias", "tiny",
               "--port", str(port), "--n_ctx", str(config["max_position_embeddings"]),
               "--n_threads", str(args.threads), "--n_threads_batch", str(args.threads),
               "--flash_attn", str(args.flash), "--interrupt_requests", "false",
               "--verbose", "false"]
    with running(command, log) as process:
        url = f"http://127.0.0.1:{port}"

        def ready():
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url + "/v1/models", timeout=5).close()
                return url
        yield wait_until(ready, process, log)


def ask_all(url, prompts, tokens, more):
    """Tokens a second, seconds of each answer, and the texts."""
    barrier = threading.Barrier(len(prompts) + 1)

    def ask(prompt):
        barrier.wait()
        begin = time.perf_counter()
        answer = post(url, {"model": "tiny", "prompt": prompt, "max_tokens": tokens,
                            "temperature": 0, **more})
        seconds = time.perf_counter() - begin
        return answer["usage"], seconds, answer["choices"][0]["text"]

    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        asked = [pool.submit(ask, prompt) for prompt in prompts]
        barrier.wait()
        begin = time.perf_counter()
        answers = [one.result() for one in asked]
        seconds = time.perf_counter() - begin
    generated = sum(usage["completion_tokens"] for usage, _, _ in answers)
    expected = [len(prompt) for prompt in prompts]
    if [usage["prompt_tokens"] for usage, _, _ in answers] != expected:
        raise RuntimeError("a server counts other prompt tokens: its tokenizer differs")
    return {"tokens_per_s": generated / seconds, "seconds": seconds,
            "answer_s_median": statistics.median(took for _, took, _ in answers),
            "texts": [text for _, _, text in answers]}


def prompts_of(number, args):
    """A prefix of its own for each round, and a question of each client; a byte is a token."""
    text = (MODEL / "heldout.txt").read_text(encoding="ascii", errors="ignore")
    begin = number * args.prefix_tokens % (len(text) - args.prefix_tokens)
    prefix = text[begin:begin + args.prefix_tokens]
    words = text.split()
    return [f"{prefix} {i:02d} {' '.join(words[7 * i:7 * i + 5])[:40]}"
            for i in range(args.clients)]


def row(case, ours, theirs):
    rates = [[one["tokens_per_s"] for one in each] for each in (ours, theirs)]
    return {"case": case, "unit": "tokens/s", "value": max(rates[0]), "peer": max(rates[1]),
            "ratio": max(rates[0]) / max(rates[1]),
            "median": statistics.median(a / b for a, b in zip(*rates)),
            "answer_s_median": min(one["answer_s_median"] for one in ours),
            "peer_answer_s_median": min(one["answer_s_median"] for one in theirs)}


def measure(args):
    folder = ROOT / "build/peers"
    folder.mkdir(parents=True, exist_ok=True)
    seen = {"sharing": [], "no sharing": [], "llama.cpp": []}
    with quire_server(args, folder) as quire, llama_server(args, folder) as llama:
        ways = {"sharing": (quire, {}), "no sharing": (quire, {"reuse": False}),
                "llama.cpp": (llama, {})}
        for url in (quire, llama):  # what is done at a first request is not measured
            ask_all(url, [f"{i} warm" for i in range(2)], 2, {})
        for number in range(args.rounds):
            for name, (url, more) in ways.items():
                if name == "no sharing" and number >= args.unshared_rounds:
                    continue
                seen[name].append(ask_all(url, prompts_of(number, args), args.tokens, more))
                say(f"round {number + 1} of {args.rounds}: {name}: "
                    f"{seen[name][-1]['tokens_per_s']:.1f} tokens/s, "
                    f"{seen[name][-1]['seconds']:.2f} s")
    check(seen)
    name = f"{args.clients} clients/{args.prefix_tokens} tokens"
    return [row(f"{name}/{way}", seen[way], seen["llama.cpp"]) for way in ("sharing", "no sharing")]


def check(seen):
    """The same answers, or it would be no comparison."""
    for ours, alone in zip(seen["sharing"], seen["no sharing"]):
        if ours["texts"] != alone["texts"]:
            raise RuntimeError("Quire's answers depend on sharing")
    for ours, theirs in zip(seen["sharing"], seen["llama.cpp"]):
        same = sum(a[:FIRST_CHARACTERS] == b[:FIRST_CHARACTERS]
                   for a, b in zip(ours["texts"], theirs["texts"])) / len(ours["texts"])
        if same < SAME_FIRST_MIN:
            raise RuntimeError(f"only {same:.0%} of the answers begin alike: other weights?")


def print_table(rows):
    print(f"{'case':<42} {'quire':>9} {'llama.cpp':>10} {'unit':<9} {'ratio':>7} {'median':>7}")
    for one in rows:
        print(f"{one['case']:<42} {one['value']:>9.1f} {one['peer']:>10.1f} {one['unit']:<9} "
              f"{one['ratio']:>7.3f} {one['median']:>7.3f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quire", default=str(ROOT / "build/release/quire"))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--prefix-tokens", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unshared-rounds", type=int, default=1,
                        help="of these, with the requests that share nothing: minutes each")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--flash", action="store_true", help="llama.cpp with flash attention")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if min(args.rounds, args.unshared_rounds) < 1:
        parser.error("at least one round of each")
    rows = measure(args)
    if args.json:
        print(json.dumps({"bench": "shared_prefix",
                          "peer": f"llama-cpp-python {llama_cpp.__version__}",
                          "threads": args.threads, "rounds": args.rounds, "rows": rows}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
