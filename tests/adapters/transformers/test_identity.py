"""A hit is only what the model would compute itself: whatever changes K and V is a miss or refused.

    python tests/adapters/transformers/test_identity.py      (a line for each situation)

Each situation fills a cache, changes the model in one way, and generates again through the cache.
It yields pairs of tokens that must be equal: with Quire, without. The prompts are fixed and
the models random, so that other weights give other tokens, which each situation checks.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import pytest
import torch
from conftest import clear, generate, make_model, prompt

from quire.transformers import attach

peft = pytest.importorskip("peft", reason="peft is not installed")

TOKENS = 8
IDS = prompt(70)


def tokens_of(model, ids=IDS, cache=None, **options):
    return generate(model, ids, cache=cache, tokens=TOKENS, **options)[:, ids.shape[1]:].tolist()


def lora_model(*adapters, base=None):
    """A Llama with adapters of random weights; the first is active."""
    torch.manual_seed(7)
    model = make_model("llama") if base is None else base
    for name in adapters:
        config = peft.LoraConfig(r=4, lora_alpha=32, init_lora_weights=False,
                                 target_modules=["q_proj", "k_proj", "v_proj", "up_proj"])
        if isinstance(model, peft.PeftModel):
            model.add_adapter(name, config)
        else:
            model = peft.get_peft_model(model, config, adapter_name=name)
    return model.eval()


def refilled(cache, model, ids=IDS, **options):
    """What generate gives now, through the cache and without; both must be the same."""
    return (tokens_of(model, ids, cache.for_prompt(ids), **options),
            tokens_of(model, ids, **options))


def across(model, change, context=contextlib.nullcontext):
    """Fills a cache, changes the model, and generates on it."""
    with attach(model, hot_bytes=50_000_000) as cache:
        first, base = refilled(cache, model)
        yield first, base
        change()
        with context():
            got, expected = refilled(cache, model)
        assert expected != base, "the change changes nothing"
        yield got, expected
        assert cache.stats()["hit_tokens"] == 0
        with context():
            yield refilled(cache, model)
        assert cache.stats()["hit_tokens"] == 64, "what it computes is found again"


def another_adapter(folder):
    model = lora_model("one", "two")
    yield from across(model.get_base_model(), lambda: model.set_adapter("two"))


def adapters_disabled(folder):
    model = make_model("llama")
    model.add_adapter(peft.LoraConfig(r=4, init_lora_weights=False,
                                      target_modules=["k_proj", "v_proj"]))
    yield from across(model.eval(), model.disable_adapters)


def peft_s_disable_adapter(folder):
    model = lora_model("one")
    yield from across(model, lambda: None, model.disable_adapter)


def merged(folder):
    """Merging gives the same tokens, but other weights: then another adapter on top of them."""
    model = lora_model("one", "two")
    with attach(model, hot_bytes=50_000_000) as cache:
        yield refilled(cache, model)
        model.merge_adapter(["one"])
        yield refilled(cache, model)
        assert cache.stats()["hit_tokens"] == 0
        model.merge_adapter(["two"])
        yield refilled(cache, model)
        assert cache.stats()["hit_tokens"] == 0


def unmerged(folder):
    model = lora_model("one", "two")
    model.merge_adapter(["one"])

    def unmerge_and_switch():
        model.unmerge_adapter()
        model.set_adapter("two")

    yield from across(model, unmerge_and_switch)


PROCESS = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
from test_identity import *
model = lora_model("one", "two")
model.set_adapter(sys.argv[3])
with attach(model, hot_bytes=50_000_000, store=sys.argv[2], store_bytes=100_000_000) as cache:
    print(json.dumps([*refilled(cache, model), cache.stats()["hit_tokens"]]))
"""


def in_a_process(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, str(pathlib.Path(__file__).parent), *map(str, arguments)],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def another_adapter_in_a_new_process(folder):
    for adapter, hits in (("one", 0), ("two", 0), ("one", 64), ("two", 64)):
        got, expected, found = in_a_process(PROCESS, folder, adapter)
        yield got, expected
        assert found == hits


def rows_with_different_adapters(folder):
    model = lora_model("one", "two")
    ids = IDS.repeat(3, 1)
    names = ["one", "two", "__base__"]
    expected = tokens_of(model, ids, adapter_names=names)
    assert len(set(map(tuple, expected))) == 3
    with attach(model, hot_bytes=50_000_000) as cache:
        for hits in (0, 3 * 64):
            yield tokens_of(model, ids, cache.for_prompt(ids), adapter_names=names), expected
        assert cache.stats()["hit_tokens"] >= hits
        for adapter in ("two", "one"):
            model.set_adapter(adapter)
            yield refilled(cache, model)
        beams = dict(num_beams=2, adapter_names=names[:2])
        yield refilled(cache, model, ids[:2], **beams)
        yield refilled(cache, model, ids[:2], **beams)


def weights_copied_through_data(folder):
    model, other = make_model("llama"), make_model("llama", seed=1)

    def sync():
        for mine, new in zip(model.parameters(), other.parameters()):
            mine.data.copy_(new.data)

    yield from across(model, sync)


