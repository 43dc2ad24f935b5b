"""Compares `quire generate` with transformers, or writes the golden files (--write-golden).

Prints one line per check and ends with `N passed, N failed`; exit 1 when a check failed.
"""

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model is local; never ask the network

TESTS = Path(__file__).resolve().parents[1]
for sibling in ("e2e", "golden"):
    sys.path.insert(0, str(TESTS / sibling))

import numpy as np
import torch
import transformers

import golden_file
import quire_cli
import reference
import subjects

SEEDS_MAX = 200
# Between two builds of PyTorch: other kernels, other order of sums, the same model.
GOLDEN_DRIFT_MAX = 5e-4


class Table:
    """Prints checks as they come and counts them."""

    def __init__(self):
        self.passed = self.failed = 0
        print(f"{'case':11} {'check':22} {'seed':>4} {'measured':>24}  result")

    def add(self, name: str, check: str, seed: int, measured: str, passed: bool) -> None:
        self.passed += passed
        self.failed += not passed
        print(f"{name:11} {check:22} {seed:4} {measured:>24}  {'ok' if passed else 'FAILED'}",
              flush=True)


def find_seed(name: str, first: int, folder: Path) -> tuple:
    """(seed, subject, greedy run) of the first seed whose greedy steps are all clear decisions."""
    for seed in itertools.chain([first], range(SEEDS_MAX)):
        subject = subjects.prepare(name, seed, folder)
        greedy = reference.greedy(reference.load(subject.model), subject.prompt,
                                  subjects.GENERATED_TOKENS)
        if greedy.gap_min > subjects.GAP_MIN and not subject.end_tokens() & set(greedy.ids):
            return seed, subject, greedy
    raise SystemExit(f"{name}: no seed below {SEEDS_MAX} keeps the two best logits apart")


def make_golden(name: str, folder: Path) -> golden_file.Golden:
    seed, subject, greedy = find_seed(name, 0, folder)
    positions = golden_file.choose_positions(len(subject.prompt), len(greedy.logits))
    print(f"{name}: seed {seed}, gap {greedy.gap_min:.4f}, {len(positions)} positions", flush=True)
    return golden_file.Golden(
        name=name, seed=seed, inputs_blake2b=subject.digest(), gap_min=round(greedy.gap_min, 4),
        generated_ids=greedy.ids, positions=positions, logits=greedy.logits[positions])


def compare_with_golden(table: Table, golden, subject, seed: int, greedy) -> None:
    """The committed file still says what transformers says."""
    if golden is None:
        table.add(subject.name, "golden file", seed, "missing: --write-golden", False)
    elif seed != golden.seed or golden.inputs_blake2b != subject.digest():
        table.add(subject.name, "golden file", seed, "made from other inputs", False)
    else:
        drift = float(np.abs(greedy.logits[golden.positions] - golden.logits).max())
        table.add(subject.name, "golden max |diff|", seed, f"{drift:.2e}",
                  drift <= GOLDEN_DRIFT_MAX and greedy.ids == golden.generated_ids)


def compare_with_quire(table: Table, subject, seed: int, greedy, folder: Path) -> None:
    try:
        ours = quire_cli.generate(subject.model, subject.prompt, folder / "logits.npy",
                                  max_tokens=subjects.GENERATED_TOKENS, temperature=0,
                                  compute="f32", kv="f32")
    except (AssertionError, FileNotFoundError) as error:
        table.add(subject.name, "quire generate", seed, "did not run", False)
        print(error)
        return
    if ours.logits.shape != greedy.logits.shape:
        table.add(subject.name, "logits shape", seed, str(ours.logits.shape), False)
        return
    difference = float(np.abs(ours.logits - greedy.logits).max())
    table.add(subject.name, "logits max |diff|", seed, f"{difference:.2e}",
              difference <= subjects.DIFFERENCE_MAX)  # False for NaN too
    same = sum(a == b for a, b in zip(ours.greedy_ids(), greedy.ids))
    table.add(subject.name, "greedy tokens", seed, f"{same}/{len(greedy.ids)} (gap "
              f"{greedy.gap_min:.3f})", ours.greedy_ids() == greedy.ids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write-golden", action="store_true", help="replace tests/golden/")
    parser.add_argument("--only", metavar="NAME", help="one case")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)

    names = [arguments.only] if arguments.only else subjects.names()
    committed = golden_file.read_all()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.write_golden:
            made = {name: make_golden(name, folder) for name in names}
            versions = (f"transformers {transformers.__version__}, torch {torch.__version__}, "
                        "eager attention, f32")
            golden_file.write_all(list((committed | made).values()), versions)
            return 0
        table = Table()
        for name in names:
            golden = committed.get(name)
            seed, subject, greedy = find_seed(name, golden.seed if golden else 0, folder)
            compare_with_golden(table, golden, subject, seed, greedy)
            compare_with_quire(table, subject, seed, greedy, folder)
    if "tiny" not in names and not arguments.only:
        print("models/tiny has no weights yet: not compared")
    print(f"{table.passed} passed, {table.failed} failed")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
