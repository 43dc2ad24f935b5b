"""A precision ladder from Python: blocks that grow cold are found by requests that accept them."""

from __future__ import annotations

import functools
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from conftest import DIM, KV_HEADS, LAYERS, append, digest, make_cache, rows

import quire
from quire.engine import Engine

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny"
TEXT = "It is a truth universally acknowledged. " * 10
PROMPT = list(range(100, 400))
WHOLE = 288  # tokens of its whole blocks
BUDGET = 400_000  # two of it in both forms


def make(**options):
    """A cache that writes f16 and leaves int4."""
    options = {"ladder": "f16:int4", "hot_bytes": BUDGET, **options}
    return quire.Cache(layers=LAYERS, kv_heads=KV_HEADS, head_dim=DIM, **options)


def compute(cache, identity, tokens, **request):
    sequence = cache.open(cache.acquire(tokens, identity, **request))
    missing = list(tokens[sequence.length:])
    append(sequence, missing, np.float16)
    sequence.commit(missing)
    return sequence


def values(sequence):
    """[layers, K and V, kv_heads, tokens, DIM]: what the sequence reads."""
    return np.stack([[sequence.gather(layer, role) for role in ("key", "value")]
                     for layer in range(LAYERS)])


@functools.cache
def exact_values(tokens):
    """Those of a cache that has room for all."""
    with make(hot_bytes=8 << 20) as cache:
        return values(compute(cache, quire.Identity(digest("weights")), tokens))


def differs(sequence, tokens):
    """The largest relative error of a layer's K or V; 0 says that all bits are the same."""
    want, got = exact_values(tuple(tokens)), values(sequence)
    if got.tobytes() == want.tobytes():
        return 0.0
    noise, signal = (np.sqrt((each ** 2).sum(axis=(2, 3, 4))) for each in (got - want, want))
    return float((noise / signal).max())


def fill(cache, identity, prompts):
    """Other prompts of 200 tokens, each computed and let go."""
    for number in prompts:
        compute(cache, identity, list(range(1000 * number, 1000 * number + 200))).close()


@pytest.fixture
def cold(identity):
    """A cache whose budget other prompts filled after PROMPT, which it has in mixed forms."""
    cache = make()
    compute(cache, identity, PROMPT).close()
    fill(cache, identity, range(1, 3))
    return cache


def test_without_pressure_everything_is_exact(identity):
    for layer, role in ((0, "key"), (1, "value")):  # f16, rotated for int4 and back
        np.testing.assert_allclose(exact_values(tuple(PROMPT))[layer, int(role == "value")],
                                   rows(PROMPT, layer, KV_HEADS, role).transpose(1, 0, 2),
                                   atol=2e-3)
    cache = make()
    assert cache.codecs == {"key": "int4", "value": "int4", "open": "f16"}
    for _ in range(2):
        with compute(cache, identity, PROMPT) as sequence:
            assert differs(sequence, PROMPT) == 0
            assert sequence.stats()["tokens_approximate"] == 0
    stats = cache.stats()
    assert stats["hit_tokens"] == WHOLE
    assert (stats["evicted_twins_total"], stats["approximate_hit_tokens"]) == (0, 0)
    assert 0.01 < stats["key_error_mean"] < 0.2 and 0.01 < stats["value_error_mean"] < 0.2
    for accepted in (0.0, 1.0):
        plan = cache.acquire(PROMPT, identity, approximate_error_max=accepted)
        assert (plan.resident_tokens, plan.approximate_tokens) == (WHOLE, 0)
        assert plan.approximate_error == 0


def test_an_exact_request_sees_none_of_what_grew_cold(cold, identity):
    assert cold.stats()["evicted_twins_total"] > 0
    plan = cold.acquire(PROMPT, identity)
    assert plan.resident_tokens < WHOLE
    assert plan.reason == "approximate"
    assert plan.missing[0] == ("approximate", WHOLE - plan.resident_tokens)
    assert (plan.approximate_tokens, plan.approximate_error) == (0, 0)
    # What it computes anew is exact, for later requests too.
    with cold.open(plan) as sequence:
        missing = PROMPT[sequence.length:]
        append(sequence, missing, np.float16)
        sequence.commit(missing)
        assert differs(sequence, PROMPT) == 0
    again = cold.acquire(PROMPT, identity, approximate_error_max=1)
    assert (again.resident_tokens, again.approximate_tokens) == (WHOLE, 0)


