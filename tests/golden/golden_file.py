"""Committed answers of transformers: cases.json, and per case NAME.npy with a few rows of logits.

Written by `tests/hf/run.sh --write-golden`; read by tests/e2e/test_golden.py with numpy alone.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
CASES_FILE = FOLDER / "cases.json"
POSITIONS_WANTED = 24
# Edges of blocks (16), of splits (256), and the wrap of the sixteen lanes (16 * 256).
EDGES = (15, 16, 17, 31, 32, 63, 64, 127, 128, 255, 256, 257, 511, 512, 4095, 4096, 4097,
         4351, 4352)


@dataclasses.dataclass(frozen=True)
class Golden:
    name: str
    seed: int
    inputs_blake2b: str  # subjects.Subject.digest(): config, weights and prompt
    gap_min: float
    generated_ids: list
    positions: list  # row i of logits belongs to positions[i]
    logits: np.ndarray  # f32 [positions, vocab]


def choose_positions(prompt_tokens: int, rows: int) -> list:
    """Ends, edges, prompt end, then evenly spread ones until there are POSITIONS_WANTED."""
    chosen = {0, 1, prompt_tokens - 2, prompt_tokens - 1, prompt_tokens, rows - 1}
    chosen |= {edge for edge in EDGES if edge < rows}
    for position in np.linspace(2, rows - 2, POSITIONS_WANTED).astype(int).tolist():
        if len(chosen) < POSITIONS_WANTED:
            chosen.add(position)
    return sorted(chosen)


def read_all() -> dict:
    """Every committed case by name."""
    if not CASES_FILE.is_file():
        return {}
    cases = json.loads(CASES_FILE.read_text(encoding="utf-8"))["cases"]
    return {case["name"]: Golden(**case, logits=np.load(FOLDER / f"{case['name']}.npy"))
            for case in cases}


def write_all(cases: list, reference: str) -> None:
    """Replaces the files of `cases`; `reference` names the programs that made the numbers."""
    described = []
    for case in cases:
        np.save(FOLDER / f"{case.name}.npy", case.logits.astype("<f4"))
        fields = dataclasses.asdict(case)
        del fields["logits"]
        described.append(fields)
    lines = ",\n".join("    " + json.dumps(fields) for fields in described)
    CASES_FILE.write_text(
        f'{{\n  "reference": {json.dumps(reference)},\n  "cases": [\n{lines}\n  ]\n}}\n',
        encoding="utf-8")
