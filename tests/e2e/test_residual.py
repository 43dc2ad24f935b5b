"""The last tokens read in full precision: the same bits hit or miss, and hits where twins were kept."""

import functools

import pytest

import quire_cli
from test_codecs import BITS_MAX, PROMPT, TINY

BLOCK = 16
MAX_TOKENS = 20
WAYS = {
    "hit": ["--repeat", 2],
    "third_run": ["--repeat", 3, "--chunk", 100],
    "chunk_16": ["--chunk", 16],
    "chunk_100": ["--chunk", 100],
    "chunk_1": ["--chunk", 1],
    "two_threads": ["--threads", 2],
    "in_company": ["--beside", 2, "--threads", 2],
    "all_at_once": ["--repeat", 2, "--beside", 3, "--threads", 2, "--chunk", 77],
}


def run(prompt, *flags):
    done = quire_cli.run("generate", "--model", TINY, "--prompt", prompt, "--max-tokens",
                         MAX_TOKENS, "--json", "--threads", 1, *flags)
    assert done.exit_code == 0, done.describe()
    return done.json


def found(response, block_tokens):
    return (response["prompt_tokens"] - 1) // block_tokens * block_tokens


@functools.cache
def plain(codec, residual):
    return run(PROMPT, "--kv", codec, "--residual", residual)


@pytest.mark.parametrize("residual", [16, 128])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", BITS_MAX)
def test_bits_do_not_depend_on_how_it_ran(codec, way, residual):
    want = plain(codec, residual)
    got = run(PROMPT, "--kv", codec, "--residual", residual, *WAYS[way])
    assert got["logits_digest"] == want["logits_digest"]
    assert want["reused_tokens"] == 0
    # The end of the prompt is a place where a hit may end.
    repeated = "--repeat" in WAYS[way]
    assert got["reused_tokens"] == (found(got, BLOCK) if repeated else 0)


@pytest.mark.parametrize("codec", BITS_MAX)
def test_what_is_read_open_shows(codec):
    digests = {plain(codec, residual)["logits_digest"] for residual in (0, 16, 128)}
    assert len(digests) == 3


@pytest.mark.parametrize("kv", [("int8", "nf4"), ("f16", "int4"), ("q25", "fp8_e4m3")])
def test_k_and_v_are_chosen_separately(kv):
    k, v = kv
    flags = ["--k", k, "--v", v, "--residual", 128]
    want = run(PROMPT, *flags)
    for way in ("hit", "chunk_100", "in_company"):
        got = run(PROMPT, *flags, *WAYS[way])
        assert got["logits_digest"] == want["logits_digest"]
        assert got["reused_tokens"] == (found(got, BLOCK) if way == "hit" else 0)


@pytest.mark.parametrize("block_tokens", [16, 32, 64])
@pytest.mark.parametrize("residual", [16, 100, 128, 5000])
def test_other_blocks(block_tokens, residual):
    flags = ["--kv", "int8", "--residual", residual, "--block-tokens", block_tokens]
    miss, hit = run(PROMPT, *flags), run(PROMPT, *flags, "--repeat", 2, "--chunk", 50)
    assert hit["logits_digest"] == miss["logits_digest"]
    assert hit["reused_tokens"] == found(miss, block_tokens)


@pytest.mark.parametrize("length", [15, 16, 17, 128, 129, 144, 145, 256, 257])
def test_prompts_that_end_at_a_block(length):
    """The same prompt again leaves a token to compute, and is found up to there."""
    flags = ["--kv", "int4", "--residual", 128]
    miss, hit = run(PROMPT[:length], *flags), run(PROMPT[:length], *flags, "--repeat", 2)
    assert hit["logits_digest"] == miss["logits_digest"]
    assert hit["prompt_tokens"] == length
    assert hit["reused_tokens"] == found(hit, BLOCK)


def test_codecs_that_do_not_encode_are_refused():
    done = quire_cli.run("generate", "--model", TINY, "--prompt", "abc", "--kv", "f16",
                         "--residual", 16, "--json")
    assert done.exit_code == 3 and "--residual 16" in done.stderr, done.describe()


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_keeping_part_of_a_prompt(share):
    got = run(PROMPT, "--kv", "int8", "--residual", 128, "--keep", share)
    # Its first block and what is read open stay in any case.
    assert got["prompt_tokens"] - got["dropped_tokens"] >= 16 + 128
    assert got["dropped_tokens"] > 0