def test_a_request_that_accepts_it_finds_it_within_its_bound(cold, identity):
    plan = cold.acquire(PROMPT, identity, approximate_error_max=1)
    error = plan.approximate_error
    assert plan.resident_tokens == WHOLE and 0 < plan.approximate_tokens <= WHOLE
    assert 0.01 < error < 0.3
    for accepted, found in ((error, WHOLE), (error * 0.999, None), (error / 100, None)):
        bounded = cold.acquire(PROMPT, identity, approximate_error_max=accepted)
        if found is None:
            assert bounded.resident_tokens < WHOLE and bounded.reason == "approximate"
        else:
            assert bounded.resident_tokens == found
        assert bounded.approximate_error <= accepted
        bounded.close()
    tokens = plan.approximate_tokens
    with cold.open(plan) as sequence:
        stats = sequence.stats()
        assert stats["tokens_approximate"] == tokens
        assert stats["approximate_error"] == pytest.approx(error, abs=2e-6)
        # The error that it names bounds that of the values it reads.
        assert 0 < differs(sequence, PROMPT[:WHOLE]) <= error * 1.001
    assert cold.stats()["approximate_hit_tokens"] >= tokens


def test_what_it_computes_is_approximate_too(cold, identity):
    longer = PROMPT + list(range(5000, 5100))
    with compute(cold, identity, longer, approximate_error_max=1) as sequence:
        assert sequence.length == len(longer) and sequence.stats()["tokens_approximate"] > 0
        fork = sequence.fork()
        assert fork.stats()["tokens_approximate"] > 0
        with pytest.raises(quire.UnsupportedError, match="approximate"):
            sequence.select([0])
        fork.close()
    exact = cold.acquire(longer, identity)
    assert exact.resident_tokens < WHOLE and exact.reason == "approximate"
    found = cold.acquire(longer, identity, approximate_error_max=1)
    assert found.resident_tokens > WHOLE
    assert found.approximate_tokens > found.resident_tokens - WHOLE


def test_all_of_it_can_be_evicted_afterwards(cold, identity):
    before = cold.stats()
    assert before["evictable_blocks"] == before["published_blocks"]
    for tokens in (PROMPT, list(range(1000, 1200)), list(range(2000, 2200))):
        plan = cold.acquire(tokens, identity, approximate_error_max=1)
        cold.open(plan).close()
        cold.acquire(tokens, identity, approximate_error_max=1).close()
    after = cold.stats()
    assert after["sequences"] == 0
    assert after["evictable_blocks"] == after["published_blocks"] >= before["published_blocks"]
    fill(cold, identity, range(10, 30))  # and the room is for others
    stats = cold.stats()
    assert stats["evictable_blocks"] == stats["published_blocks"]


def test_exact_and_approximate_requests_mixed(identity):
    cache = make()
    source = np.random.default_rng(1)
    prompts = [list(range(1000 * number, 1000 * number + 60 + 40 * number))
               for number in range(6)]
    seen = {"exact": 0, "approximate": 0}
    for _ in range(150):
        tokens = prompts[source.integers(len(prompts))]
        accepted = float(source.integers(2))
        with compute(cache, identity, tokens, approximate_error_max=accepted) as sequence:
            stats = sequence.stats()
            error = differs(sequence, tokens)
            if stats["tokens_approximate"] == 0:
                assert error == 0
                seen["exact"] += stats["blocks_shared"] > 0
            else:
                assert accepted > 0 and 0 < error <= stats["approximate_error"] * 1.001
                seen["approximate"] += 1
    assert min(seen.values()) > 5, seen
    assert cache.verify()[1] == 0


