#!/usr/bin/env python3
"""Measures attach() beside what transformers has: time of a miss and a hit, and memory of K and V.

    python tests/adapters/transformers/bench_generate.py [--json FILE] [--rounds 5] [--threads 1]

The model is a random Llama made from a config. Prompts are new in each round, so that the first
call is a miss and the second a hit; the ways take turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, QuantizedCache

from quire.transformers import attach

PROGRAM = os.environ.get(
    "QUIRE", pathlib.Path(__file__).resolve().parents[3] / "build/release/quire")
PROMPT_TOKENS, NEW_TOKENS = 2000, 32
MISS_MAX, HIT_MAX = 1.05, 0.35  # of the time of sdpa


def make_model(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=2000, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=4096,
        pad_token_id=0, bos_token_id=1, eos_token_id=None))
    return model.to(dtype).eval()


def prompt(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 2000, (1, PROMPT_TOKENS), generator=generator)


def run(
    model: Any, ids: torch.Tensor, cache: Any, new_tokens: int = NEW_TOKENS
) -> tuple[Any, float]:
    start = time.perf_counter()
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache,
                         max_new_tokens=new_tokens, do_sample=False)
    return out, time.perf_counter() - start


def times(model: Any, rounds: int) -> dict[str, Any]:
    """Best seconds of sdpa, a miss, a hit and a hit that is not probed, alternating."""
    best = {name: float("inf") for name in ("sdpa", "miss", "hit", "hit_unprobed")}
    same = True
    run(model, prompt(99), DynamicCache())
    for seed in range(rounds):
        ids = prompt(seed)
        base, seconds = run(model, ids, DynamicCache())
        best["sdpa"] = min(best["sdpa"], seconds)
        for probe, names in ((True, ("miss", "hit")), (False, ("", "hit_unprobed"))):
            with attach(model, hot_bytes=200_000_000, probe=probe) as cache:
                cache.for_prompt(ids[:, :16]).close()  # hashes the weights, once per model
                for name in names:
                    start = time.perf_counter()
                    past = cache.for_prompt(ids)  # the look-up counts
                    looked_up = time.perf_counter() - start
                    out, seconds = run(model, ids, past)
                    past.close()
                    best[name] = min(best.get(name, float("inf")), looked_up + seconds)
                    same = same and torch.equal(out, base)
    best.pop("", None)
    return {**best, "miss_ratio": best["miss"] / best["sdpa"],
            "hit_ratio": best["hit"] / best["sdpa"],
            "hit_unprobed_ratio": best["hit_unprobed"] / best["sdpa"], "same_tokens": same}


def tensor_bytes(cache: Any) -> int:
    """Bytes of every tensor that a cache of transformers holds (quantized ones inside quanto's)."""
    seen: dict[int, int] = {}

    def visit(thing: Any) -> None:
        if isinstance(thing, torch.Tensor) and type(thing) in (torch.Tensor, torch.nn.Parameter):
            seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, torch.Tensor):  # a subclass that wraps others
            for name in thing.__tensor_flatten__()[0]:
                visit(getattr(thing, name))
        elif isinstance(thing, (list, tuple)):
            for item in thing:
                visit(item)
        elif isinstance(thing, dict):
            for item in thing.values():
                visit(item)

    for layer in cache.layers:
        visit(vars(layer))
    return sum(seen.values())


def memory(model: Any, rounds: int, new_tokens: int = NEW_TOKENS) -> list[dict[str, Any]]:
    """Bytes of K and V after one prompt, and decoded tokens a second, of each kind of cache: they
    take turns, and the best round of each counts."""
    ways: dict[str, Callable[[Any, torch.Tensor, int], dict[str, Any]]] = {
        "DynamicCache": functools.partial(of_transformers, DynamicCache)}
    for bits in (4, 2):  # what its backend quanto has
        ways[f"QuantizedCache quanto int{bits}"] = functools.partial(
            of_transformers,
            functools.partial(QuantizedCache, "quanto", model.config, nbits=bits))
    for codec in ("f32", "int8", "nf4"):
        ways[f"quire {codec}"] = functools.partial(of_quire, codec)
    rows: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for name, way in ways.items():
            if "skipped" in rows.get(name, {}):
                continue
            try:
                if number == 0:
                    way(model, prompt(7)[:, :300], 3)  # quanto compiles its kernels at first use
                row = way(model, prompt(7), new_tokens)
            except ImportError as error:
                rows[name] = {"cache": name, "skipped": str(error)}
                continue
            best = max(row["tokens_per_s"], rows.get(name, row)["tokens_per_s"])
            rows[name] = {"cache": name, **row, "tokens_per_s": best}
    return list(rows.values())


