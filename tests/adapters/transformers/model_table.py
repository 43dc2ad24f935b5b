#!/usr/bin/env python3
"""Tries attach() on a tiny random model of every decoder type that transformers has.

    python tests/adapters/transformers/model_table.py [--page docs/adapters/models.md] [TYPE...]

For each type generate() runs without Quire, on a miss and on a hit; the tokens must be equal. The
page lists what came out. Exit code 1: a model answered wrongly, or failed with an error that is not
Quire's.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import warnings
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import quire
from quire.transformers import attach

PARAMETERS_MAX = 60_000_000
PROMPT_TOKENS, NEW_TOKENS = 40, 8
MARGIN = 0.02  # of the best two logits, in standard deviations: no rounding decides the tokens

# Where a config has a field of this name, a tiny model has this value. The second set is tried
# where the first makes no model, the third where a type wants as many heads of K and V as others.
SMALL: dict[str, Any] = dict(
    vocab_size=300, hidden_size=64, n_embd=64, d_model=64, dim=64, embedding_size=64,
    intermediate_size=96, ffn_dim=96, ffn_hidden_size=96, n_inner=96, d_ff=96, decoder_ffn_dim=96,
    encoder_ffn_dim=96, moe_intermediate_size=32, shared_expert_intermediate_size=32,
    num_hidden_layers=2, n_layer=2, n_layers=2, num_layers=2, decoder_layers=2, encoder_layers=2,
    num_attention_heads=4, n_head=4, n_heads=4, num_heads=4, decoder_attention_heads=4,
    encoder_attention_heads=4, num_key_value_heads=2, num_kv_heads=2, head_dim=16, v_head_dim=16,
    d_kv=16, rotary_dim=8, max_position_embeddings=512, n_positions=512, max_seq_len=512, n_ctx=512,
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
    topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16,
    qk_rope_head_dim=8, max_window_layers=2, word_embed_proj_dim=64, attention_types=None,
    pad_token_id=0, bos_token_id=1, eos_token_id=None, use_cache=True, is_decoder=True,
)
VARIANTS: tuple[dict[str, Any], ...] = (
    {}, {"layer_types": ["full_attention"] * 2, "mlp_layer_types": None},
    {"num_hidden_layers": 4, "num_layers": 4}, {"num_key_value_heads": 4, "num_kv_heads": 4},
    {"head_dim": None}, {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 32},
)


def small(config: Any, variant: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config that are made small."""
    return {name: value for name, value in {**SMALL, **variant}.items()
            if hasattr(config, name)
            and getattr(getattr(type(config), name, None), "fset", True) is not None}


def make_config(kind: str, variant: dict[str, Any]) -> Any:
    """A small config of a type."""
    plain = AutoConfig.for_model(kind)
    fields = small(plain, variant)
    if "attention_types" in fields:  # gpt_neo
        fields["attention_types"] = [[["global"], fields["num_layers"]]]
    made = type(plain)(**fields)
    text = made.get_text_config(decoder=True)
    if text is not made:  # a config around another one
        made = type(plain)(**fields, text_config=small(text, variant))
    return made


def make_model(kind: str) -> Any:
    """A tiny random model. Raises: the error of the last try."""
    failure: Exception | None = None
    for variant in VARIANTS:
        try:
            config = make_config(kind, variant)
            with torch.device("meta"):
                count = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            if count > PARAMETERS_MAX:
                raise ValueError(f"{count / 1e6:.0f} million parameters")
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config).float().eval()
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.data.mul_(3)  # else the logits of a random model are nearly tied
            with torch.no_grad():
                model(input_ids=torch.tensor([[5, 6, 7]]))
            return model
        except Exception as error:
            failure = failure or error
    assert failure is not None
    raise failure


def generate(model: Any, ids: torch.Tensor, cache: Any = None, **options: Any) -> Any:
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                          past_key_values=cache, max_new_tokens=NEW_TOKENS,
                          min_new_tokens=NEW_TOKENS, **options)


