"""What transformers computes: the judge of `quire generate`. Needs PyTorch."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


@dataclasses.dataclass(frozen=True)
class Greedy:
    """One greedy run."""

    ids: list  # the generated tokens
    logits: np.ndarray  # f32 [prompt + generated - 1, vocab]
    gap_min: float  # smallest distance between the two best logits of a step


def load(folder: Path):
    """The model in float32 with the plain attention code, whatever the file's precision is."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def greedy(model, prompt: list, tokens: int) -> Greedy:
    """Continues `prompt` by the best token, `tokens` times, with transformers' own KV cache."""
    rows, ids, cache, feed = [], [], None, prompt
    for _ in range(tokens):
        output = model(torch.tensor([feed]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0].numpy())
        ids.append(int(np.argmax(rows[-1][-1])))
        feed = [ids[-1]]
    logits = np.concatenate(rows).astype(np.float32)
    best = np.sort(logits[len(prompt) - 1 :], axis=1)
    return Greedy(ids=ids, logits=logits, gap_min=float((best[:, -1] - best[:, -2]).min()))