@pytest.mark.parametrize("ladder", ["f16:int4:int8", "f16:int8:int4:q25", "int8:int4", "f16:bf16",
                                    "f16:", ":int8", "f16", "f16:int9", ""])
def test_ladders_that_are_none_are_refused_by_name(ladder):
    with pytest.raises(quire.InvalidArgumentError, match=f"ladder '{ladder}'"):
        make(ladder=ladder)
    with pytest.raises(quire.InvalidArgumentError, match="codec is named"):
        make(ladder="f16:int8", codec="int9")


def test_what_cannot_have_one_is_refused_by_name(identity):
    group = quire.LayerGroup(range(LAYERS), kv_heads=KV_HEADS, head_dim=DIM, window_tokens=20)
    with pytest.raises(quire.UnsupportedError, match=r"precision ladder.*window"):
        quire.Cache(groups=[group], ladder="f16:int8", hot_bytes=BUDGET)
    cache = make()
    for wrong in (-1, -1e-9, float("nan")):
        with pytest.raises(quire.InvalidArgumentError, match="approximate_error_max"):
            cache.acquire(PROMPT, identity, approximate_error_max=wrong)
        with pytest.raises(quire.InvalidArgumentError, match="approximate_error_max"):
            cache.prefetch(PROMPT, identity, approximate_error_max=wrong)


def test_a_cache_without_one_has_nothing_approximate(identity):
    cache = make_cache(codec="int4")
    append_to = cache.open(cache.acquire(PROMPT, identity))
    append(append_to, PROMPT)
    append_to.commit(PROMPT)
    plan = cache.acquire(PROMPT, identity, approximate_error_max=1)
    assert (plan.resident_tokens, plan.approximate_tokens) == (WHOLE, 0)
    assert cache.stats()["key_error_mean"] == 0


def of_store(store):
    return quire.Identity(digest("weights"), domain="d", domain_secret=store.secret())


@pytest.mark.parametrize("ladder", ["f16:int4", "f16:int8:int4"])
def test_a_store_has_the_lower_precision_alone(tmp_path, ladder):
    directory = str(tmp_path / "store")
    program = ("import sys, quire, test_ladder\n"
               "with quire.DiskStore(sys.argv[1], cap_bytes=64 << 20) as store:\n"
               f"    with test_ladder.make(store=store, ladder='{ladder}', hot_bytes=4 << 20) as cache:\n"
               "        test_ladder.compute(cache, test_ladder.of_store(store),\n"
               "                            test_ladder.PROMPT).close()\n"
               "        store.flush()\n")
    subprocess.run([sys.executable, "-c", program, directory], check=True,
                   cwd=pathlib.Path(__file__).parent)
    with quire.DiskStore(directory, cap_bytes=64 << 20) as store:
        identity = of_store(store)
        with make(store=store, ladder=ladder, hot_bytes=4 << 20) as cache:
            exact = cache.acquire(PROMPT, identity)
            assert (exact.resident_tokens, exact.loadable_tokens) == (0, 0)
            assert exact.missing[0] == ("approximate", WHOLE)
            assert cache.prefetch(PROMPT, identity) == 0

            def load(accepted):
                plan = cache.acquire(PROMPT, identity, approximate_error_max=accepted)
                with cache.load(plan, timeout_s=60) as ticket:
                    assert ticket.wait(60)
                    return ticket.take()

            refused = load(1e-6)  # its error is known once it has come
            assert (refused.resident_tokens, refused.reason) == (0, "approximate")
            plan = load(1)
            assert plan.resident_tokens == plan.approximate_tokens == WHOLE
            error = plan.approximate_error
            assert 0.03 < error < 0.3  # int4's, also where memory has int8
            with cache.open(plan) as sequence:
                assert 0 < differs(sequence, PROMPT[:WHOLE]) <= error * 1.001
            # Computed anew it is exact again.
            with compute(cache, identity, PROMPT) as sequence:
                assert differs(sequence, PROMPT) == 0
            assert cache.acquire(PROMPT, identity).resident_tokens == WHOLE
        with make(store=store, ladder=ladder, hot_bytes=4 << 20) as cache:
            assert cache.prefetch(PROMPT, identity, approximate_error_max=1) == WHOLE
        # Another ladder is another profile.
        with make(store=store, ladder="f16:int8") as cache:
            other = cache.acquire(PROMPT, identity, approximate_error_max=1)
            assert (other.loadable_tokens, other.reason) == (0, "other_profile")