def one_value_written_through_data(folder):
    """So few that no sample of values has them: the hit is computed again in part, and differs."""
    model = make_model("llama")
    weight = model.model.layers[1].self_attn.v_proj.weight

    def poke():
        weight.data[7, 5:9] = 30.0

    yield from across(model, poke)


def a_small_step_of_training(folder):
    """Far below what rounding does to K and V."""
    model = make_model("llama")
    with attach(model, hot_bytes=50_000_000) as cache:
        yield refilled(cache, model)
        for weight in model.parameters():
            weight.data.add_(1e-6 * torch.randn_like(weight).sign())
        yield refilled(cache, model)
        assert cache.stats()["hit_tokens"] == 0


def weights_changed_is_said(folder):
    model = make_model("llama")
    with attach(model, hot_bytes=50_000_000, probe=False) as cache:
        yield refilled(cache, model)
        model.model.layers[1].self_attn.v_proj.weight.data[7, 5:9] = 30.0
        cache.weights_changed()
        yield refilled(cache, model)
        assert cache.stats()["hit_tokens"] == 0


def buffers_written_through_data(folder):
    model = make_model("llama")
    frequencies = model.model.rotary_emb.inv_freq
    yield from across(model, lambda: frequencies.data.mul_(0.9))


def quantized(seed, folder):
    model = make_model("llama", seed=seed)
    model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    with attach(model, hot_bytes=50_000_000, store=folder, store_bytes=100_000_000) as cache:
        # Such a model rounds by the range of all that it is given at once: a miss in these chunks
        # computes what a hit does.
        return *refilled(cache, model, prefill_chunk_size=64), cache.stats()["hit_tokens"]


def two_quantized_models_on_one_store(folder):
    made = [quantized(seed, folder) for seed in (0, 1, 0, 1)]
    yield from (pair for *pair, _ in made)
    assert made[0][1] != made[1][1]
    assert [hits for _, _, hits in made] == [0, 0, 64, 64]


def a_hook(scale):
    return lambda module, arguments, output: output * scale


def a_hook_set_between_calls(folder):
    model = make_model("llama")
    target = model.model.layers[0].mlp
    yield from across(model, lambda: target.register_forward_hook(a_hook(1.5)))


def another_hook_in_its_place(folder):
    model = make_model("llama")
    target = model.model.layers[0].mlp
    handle = target.register_forward_hook(a_hook(1.5))

    def replace():
        handle.remove()
        target.register_forward_hook(a_hook(0.5))

    yield from across(model, replace)


def a_hook_that_changes_what_it_does(folder):
    model, scale = make_model("llama"), [1.5]
    model.model.layers[0].mlp.register_forward_hook(lambda *seen: seen[2] * scale[0])
    yield from across(model, lambda: scale.__setitem__(0, 0.5))


def a_forward_put_in_the_place_of_another(folder):
    model = make_model("llama")
    target = model.model.layers[0].mlp
    forward = target.forward
    yield from across(model, lambda: setattr(target, "forward", lambda x: 2 * forward(x)))


def autocast_then_none(folder):
    model = make_model("llama")
    with autocast():  # a prompt whose tokens rounding does not decide
        ids, _, _ = clear(model, lambda seed: (prompt(70, seed), torch.ones(1, 70)), TOKENS, 0.1)
    with attach(model, hot_bytes=50_000_000) as cache:
        for context in (autocast, contextlib.nullcontext, autocast):
            past = cache.for_prompt(ids)  # outside, as programs do
            with context():
                yield tokens_of(model, ids, past), tokens_of(model, ids)
        assert cache.stats()["hit_tokens"] == 64


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


SITUATIONS = [
    another_adapter, adapters_disabled, peft_s_disable_adapter, merged, unmerged,
    another_adapter_in_a_new_process, rows_with_different_adapters, weights_copied_through_data,
    one_value_written_through_data, a_small_step_of_training, weights_changed_is_said,
    buffers_written_through_data, two_quantized_models_on_one_store, a_hook_set_between_calls,
    another_hook_in_its_place, a_hook_that_changes_what_it_does,
    a_forward_put_in_the_place_of_another, autocast_then_none,
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda function: function.__name__)
def test_no_wrong_token(situation, tmp_path):
    for got, expected in situation(tmp_path / "store"):
        assert got == expected


def main() -> int:
    warnings.simplefilter("ignore")
    wrong = 0
    for situation in SITUATIONS:
        pairs, failure = 0, ""
        with tempfile.TemporaryDirectory() as folder:
            try:
                for got, expected in situation(pathlib.Path(folder) / "store"):
                    pairs += 1
                    if got != expected:
                        failure = "WRONG TOKENS"
            except Exception as error:
                failure = failure or f"{type(error).__name__}: {error}"
        wrong += bool(failure)
        print(f"{situation.__name__:45} {pairs} answers  {failure or 'right'}")
    print(f"{len(SITUATIONS) - wrong} of {len(SITUATIONS)} situations without a wrong token")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