def clear_prompt(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A prompt, and its tokens without Quire, that no rounding decides (or the best of some)."""
    best: tuple[float, Any, Any] = (-1.0, None, None)
    for seed in range(8):
        ids = torch.randint(3, 300, (1, PROMPT_TOKENS),
                            generator=torch.Generator().manual_seed(seed))
        out = generate(model, ids, output_logits=True, return_dict_in_generate=True)
        logits = torch.stack(out.logits, 1).float()
        two = logits.topk(2).values
        margin = float(((two[..., 0] - two[..., 1]) / logits.std(-1)).min())
        if margin > best[0]:
            best = margin, ids, out.sequences
        if margin >= MARGIN:
            break
    return best[1], best[2]


def judge(kind: str) -> tuple[str, str]:
    """(equal | refused | wrong | error | not made, a reason)."""
    try:
        model = make_model(kind)
        ids, base = clear_prompt(model)
    except Exception as error:
        return "not made", f"{type(error).__name__}: {error}"
    try:
        with attach(model, hot_bytes=20_000_000) as cache:
            miss = generate(model, ids, cache.for_prompt(ids))
            hit = generate(model, ids, cache.for_prompt(ids))
            how = "on copies" if cache.copies else ""
            found = cache.stats()["hit_tokens"]
    except quire.UnsupportedError as error:
        return "refused", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    if not torch.equal(base, miss):
        return "wrong", "on a miss"
    if not torch.equal(base, hit):
        return "wrong", "on a hit"
    return ("equal", how) if found == 32 else ("wrong", f"a hit of {found} tokens, not 32")


def page(rows: list[tuple[str, str, str]]) -> str:
    """The page of the docs."""
    def cell(text: str) -> str:
        line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
        return line if len(line) <= 160 else line[:157] + "..."

    counts = {name: sum(row[1] == name for row in rows)
              for name in ("equal", "refused", "wrong", "error", "not made")}
    in_place, on_copies = (
        ", ".join(f"`{kind}`" for kind, outcome, how in rows if (outcome, how) == ("equal", wanted))
        for wanted in ("", "on copies"))
    lines = [
        "# Model types of transformers", "",
        "Made by `tests/adapters/transformers/model_table.py --page`: a tiny random model of each "
        "decoder type, whose",
        "greedy tokens must be the same without Quire, on a miss and on a hit. "
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, f32.",
        "", "| outcome | types |", "|---|---|",
        *(f"| {name} | {count} |" for name, count in counts.items()), "",
        "\"Not made\": no tiny model of the type could be built or run by itself, so nothing is "
        "known of it.", "", "## Equal, on Quire's blocks in place", "", in_place, "",
        "## Equal, on copies", "",
        "Their layers attend by themselves, to tensors that are copied from the blocks.", "",
        on_copies, "",
        "## Refused, with what attach or generate says", "", "| type | reason |", "|---|---|",
        *(f"| `{kind}` | {cell(why)} |" for kind, outcome, why in rows if outcome == "refused")]
    for name in ("wrong", "error", "not made"):
        if counts[name]:
            lines += ["", f"## {name.capitalize()}", "", "| type | what happened |", "|---|---|",
                      *(f"| `{kind}` | {cell(why)} |" for kind, outcome, why in rows
                        if outcome == name)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", help="some types only")
    parser.add_argument("--page", type=pathlib.Path, help="write the page of the docs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)
    rows = []
    for kind in options.types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        rows.append((kind, *judge(kind)))
        print(*rows[-1][:2], " ".join(rows[-1][2].split())[:200], flush=True)
    if options.page:
        options.page.write_text(page(rows))
    bad = [kind for kind, outcome, _ in rows if outcome in ("wrong", "error")]
    print(f"{len(rows)} types, {len(bad)} wrong or with an error of their own: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
