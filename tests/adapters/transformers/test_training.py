"""Training on K and V that an owner holds: as plain torch does it, with and without checkpoint layers, two
runs at once beside a server that leases them their bytes, and never evicted."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import sys
import threading

import pytest
import torch
import torch.utils.checkpoint
from tokenizers import Tokenizer
from transformers import DynamicCache

import quire
import quire.lease
import quire.training

ROOT = pathlib.Path(__file__).resolve().parents[3]
TINY = ROOT / "models/tiny"
sys.path += [str(ROOT / "examples/training_lora"), str(ROOT / "tests/e2e")]

import quire_server  # noqa: E402
import train  # noqa: E402

CHUNK = 96


@pytest.fixture(scope="module")
def texts():
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    ids = torch.tensor(tokenizer.encode((TINY / "heldout.txt").read_text()).ids)
    return list(ids[:1200].split(400))


class PlainKv(DynamicCache):
    """The same chunks on torch's tensors alone."""

    def commit(self, tokens):
        for layer in self.layers:
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()


def gradients(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def plain_run(texts, steps):
    """Losses, and the gradients of the last step."""
    model = train.make_model(TINY)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
    model.train()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(train.read_text(model, texts[step % len(texts)], CHUNK, PlainKv()))
        last = gradients(model)
        optimizer.step()
    return losses, last


def owned_run(texts, steps, checkpoint_layers=(), registry=None, adapter="lora", after_chunk=lambda: None,
              model=None):
    model = model or train.make_model(TINY)
    losses, last = [], None
    made = registry or train.make_registry(model, 64 << 20)
    for loss in train.train(model, texts, made, adapter, steps=steps, chunk=CHUNK,
                            checkpoint_layers=list(checkpoint_layers), after_chunk=after_chunk):
        losses.append(loss)
        last = gradients(model)
    return losses, last


def assert_equal(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys() and len(one[1]) == 4 * 4 * 2
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


def test_losses_and_gradients_are_those_of_plain_torch(texts):
    plain = plain_run(texts, 4)
    assert len(set(plain[0])) == 4 and all(value.abs().max() > 0 for value in plain[1].values())
    assert_equal(owned_run(texts, 4), plain)


def test_a_text_in_chunks_has_the_loss_of_a_text_in_one(texts):
    model = train.make_model(TINY)
    whole = model(input_ids=texts[0][None], labels=texts[0][None]).loss.item()
    with train.make_registry(model, 64 << 20) as registry:
        kv = quire.training.OwnerKv(registry.training("lora", 1), model)
        assert train.read_text(model, texts[0], CHUNK, kv) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("layers", [[1, 3], [0], [0, 1, 2]])
def test_checkpoint_layers_change_no_bit_and_take_no_bytes(texts, layers):
    held = []
    with train.make_registry(train.make_model(TINY), 64 << 20) as registry:
        def note():
            held.append(max(owner["bytes"] for owner in registry.stats()["owners"]))

        whole = owned_run(texts, 2, registry=registry, after_chunk=note)
        of_whole = max(held)
        held.clear()
        assert_equal(owned_run(texts, 2, layers, registry, after_chunk=note), whole)
    assert max(held) == of_whole * (4 - len(layers)) // 4


def test_a_layer_may_be_asked_twice(texts):
    """As torch.utils.checkpoint does in the backward pass."""
    expected = owned_run(texts, 1)
    model = train.make_model(TINY)
    model.train()
    for layer in model.get_base_model().get_decoder().layers:
        attend = layer.self_attn.forward

        def again(*args, attend=attend, **kwargs):
            return torch.utils.checkpoint.checkpoint(attend, *args, use_reentrant=False, **kwargs)

        layer.self_attn.forward = again
    with train.make_registry(model, 64 << 20) as registry:
        kv = quire.training.OwnerKv(registry.training("lora", 1), model)
        assert train.read_text(model, texts[0], CHUNK, kv) == expected[0][0]
        assert_equal(([expected[0][0]], gradients(model)), expected)


def test_a_thousand_requests_evict_no_run(texts):
    alone = owned_run(texts, 2)
    identity = quire.Identity(bytes(32))
    with train.make_registry(train.make_model(TINY), 6 << 20) as registry:
        numbers = iter(range(1000))

        def ask(count):
            for number in [next(numbers) for _ in range(count)]:
                owner = registry.inference(number, identity)
                rows = torch.full((40, 2, 64), float(number))
                for layer in range(4):
                    owner.append(layer, rows, rows)
                owner.commit([number] * 40)

        chunks = 2 * 5
        assert_equal(owned_run(texts, 2, registry=registry, after_chunk=lambda: ask(1000 // chunks)), alone)
        assert next(numbers, None) is None
        stats = registry.stats()
        assert stats["bytes_used"] <= stats["budget_bytes"]
        assert len(stats["owners"]) < 1000  # requests were evicted


def test_two_runs_beside_a_server_on_one_budget(texts, tmp_path):
    """The server's budget pays for both runs, whose losses, gradients and its answers are those of each alone."""
    alone = owned_run(texts, 3), owned_run(texts, 3, [1, 3])
    total, leased = 24 << 20, 8 << 20
    calls = [{"prompt": f"Chapter {number}. It is a truth universally acknowledged, that", "max_tokens": 24,
              "temperature": 0, "logprobs": 5} for number in range(6)]
    os.environ.setdefault("QUIRE_BINARY", str(ROOT / "build/release/quire"))
    with quire_server.serving(tmp_path, "--hot-bytes", str(total), "--operator-listen", "127.0.0.1:0") as server:
        def say(call):
            status, answer = server.ask("/v1/completions", call)
            assert status == 200, answer
            return answer["choices"][0]  # text and logprobs, to the last bit that JSON has of them

        expected = [say(call) for call in calls]
        ended, budgets = threading.Event(), []
        models = [train.make_model(TINY) for _ in alone]  # transformers loads one at a time

        def serve():
            said = []
            while not ended.is_set() or len(said) < len(calls):
                said.append(say(calls[len(said) % len(calls)]))
            return said

        with (quire.lease.ServerLease(server.operator_url, "training", leased, wait_s=30) as lease,
              train.make_registry(train.make_model(TINY), lease.bytes) as registry,
              concurrent.futures.ThreadPoolExecutor(3) as threads):
            def note():
                budget = server.ask("/v1/cache", url=server.operator_url)[1]["budget"]
                stats = registry.stats()
                budgets.append(stats["bytes_used"] + budget["used_bytes"])
                assert stats["bytes_used"] <= leased and budget["used_bytes"] <= total - leased

            served = threads.submit(serve)
            runs = [threads.submit(owned_run, texts, 3, layers, registry, adapter, note, model)
                    for layers, adapter, model in zip(([], [1, 3]), "ab", models, strict=True)]
            try:
                for run, one in zip(runs, alone, strict=True):
                    assert_equal(run.result(), one)
            finally:
                ended.set()
            said = served.result()
        assert all(text == expected[i % len(calls)] for i, text in enumerate(said))
        assert len(budgets) == 2 * 3 * 5 and max(budgets) <= total


def test_what_cannot_be_held_is_refused(texts):
    model = train.make_model(TINY)
    with train.make_registry(model, 64 << 20) as registry:
        owner = registry.training("lora", 1)
        with pytest.raises(quire.InvalidArgumentError, match="checkpoint layer 4"):
            quire.training.OwnerKv(owner, model, checkpoint_layers=[4])
        kv = quire.training.OwnerKv(owner, model)
        with pytest.raises(quire.UnsupportedError, match="a batch of 2"):
            model(input_ids=texts[0][None, :8].repeat(2, 1), past_key_values=kv, use_cache=True)
        # transformers' own checkpointing reads without a cache.
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        model(input_ids=texts[0][None, :8], past_key_values=kv, use_cache=True)
        with pytest.raises(quire.UnsupportedError, match="use checkpoint_layers instead"):
            kv.commit(texts[0][:8].tolist())
        model.config.layer_types = ["full_attention", "sliding_attention"] * 2
        with pytest.raises(quire.UnsupportedError, match="sliding_attention"):
            quire.training.OwnerKv(owner, model)


def test_a_trained_adapter_is_served_and_its_next_version_finds_nothing_of_it(texts, tmp_path):
    """Blocks of the version before are there, and are named as what they are: of another profile."""
    model = train.make_model(TINY)
    with train.make_registry(model, 64 << 20) as registry:
        for version in ("1", "2"):
            list(train.train(model, texts, registry, "lora", steps=2, chunk=CHUNK, checkpoint_layers=[1]))
            model.save_pretrained(tmp_path / "adapters" / version)
    prompt = "It is a truth universally acknowledged, that a single man must be in want of a wife. "
    os.environ.setdefault("QUIRE_BINARY", str(ROOT / "build/release/quire"))
    with quire_server.serving(tmp_path / "server", "--adapter", f"lora={tmp_path}/adapters/1", "--adapter-directory",
                              tmp_path / "adapters", "--operator-listen", "127.0.0.1:0") as server:
        def cached(name):
            status, answer = server.ask("/v1/completions", {"model": "lora", "prompt": prompt, "max_tokens": 2},
                                        headers={"X-Request-Id": name})
            assert status == 200, answer
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [cached("first") > 0, cached("second") > 0] == [False, True]
        for call, body in (("unload", {}), ("load", {"lora_path": "2"})):
            status, answer = server.ask(f"/v1/{call}_lora_adapter", {"lora_name": "lora", **body},
                                        url=server.operator_url)
            assert status == 200, answer
        assert cached("third") == 0
        assert server.line_of("third")["cache"]["missed"]["other_profile"] >= 64
        assert cached("fourth") > 0
