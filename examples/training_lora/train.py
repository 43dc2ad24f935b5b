"""Trains a LoRA adapter on texts longer than one forward pass, on K and V that a training owner holds.

    python train.py --model ../../models/tiny --text ../../models/tiny/heldout.txt --steps 20 --save adapter
    python train.py ... --server http://127.0.0.1:8081      # bytes of a server's budget, given back at the end

Each chunk attends to the K and V of the chunks before it, through which no gradient flows; the optimizer steps
at the end of the text, and then nothing of before is read again. Checkpoint layers hold their inputs instead.
Needs: pip install torch transformers peft quire
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
from collections.abc import Callable, Iterator

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

import quire
import quire.lease
import quire.training


def make_model(folder: pathlib.Path, rank: int = 8, seed: int = 0) -> torch.nn.Module:
    """The model in float32 with a fresh adapter on all projections of its attention."""
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, task_type="CAUSAL_LM",
                        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    model = get_peft_model(base, config)
    for name, weight in model.named_parameters():  # else the first gradient of each A is zero
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    return model


def make_registry(model: torch.nn.Module, hot_bytes: int) -> quire.Registry:
    config = model.config
    return quire.Registry(hot_bytes=hot_bytes, layers=config.num_hidden_layers,
                          kv_heads=config.num_key_value_heads, head_dim=config.head_dim, codec="f32")


def read_text(model: torch.nn.Module, tokens: torch.Tensor, chunk: int, kv: quire.training.OwnerKv,
              after_chunk: Callable[[], None] = lambda: None) -> float:
    """Reads one text chunk by chunk and leaves the gradients of its mean loss in the model."""
    total = 0.0
    for begin in range(0, len(tokens) - 1, chunk):
        ids = tokens[begin:begin + chunk]
        targets = tokens[begin + 1:begin + 1 + chunk]
        logits = model(input_ids=ids[None], past_key_values=kv, use_cache=True).logits[0, :len(targets)]
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / (len(tokens) - 1)
        loss.backward()
        kv.commit(ids.tolist())
        total += loss.item()
        after_chunk()
    return total


def train(model: torch.nn.Module, texts: list[torch.Tensor], registry: quire.Registry, adapter: str, *,
          steps: int, chunk: int, checkpoint_layers: list[int], rate: float = 1e-3,
          after_chunk: Callable[[], None] = lambda: None) -> Iterator[float]:
    """One optimizer step for each text, in turn; yields the loss of each step before it is taken."""
    owner = registry.training(adapter, 1, checkpoint_layers=checkpoint_layers)
    kv = quire.training.OwnerKv(owner, model, checkpoint_layers=checkpoint_layers)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=rate)
    model.train()
    try:
        for step in range(steps):
            optimizer.zero_grad()
            yield read_text(model, texts[step % len(texts)], chunk, kv, after_chunk)
            optimizer.step()
            kv.clear()
    finally:
        kv.close()
        owner.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=2048, help="of one text")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of one forward pass")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint-layers", type=int, nargs="*", default=[])
    parser.add_argument("--hot-bytes", type=int, default=64 << 20, help="for K and V of the run")
    parser.add_argument("--server", help="the operator's address of `quire serve`, which leases these bytes")
    parser.add_argument("--save", type=pathlib.Path, help="a folder for the adapter, in the layout of peft")
    options = parser.parse_args()
    model = make_model(options.model)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    ids = torch.tensor(tokenizer.encode(options.text.read_text()).ids)
    texts = [text for text in ids.split(options.tokens) if len(text) > 1]
    with contextlib.ExitStack() as stack:
        if options.server:
            stack.enter_context(quire.lease.ServerLease(options.server, "training lora/1", options.hot_bytes,
                                                        wait_s=60))
        registry = stack.enter_context(make_registry(model, options.hot_bytes))
        losses = train(model, texts, registry, "lora", steps=options.steps, chunk=options.chunk,
                       checkpoint_layers=options.checkpoint_layers)
        for step, loss in enumerate(losses):
            held = registry.stats()["bytes_used"]
            print(f"step {step:3}  loss {loss:.4f}  K and V {held / 1e6:.1f} MB", flush=True)
    if options.save:
        model.save_pretrained(options.save)
        print(f"the adapter is in {options.save}")


if __name__ == "__main__":
    main()