def ask(engine, **options):
    with engine.ask(TEXT, max_tokens=8, stop=False, **options) as answer:
        done = answer.read()
        return done, answer.tokens


def test_an_engine_answers_from_its_store_where_that_is_accepted(tmp_path):
    def engine():
        return Engine(MODEL, store=tmp_path / "store", hot_bytes=64 << 20, threads=2,
                      load="always", ladder="f16:int8")

    with engine() as first:
        done, tokens = ask(first)
        assert (done.reused_tokens, done.approximate_tokens, done.approximate_error) == (0, 0, 0)
        hit, again = ask(first, approximate_error_max=1)  # in memory it is exact
        assert hit.reused_tokens > 0 and hit.approximate_tokens == 0 and again == tokens
        assert first.stats()["cache"]["key_error_mean"] > 0
    with engine() as second:
        exact, again = ask(second)
        assert (exact.reused_tokens, exact.loaded_tokens, exact.approximate_tokens) == (0, 0, 0)
        assert again == tokens
    whole = (done.prompt_tokens - 1) // 16 * 16
    with engine() as third:
        strict, again = ask(third, approximate_error_max=1e-5)
        assert strict.reused_tokens == strict.approximate_tokens == 0 and again == tokens
    with engine() as fourth:
        found, _ = ask(fourth, approximate_error_max=0.05)
        assert found.reused_tokens == found.loaded_tokens == found.approximate_tokens == whole
        assert 1e-4 < found.approximate_error <= 0.05
        assert found.generated_tokens == 8
        exact, again = ask(fourth)
        assert (exact.reused_tokens, exact.approximate_tokens) == (0, 0) and again == tokens


def test_a_turn_of_a_session_says_what_it_accepts(tmp_path):
    def engine():
        return Engine(MODEL, store=tmp_path / "store", hot_bytes=64 << 20, threads=2,
                      load="always", ladder="f16:int8")

    with engine() as first:
        ask(first)
    with engine() as second, second.open_session() as session:
        with session.turn(TEXT, max_tokens=4, stop=False, approximate_error_max=0.05) as turn:
            done = turn.read()
            assert done.approximate_tokens > 0 and 0 < done.approximate_error <= 0.05
        held = second.sequences()[0]
        assert held["tokens_approximate"] == done.approximate_tokens
        with session.turn("And then", max_tokens=4, stop=False, approximate_error_max=0.05) as turn:
            assert turn.read().approximate_tokens == done.approximate_tokens
        # A turn that accepts none computes it anew.
        with session.turn("And then", max_tokens=4, stop=False) as turn:
            exact = turn.read()
            assert (exact.approximate_tokens, exact.approximate_error) == (0, 0)
        assert second.sequences()[0]["tokens_approximate"] == 0


def test_what_an_engine_cannot_do_is_refused():
    for error, wrong in ((quire.InvalidArgumentError, {"codec": "int8"}),
                         (quire.InvalidArgumentError, {"ladder": "int8:int4"}),
                         (quire.InvalidArgumentError, {"ladder": "f16:fp8_e4m3:int8"}),
                         (quire.UnsupportedError, {"window_tokens": 64})):
        with pytest.raises(error, match="ladder"):
            Engine(MODEL, **{"hot_bytes": 4 << 20, "ladder": "f16:int8", **wrong})
    with Engine(MODEL, hot_bytes=64 << 20, threads=1, ladder="f16:int8") as engine:
        with pytest.raises(quire.InvalidArgumentError, match="approximate_error_max"):
            ask(engine, approximate_error_max=-1)
