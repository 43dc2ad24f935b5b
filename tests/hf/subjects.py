"""What is compared with transformers: a model directory and a prompt, by name and seed."""

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np

import random_model

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"
TINY_PROMPT_TOKENS = 600
GENERATED_TOKENS = 32
# f32 on both sides; transformers itself is within 8e-5 of its own double precision on these models.
DIFFERENCE_MAX = 2e-3
# Distance of the two best logits at every greedy step: ten times what may differ.
GAP_MIN = 0.02


@dataclasses.dataclass(frozen=True)
class Subject:
    name: str
    model: Path
    prompt: list

    def digest(self) -> str:
        """BLAKE2b-128 of all inputs: config.json, weights, prompt."""
        state = hashlib.blake2b(digest_size=16)
        weights = sorted(self.model.glob("model*.safetensors*"))
        for part in (*(path.read_bytes() for path in (self.model / "config.json", *weights)),
                     np.array(self.prompt, dtype="<i4").tobytes()):
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
        return state.hexdigest()

    def end_tokens(self) -> set:
        """Ids at which generation would stop early."""
        end = json.loads((self.model / "config.json").read_bytes()).get("eos_token_id")
        return set(end if isinstance(end, list) else [] if end is None else [end])


def names() -> list:
    """Every subject that exists here; the bundled model is one as soon as its weights are."""
    tiny = ["tiny"] if (TINY / "model.safetensors").is_file() else []
    return [case.name for case in random_model.CASES] + tiny


def prepare(name: str, seed: int, folder: Path) -> Subject:
    """Effects: a random model is written below `folder`."""
    if name == "tiny":
        # Its vocabulary is bytes, so the text is the ids.
        text = (TINY / "heldout.txt").read_bytes()
        start = 1000 * seed % (len(text) - TINY_PROMPT_TOKENS)
        return Subject(name, TINY, list(text[start : start + TINY_PROMPT_TOKENS]))
    case = next(case for case in random_model.CASES if case.name == name)
    model = folder / f"{name}-{seed}"
    random_model.write_model(case, seed, model)
    return Subject(name, model, random_model.prompt_ids(case, seed))
