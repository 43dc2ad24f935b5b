"""quire generate --stats: what the cache counts, and what another size would hit."""

from quire_cli import REPOSITORY, run

TINY = REPOSITORY / "models" / "tiny"
PROMPT = "The quick brown fox jumps over the lazy dog and walks home through a long field of wheat."


def test_stats_are_printed_on_request():
    flags = ("--model", TINY, "--prompt", PROMPT, "--max-tokens", 4, "--repeat", 4, "--json")
    assert "tenant" not in run("generate", *flags).json
    done = run("generate", *flags, "--stats")
    assert done.exit_code == 0, done.describe()
    tenant = done.json["tenant"]
    assert done.json["cache"]["lookups"] == tenant["lookups"] == 4
    # The first of four runs finds nothing, the others everything, and so would any larger cache.
    assert tenant["reuse_lookup_blocks"] == 4 * ((done.json["prompt_tokens"] - 1) // 16)
    assert list(tenant["lru_hit_ratio_at"]) == ["0.5x", "1x", "2x", "4x"]
    assert all(abs(ratio - 0.75) < 1e-9 for ratio in tenant["lru_hit_ratio_at"].values())


def test_people_get_them_as_text():
    done = run("generate", "--model", TINY, "--prompt", PROMPT, "--max-tokens", 4, "--stats")
    assert done.exit_code == 0, done.describe()
    assert "lru_hit_ratio_at.2x" in done.stderr and "hot_bytes_used" in done.stderr
