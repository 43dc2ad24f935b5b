"""How well the model knows English: bits per byte of the held-out text, and a sample."""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent


@torch.no_grad()
def bits_per_byte(model, text: bytes, window: int) -> float:
    """Of the whole text but its first half window.

    Windows overlap by half and only their second half counts, so that every byte counted has at
    least half a window of context, as it would in use.
    """
    half, total, count = window // 2, 0.0, 0
    for start in range(0, len(text) - half - 1, half):
        ids = torch.tensor([list(text[start : start + window + 1])])
        logits = model(ids[:, :-1]).logits[0, half:]
        total += F.cross_entropy(logits, ids[0, half + 1 :], reduction="sum").item()
        count += len(logits)
    return total / count / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE, help="folder of the model")
    parser.add_argument("--text", type=Path, default=HERE / "heldout.txt")
    parser.add_argument("--windows", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--prompt", default="It was a fine morning, and Elizabeth")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    for window in args.windows:
        bits = bits_per_byte(model, args.text.read_bytes(), window)
        print(f"{bits:.3f} bits per byte with {window // 2} to {window} bytes of context")
    torch.manual_seed(0)
    ids = torch.tensor([list(args.prompt.encode())])
    for settings in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_k": 0}):
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=200,
                             **settings)
        print(settings, bytes(i for i in out[0].tolist() if i < 256))


if __name__ == "__main__":
    main()