def values_of(config: Any) -> int:
    """K and V of one token."""
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim)


def of_transformers(
    make: Callable[[], Any], model: Any, ids: torch.Tensor, new_tokens: int
) -> dict[str, Any]:
    """One of its own caches."""
    cache = make()
    begin, end = decode_times(model, ids, cache, new_tokens)
    held = tensor_bytes(cache)
    values = (ids.shape[1] + new_tokens - 1) * values_of(model.config)
    return {"bytes": held, "bits_per_value": 8 * held / values,
            "tokens_per_s": (new_tokens - 1) / (end - begin)}


def of_quire(codec: str, model: Any, ids: torch.Tensor, new_tokens: int) -> dict[str, Any]:
    """Ours, new for each prompt."""
    with attach(model, hot_bytes=200_000_000, kv=codec) as cache:
        past = cache.for_prompt(ids)
        begin, end = decode_times(model, ids, past, new_tokens)
        stats = cache.stats()
        held = sum(stats[kind]["slots_used"] * stats[kind]["slot_bytes"]
                   for kind in ("sealed", "open"))
        past.close()
        stats = cache.stats()
        kept = stats["sealed"]["slots_used"] * stats["sealed"]["slot_bytes"]
        tokens = ids.shape[1] + new_tokens - 1
        values = tokens // 16 * 16 * values_of(model.config)
        plan = plan_of(codec, model.config, tokens)
        return {"bytes": held, "bytes_kept": kept, "bits_per_value": 8 * kept / values,
                "plan_bits_per_value": plan["bits_per_value"],
                "plan_bytes_most": plan["bytes_total"],  # while the prompt is read, too
                "plan_bytes_kept": plan["bytes_per_block"] * (tokens // 16),
                "tokens_per_s": (new_tokens - 1) / (end - begin)}


def decode_times(model: Any, ids: torch.Tensor, cache: Any, new_tokens: int) -> tuple[float, float]:
    """When the first and when the last new token was there."""
    stamps: list[float] = []
    handle = model.register_forward_hook(lambda *_: stamps.append(time.perf_counter()))
    run(model, ids, cache, new_tokens)
    handle.remove()
    return stamps[0], stamps[-1]


def plan_of(codec: str, config: Any, tokens: int) -> dict[str, Any]:
    """What `quire plan` says of so many tokens."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(config.to_json_string(use_diff=False))
        file.flush()
        done = subprocess.run([PROGRAM, "plan", "--config", file.name, "--tokens", str(tokens),
                               "--kv", codec, "--json"], check=True, stdout=subprocess.PIPE)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="fail where a bound does not hold")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = {
        "torch": torch.__version__, "transformers": transformers.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": options.threads,
        "model": "Llama, 4 layers, hidden 512, 8 heads, 4 of K and V, random",
        "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS,
        "f32": times(make_model(torch.float32), options.rounds),
        "memory": memory(make_model(torch.float32), options.rounds),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    found = report["f32"]
    for row in report["memory"]:
        if "plan_bytes_kept" in row and (row["bytes_kept"] != row["plan_bytes_kept"]
                                         or row["bytes"] > row["plan_bytes_most"]):
            raise SystemExit(f"{row['cache']} takes other memory than `quire plan` says: {row}")
    if options.check and not (found["miss_ratio"] <= MISS_MAX and found["hit_ratio"] <= HIT_MAX
                              and found["same_tokens"]):
        raise SystemExit(f"miss {found['miss_ratio']:.2f} (at most {MISS_MAX}), hit "
                         f"{found['hit_ratio']:.2f} (at most {HIT_MAX})")


if __name__ == "__main__":
    main()
