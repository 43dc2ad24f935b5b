"""Another order of the arena's axes moves the bytes and changes none of them."""

import pytest

import quire_cli

TINY = quire_cli.REPOSITORY / "models/tiny"
PROMPT = "The harbour was empty when the keeper came down to light the lamp. " * 6


def digest(layout, *flags):
    done = quire_cli.run("generate", "--model", TINY, "--prompt", PROMPT, "--max-tokens", 8,
                         "--json", "--layout", layout, *flags)
    assert done.exit_code == 0, done.describe()
    return done.json["logits_digest"], done.json["reused_tokens"]


@pytest.mark.parametrize("layout", ["layer_major", "head_major"])
@pytest.mark.parametrize("codec", ["f32", "f16"])
def test_layout_does_not_show(layout, codec):
    want, _ = digest("block_major", "--kv", codec)
    assert digest(layout, "--kv", codec) == (want, 0)
    again, reused = digest(layout, "--kv", codec, "--repeat", 2, "--threads", 2)
    assert again == want
    assert reused > 300


def test_unknown_layout_is_bad_usage():
    done = quire_cli.run("generate", "--model", TINY, "--prompt", "x", "--layout", "diagonal")
    assert done.exit_code == 2, done.describe()
    assert "layer_major" in done.stderr
