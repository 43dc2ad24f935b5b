"""--arithmetic dot16: models of bf16 on the processor's products of bf16, with the same bits hit or miss and however a run
is cut up; what it cannot do is refused with what to do."""

import functools
import json
import subprocess

import pytest

import quire_cli
import quire_server
import random_model
from rank_processes import TINY, mpirun

SEED = 5
PROMPT_TOKENS = 300
MAX_TOKENS = 6
USABLE = json.loads(quire_cli.run("info", "--json").stdout)["arithmetic_classes"]
CLASSES = ("dot16-amx", "dot16-avx512")
# Inputs that are no whole steps of 32, biases, windows.
ODD = random_model.Case(
    "dot16-llama", family="llama", layers=2, hidden=72, heads=6, kv_heads=2, head_dim=24, intermediate=100, vocab=320,
    rope_theta=5e5, tied=False, prompt_tokens=PROMPT_TOKENS, dtype="BF16", attention_bias=True, mlp_bias=True)
HALF = random_model.Case(
    "dot16-f16", layers=1, hidden=64, heads=2, kv_heads=1, head_dim=32, intermediate=64, vocab=320, rope_theta=1e4,
    tied=True, prompt_tokens=16, dtype="F16")
WAYS = {
    "hit": {"repeat": 2},
    "chunk_16": {"chunk": 16},
    "chunk_100": {"chunk": 100},
    "chunk_1": {"chunk": 1},
    "threads_2": {"threads": 2},
    "beside_7": {"beside": 7},
    "all_at_once": {"repeat": 2, "chunk": 77, "threads": 2, "beside": 7},
}


def usable(arithmetic):
    if arithmetic not in USABLE:
        pytest.skip(f"this processor has no {arithmetic}")
    return arithmetic


def any_usable():
    found = [name for name in CLASSES if name in USABLE]
    if not found:
        pytest.skip("this processor has neither AMX nor AVX512-BF16")
    return found[0]


@pytest.fixture(scope="module", params=["tiny", "odd"])
def subject(request, tmp_path_factory):
    """(model directory, prompt)."""
    if request.param == "tiny":
        text = (TINY / "heldout.txt").read_bytes()
        return TINY, tuple(text[2000:2000 + PROMPT_TOKENS])
    folder = tmp_path_factory.mktemp(ODD.name)
    random_model.write_model(ODD, SEED, folder)
    return folder, tuple(random_model.prompt_ids(ODD, SEED))


@functools.cache
def baseline(model, prompt, arithmetic):
    return quire_cli.generate(model, prompt, max_tokens=MAX_TOKENS, arithmetic=arithmetic, threads=1,
                              chunk=len(prompt)).json


@pytest.mark.parametrize("arithmetic", CLASSES)
@pytest.mark.parametrize("way", sorted(WAYS))
def test_digest_does_not_depend_on_the_way(subject, arithmetic, way):
    model, prompt = subject
    want = baseline(model, prompt, usable(arithmetic))
    got = quire_cli.generate(model, prompt, max_tokens=MAX_TOKENS, arithmetic=arithmetic, **WAYS[way]).json
    reused = (len(prompt) - 1) // 16 * 16 if "repeat" in WAYS[way] else 0
    assert got["reused_tokens"] == reused
    assert got["logits_digest"] == want["logits_digest"]


def test_every_class_has_bits_of_its_own(subject):
    model, prompt = subject
    said = [baseline(model, prompt, name) for name in ("fma32", *CLASSES) if name in USABLE]
    assert len({each["logits_digest"] for each in said}) == len(said)
    any_usable()
    best = quire_cli.generate(model, prompt, max_tokens=MAX_TOKENS, arithmetic="dot16").json
    assert best["logits_digest"] == baseline(model, prompt, any_usable())["logits_digest"]


def test_blocks_of_one_class_are_never_taken_for_anothers(tmp_path):
    any_usable()
    prompt = tuple(range(40, 140))
    for name in ("fma32", *CLASSES):
        if name not in USABLE:
            continue
        run = functools.partial(quire_cli.generate, TINY, prompt, max_tokens=2, store=tmp_path / "store",
                                arithmetic=name)
        miss = run().json
        assert miss["reused_tokens"] == 0, name
        hit = run().json
        assert hit["reused_tokens"] == 96, name
        assert hit["logits_digest"] == miss["logits_digest"], name


@pytest.mark.parametrize("mode", ["pipeline", "sequence"])
def test_ranks_give_the_bits_of_one_process(mode):
    arithmetic = any_usable()
    prompt = tuple(range(40, 200))
    got = quire_cli.generate(TINY, prompt, max_tokens=MAX_TOKENS, arithmetic=arithmetic, ranks=mode,
                             rank_threads=2).json
    assert got["logits_digest"] == baseline(TINY, prompt, arithmetic)["logits_digest"]


@pytest.mark.parametrize("mode", ["pipeline", "sequence"])
def test_ranks_of_two_classes_refuse_each_other(mode):
    arithmetic = any_usable()
    run = [str(word) for word in (quire_cli.binary(), "generate", "--model", TINY, "--prompt", "a", "--max-tokens", 1,
                                  "--ranks", mode, "--ranks-deadline", 10)]
    command = [*mpirun(1), *run, ":", "-n", "1", *run, "--arithmetic", arithmetic]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode != 0
    assert "rank 1" in done.stderr, done.stderr


def test_serve_answers_with_it(tmp_path):
    said = []
    with quire_server.serving(tmp_path, "--arithmetic", any_usable()) as server:
        for name in ("miss", "hit"):
            status, answer = server.ask("/v1/completions", {"prompt": "Once upon a time there was a small fox",
                                                            "max_tokens": 4}, headers={"X-Request-Id": name})
            assert status == 200, answer
            said.append(answer["choices"][0]["text"])
        assert server.line_of("hit")["cache"]["reused_tokens"] > 0
    assert said[0] == said[1]


def test_what_it_cannot_do_is_refused_with_what_to_do(tmp_path):
    arithmetic = any_usable()
    run = ("generate", "--prompt-ids", "1,2,3", "--max-tokens", "1", "--arithmetic", arithmetic)
    random_model.write_model(HALF, SEED, tmp_path)
    for flags in (("--model", tmp_path), ("--model", TINY, "--compute", "f32"),
                  ("--model", TINY, "--device", "emulated")):
        done = quire_cli.run(*run, *flags)
        assert done.exit_code == 3 and "--arithmetic fma32" in done.stderr, done.describe()
    done = quire_cli.run("bench", "model", "--arithmetic", "dot16")
    assert done.exit_code == 3 and "--case dot16" in done.stderr, done.describe()


@pytest.mark.parametrize("arithmetic", [*CLASSES, "dot16"])
def test_a_processor_without_it_says_so(arithmetic):
    if arithmetic in USABLE or (arithmetic == "dot16" and any(name in USABLE for name in CLASSES)):
        pytest.skip(f"this processor has {arithmetic}")
    done = quire_cli.run("generate", "--model", TINY, "--prompt", "a", "--arithmetic", arithmetic)
    assert done.exit_code == 3 and "--arithmetic fma32" in done.stderr, done.describe()


def test_perplexity_is_that_of_fma32(tmp_path):
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a small fox. " * 12)
    said = {}
    for name in ("fma32", any_usable()):
        done = quire_cli.run("eval", "--model", TINY, "--text", text, "--kv", "int8", "--context", "64",
                             "--arithmetic", name, "--json")
        assert done.exit_code == 0, done.describe()
        said[name] = done.json["ppl"]
    first, second = said.values()
    assert second == pytest.approx(first, rel=1e-3)
