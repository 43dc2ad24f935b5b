"""Selective keeping on the bundled model: facts 2,000 tokens back survive where a window loses them.

QUIRE_KEEP_CASES=100 runs that many cases and prints the table of docs/lab/codecs.md; the default is
a sample.
"""

import json
import os

import pytest

import quire_cli
from test_tiny import ALL, TINY, prompt_of

SAMPLE = int(os.environ.get("QUIRE_KEEP_CASES", "5"))


def found(share: float, by: str, folder) -> int:
    """How many of the sample a greedy continuation gets right."""
    text = (TINY / "heldout.txt").read_text()
    cases = [json.loads(line) for line in (TINY / "cases.jsonl").read_text().splitlines()]
    right = 0
    for case in cases[:: ALL // SAMPLE]:
        prompt = folder / "prompt.txt"
        prompt.write_text(prompt_of(case, text))
        done = quire_cli.run("generate", "--model", TINY, "--prompt-file", prompt, "--max-tokens", 6,
                             "--keep", share, "--keep-by", by, "--json")
        assert done.exit_code == 0, done.describe()
        kept = done.json["prompt_tokens"] - done.json["dropped_tokens"]
        assert kept <= share * done.json["prompt_tokens"] + 32
        right += done.json["text"] == case["value"] + "."
    return right


def test_what_the_end_of_the_prompt_attends_to_is_kept(tmp_path):
    exact = found(1.0, "recent", tmp_path)
    table = {(share, by): found(share, by, tmp_path)
             for share in (0.5, 0.25) for by in ("observed", "accumulated", "recent")}
    print(f"\nall: {exact} of {SAMPLE}")
    for (share, by), right in table.items():
        print(f"{share:.0%} by {by}: {right} of {SAMPLE}")
    for share in (0.5, 0.25):
        assert table[share, "observed"] > table[share, "recent"]
        assert table[share, "observed"] >= exact * 0.6


@pytest.mark.parametrize("share", ["0", "1.5", "nan", "-0.25"])
def test_shares_that_make_no_sense(share):
    done = quire_cli.run("generate", "--model", TINY, "--prompt", "abc", "--keep", share, "--json")
    assert done.exit_code in (2, 3), done.describe()
    assert "keep" in done.stderr, done.describe()
