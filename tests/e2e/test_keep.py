"""Selective keeping on the bundled model: facts 2,000 tokens back survive where a window loses them.

QUIRE_KEEP_CASES=100 runs that many cases and prints the table of docs/lab/codecs.md; the default is
a sample.
"""

import json
import os

import pytest

import quire_cli
import random_model
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


def test_a_bound_of_blocks_holds_however_long_the_answer(tmp_path):
    """20,000 tokens with 16 blocks in a budget of 18, where the whole answer takes 1,251."""
    case = random_model.Case("keep", layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32,
                             intermediate=128, vocab=288, rope_theta=1e6, tied=True, prompt_tokens=0,
                             dtype="BF16", fields={"max_position_embeddings": 1 << 15})
    model = tmp_path / "model"
    random_model.write_model(case, 1, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((TINY / name).read_bytes())
    flags = ["generate", "--model", model, "--prompt", "It is a truth", "--max-tokens", 20_000,
             "--json"]
    bounded = quire_cli.run(*flags, "--keep-blocks", 16)
    assert bounded.exit_code == 0, bounded.describe()
    assert bounded.json["generated_tokens"] == 20_000
    assert bounded.json["dropped_tokens"] > 20_000 - 16 * 16
    block_bytes = 16 * 2 * 2 * 2 * 32 * 2  # tokens, layers, K and V, heads, values, bytes
    assert bounded.json["kv_bytes"] <= 16 * block_bytes
    budget = 20 * block_bytes
    again = quire_cli.run(*flags, "--keep-blocks", 16, "--hot-bytes", budget)
    assert again.exit_code == 0, again.describe()
    assert again.json["logits_digest"] == bounded.json["logits_digest"]
    whole = quire_cli.run(*flags, "--hot-bytes", budget)
    assert whole.exit_code == 4, whole.describe()
    recent = quire_cli.run(*flags, "--keep-blocks", 16, "--keep-by", "recent")
    assert recent.exit_code == 0, recent.describe()
    wrong = quire_cli.run(*flags, "--keep-blocks", 7)
    assert wrong.exit_code in (2, 3) and "blocks_max" in wrong.stderr, wrong.describe()


def test_retrieval_within_a_bound_of_blocks():
    """All blocks that a case has are as good as no bound; few lose what lies far back."""
    accuracy = {}
    for blocks in (0, 400, 32):
        done = quire_cli.run("eval", "--model", TINY, "--text", TINY / "heldout.txt", "--kv", "bf16",
                             "--retrieval", SAMPLE, "--keep-blocks", blocks, "--json")
        assert done.exit_code == 0, done.describe()
        assert done.json["keep_blocks"] == blocks
        accuracy[blocks] = done.json["accuracy"]
    print("\nfound, by blocks:", accuracy)
    assert accuracy[400] == accuracy[0]
    assert accuracy[32] <= accuracy[0]
