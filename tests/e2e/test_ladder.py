"""The precision ladder: exact requests have the same bits whatever was demoted, and requests that
accept an error find what grew cold, within it."""

import collections
import functools
import random
import threading

import pytest

import quire_cli
import quire_server
from test_codecs import PROMPT, TINY

BLOCK = 16
TEXT = (TINY / "heldout.txt").read_text()
OTHERS = [TEXT[700 * number : 700 * number + 600] for number in range(2, 8)]
# The largest relative error of one of its blocks of the model's K and V.
ERROR_MAX = {"int8": 0.015, "fp8_e4m3": 0.05, "int4": 0.2, "int8:int4": 0.22}
WAYS = {
    "hit": ["--repeat", 2],
    "chunk_16": ["--chunk", 16],
    "two_threads": ["--threads", 2],
    "in_company": ["--repeat", 2, "--beside", 2, "--chunk", 77],
    # Room for one of the three, and for two in both forms.
    "room_for_one": ["--repeat", 3, "--beside", 2, "--hot-bytes", "3500000"],
    "room_for_two": ["--repeat", 3, "--beside", 2, "--hot-bytes", "7000000"],
}


def generate(*flags, prompt=PROMPT):
    return quire_cli.run("generate", "--model", TINY, "--prompt", prompt, "--max-tokens", 20,
                         "--threads", 1, "--json", "--stats", *flags)


def run(*flags, prompt=PROMPT):
    done = generate(*flags, prompt=prompt)
    assert done.exit_code == 0, done.describe()
    return done.json


@functools.cache
def plain(codec):
    return run("--ladder", f"f16:{codec}")


def reusable(answer):
    return (answer["prompt_tokens"] - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", ERROR_MAX)
def test_bits_do_not_depend_on_how_it_ran(codec, way):
    want = plain(codec)
    got = run("--ladder", f"f16:{codec}", *WAYS[way])
    assert set(got["digests"]) == {want["logits_digest"]}
    in_memory = codec.split(":")[0]
    assert (got["k"], got["v"]) == (in_memory, in_memory)
    assert (got["approximate_tokens"], got["approximate_error"]) == (0, 0)
    assert want["reused_tokens"] == 0 and want["miss_reason"] == "never_seen"
    demoted = got["cache"]["evicted_twins_total"]
    assert demoted > 0 if "room" in way else demoted == 0
    if way in ("hit", "in_company"):
        assert got["reused_tokens"] == reusable(got)


def test_the_first_codec_computes():
    """Whatever the second one is, as long as values are kept alike."""
    assert len({plain(codec)["logits_digest"] for codec in ERROR_MAX}) == 1
    for other in (["--ladder", "bf16:int8"], ["--ladder", "f32:int8"], ["--kv", "int8"]):
        assert run(*other)["logits_digest"] != plain("int8")["logits_digest"], other


@pytest.mark.parametrize("codec", ERROR_MAX)
def test_under_pressure_a_request_that_accepts_it_reuses_more(codec):
    flags = ["--ladder", f"f16:{codec}", *WAYS["room_for_two"]]
    got = run(*flags, "--approximate", 1)
    assert 0 < got["approximate_tokens"] <= got["reused_tokens"]
    assert 0 < got["approximate_error"] <= ERROR_MAX[codec.split(":")[0]]
    assert got["reused_tokens"] > run(*flags)["reused_tokens"]
    # The first run had nothing to begin with; the last one began with other bits.
    assert got["digests"][0] == plain(codec)["logits_digest"] != got["logits_digest"]
    assert got["cache"]["approximate_hit_tokens"] >= got["approximate_tokens"]


@pytest.mark.parametrize("load", ["always", "both"])
@pytest.mark.parametrize("codec", ERROR_MAX)
def test_a_store_has_the_last_codec_alone(tmp_path, codec, load):
    flags = ["--ladder", f"f16:{codec}", "--store", tmp_path / "store", "--load", load]
    first = run(*flags)
    assert first["logits_digest"] == plain(codec)["logits_digest"]
    alone = run("--kv", codec.split(":")[-1], "--store", tmp_path / "other")
    assert first["store"]["bytes_put"] == alone["store"]["bytes_put"]
    whole = reusable(first)
    for _ in range(2):
        exact = run(*flags)
        assert (exact["reused_tokens"], exact["loaded_tokens"]) == (0, 0)
        assert (exact["approximate_tokens"], exact["approximate_error"]) == (0, 0)
        assert exact["miss_reason"] == "approximate"
        assert exact["logits_digest"] == first["logits_digest"]
        found = run(*flags, "--approximate", ERROR_MAX[codec])
        assert found["reused_tokens"] == found["loaded_tokens"] == whole
        assert found["approximate_tokens"] == whole
        assert 0 < found["approximate_error"] <= ERROR_MAX[codec]
        assert found["logits_digest"] != first["logits_digest"]
        # What it computed is there for those that accept it.
        assert found["cache"]["published_total"] > whole // BLOCK
    again = run(*flags, "--approximate", 1, "--repeat", 2)
    assert set(again["digests"]) == {found["logits_digest"]}
    # One bound lies above all errors, one below some, one below all.
    error = found["approximate_error"]
    some = run(*flags, "--approximate", error * 0.999)
    assert some["reused_tokens"] < whole and some["approximate_error"] < error
    assert some["miss_reason"] == "approximate"
    none = run(*flags, "--approximate", error / 20)
    assert (none["reused_tokens"], none["approximate_tokens"]) == (0, 0)
    assert none["miss_reason"] == "approximate"
    assert none["logits_digest"] == first["logits_digest"]


@pytest.mark.parametrize("block_tokens", [32, 256])
def test_other_blocks(tmp_path, block_tokens):
    flags = ["--ladder", "f16:int4", "--block-tokens", block_tokens, "--load", "always",
             "--store", tmp_path / "store"]
    for accepted in ([], [], ["--approximate", 1]):
        got = run(*flags, *accepted)
        whole = (got["prompt_tokens"] - 1) // block_tokens * block_tokens
        assert got["approximate_tokens"] == got["reused_tokens"] == (whole if accepted else 0)
        is_exact = got["logits_digest"] == plain("int4")["logits_digest"]
        assert is_exact != bool(accepted)


def test_what_follows_an_approximate_prompt_is_approximate_too(tmp_path):
    flags = ["--ladder", "f16:int4", "--store", tmp_path / "store", "--load", "always"]
    first = run(*flags)
    longer = PROMPT + first["text"] + TEXT[1000:1300]
    extended = run(*flags, "--approximate", 1, prompt=longer)
    assert 0 < extended["reused_tokens"] == extended["approximate_tokens"]
    again = run(*flags, "--approximate", 1, prompt=longer)
    assert again["reused_tokens"] == again["approximate_tokens"] > extended["reused_tokens"]
    assert again["approximate_error"] >= extended["approximate_error"]
    exact = run(*flags, prompt=longer)
    assert (exact["reused_tokens"], exact["miss_reason"]) == (0, "approximate")
    other = run("--ladder", "f16:int4", "--store", tmp_path / "other", prompt=longer)
    assert exact["logits_digest"] == other["logits_digest"]


def test_without_a_ladder_there_is_nothing_to_accept():
    done = generate("--kv", "int4", "--approximate", 1)
    assert done.exit_code == 2 and "--ladder" in done.stderr, done.describe()


def test_loads_that_are_off_compute(tmp_path):
    flags = ["--ladder", "f16:int4", "--store", tmp_path / "store"]
    run(*flags)
    never = run(*flags, "--load", "never", "--approximate", 1)
    assert (never["reused_tokens"], never["miss_reason"]) == (0, "not_loaded")
    assert never["logits_digest"] == plain("int4")["logits_digest"]


def test_another_ladder_is_another_profile(tmp_path):
    store = ["--store", tmp_path / "store", "--load", "always"]
    run("--ladder", "f16:int4", *store)
    for other in (["--ladder", "f16:int8", "--approximate", 1],
                  ["--ladder", "f16:int8:int4", "--approximate", 1],
                  ["--ladder", "bf16:int4", "--approximate", 1], ["--kv", "int4"], ["--kv", "f16"]):
        got = run(*other, *store)
        assert (got["loaded_tokens"], got["miss_reason"]) == (0, "other_profile"), other


def test_a_damaged_record_is_a_miss(tmp_path):
    store = tmp_path / "store"
    flags = ["--ladder", "f16:int4", "--store", store, "--load", "always"]
    first = run(*flags)
    found = run(*flags, "--approximate", 1)
    segment = store / "segment-000000"
    content = bytearray(segment.read_bytes())
    used = first["store"]["bytes_put"]
    # Somewhere in the middle: what lies before it is found.
    for at in range(used // 2, used // 2 + 20_000, 64):
        content[at] ^= 0x10
    segment.write_bytes(content)
    middle = run(*flags, "--approximate", 1)
    assert middle["store"]["loads_failed"] > 0
    assert 0 < middle["reused_tokens"] == middle["approximate_tokens"] < found["reused_tokens"]
    assert middle["miss_reason"] == "load_failed"
    # All of it: nothing is found, and the answer is exact, and written again.
    segment.write_bytes(bytes(byte ^ 0xFF for byte in content[:used * 2]) + content[used * 2:])
    gone = run(*flags, "--approximate", 1)
    assert (gone["reused_tokens"], gone["approximate_tokens"]) == (0, 0)
    assert gone["logits_digest"] == first["logits_digest"]
    again = run(*flags, "--approximate", 1)
    assert again["approximate_tokens"] == found["approximate_tokens"]
    assert again["logits_digest"] == found["logits_digest"]


@pytest.mark.parametrize("flags, word", [
    (["--ladder", "f16:int8:int4:nf4"], "ladder 'f16:int8:int4:nf4'"),
    (["--ladder", "f16:int4:int8"], "ladder 'f16:int4:int8'"),
    (["--ladder", "f16:int8:"], "ladder 'f16:int8:'"),
    (["--ladder", "int8:int4"], "ladder 'int8:int4'"),
    (["--ladder", "f16:bf16"], "ladder 'f16:bf16'"),
    (["--ladder", "f16"], "ladder 'f16'"),
    (["--ladder", "f16:"], "ladder 'f16:'"),
    (["--ladder", "f16:int9"], "ladder 'f16:int9'"),
    (["--ladder", "f16:int8", "--kv", "int8"], "--ladder"),
    (["--ladder", "f16:int8", "--k", "int8"], "--ladder"),
    (["--ladder", "f16:int8", "--v", "f16"], "--ladder"),
    (["--ladder", "f16:int8", "--residual", 16], "--residual"),
    (["--ladder", "f16:int8", "--window", 64], "precision ladder"),
    (["--ladder", "f16:int8", "--device", "emulated"], "precision ladder"),
    (["--ladder", "f16:int8", "--layout", "head_major", "--no-codec-fallback"], "head_major"),
])
def test_what_cannot_have_one_is_refused_by_name(flags, word):
    done = generate(*flags)
    assert done.exit_code == 3 and word in done.stderr, done.describe()


@pytest.mark.parametrize("wrong", [-1, 2, "x", "nan"])
def test_errors_that_make_no_sense(wrong):
    done = generate("--ladder", "f16:int8", "--approximate", wrong)
    assert done.exit_code in (2, 3) and "approximate" in done.stderr, done.describe()


def ask(server, prompt, **fields):
    """Its greedy answer with the log-probabilities, and what was cached."""
    status, answer = server.ask("/v1/completions", {
        "prompt": prompt, "max_tokens": 8, "logprobs": 1, **fields})
    assert status == 200, answer
    chosen = answer["choices"][0]["logprobs"]
    return ((answer["choices"][0]["text"], tuple(chosen["token_logprobs"])),
            answer["usage"]["prompt_tokens_details"])


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """The answers of a server with room for all."""
    with quire_server.serving(tmp_path_factory.mktemp("exact"), "--ladder", "f16:int4",
                              "--hot-bytes", "256MiB") as server:
        answers = {prompt: ask(server, prompt)[0] for prompt in (PROMPT, *OTHERS)}
        for prompt, answer in answers.items():
            again, details = ask(server, prompt, approximate_error_max=1)
            assert again == answer
            assert details.keys() == {"cached_tokens"} and details["cached_tokens"] > 0
        assert server.wait_idle()["cache"]["evicted_twins_total"] == 0
    return answers


def fill(server):
    """Other prompts, until some of what came before was demoted."""
    for prompt in OTHERS:
        ask(server, prompt)
        if server.wait_idle()["cache"]["evicted_twins_total"] > 0:
            return
    raise AssertionError("nothing was demoted")


def test_a_server_under_pressure(tmp_path, exact):
    with quire_server.serving(tmp_path, "--ladder", "f16:int4", "--hot-bytes", "4MB") as server:
        assert ask(server, PROMPT)[0] == exact[PROMPT]
        fill(server)
        found, details = ask(server, PROMPT, approximate_error_max=0.5)
        assert details["cached_tokens"] == len(PROMPT) // BLOCK * BLOCK
        assert 0 < details["approximate_tokens"] <= details["cached_tokens"]
        assert 0 < details["approximate_error"] <= ERROR_MAX["int4"]
        assert found != exact[PROMPT]
        # As a stream too.
        status, stream = server.ask("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 2, "stream": True, "approximate_error_max": 0.5,
            "stream_options": {"include_usage": True}})
        assert status == 200
        assert f'"approximate_tokens":{details["approximate_tokens"]}' in stream
        # Requests that accept less, or nothing, get the answer that is exact.
        for accepted in ({"approximate_error_max": 1e-4}, {}, {"approximate_error_max": 0}):
            again, less = ask(server, PROMPT, **accepted)
            assert again == exact[PROMPT], accepted
            assert "approximate_tokens" not in less and "approximate_error" not in less
        # Which computed it anew, so now all find it.
        again, more = ask(server, PROMPT, approximate_error_max=1)
        assert again == exact[PROMPT] and "approximate_tokens" not in more
        cache = server.wait_idle()["cache"]
        assert cache["approximate_hit_tokens"] >= details["approximate_tokens"]
        missed = [line for line in server.ask("/metrics")[1].splitlines()
                  if 'reason="approximate"' in line]
        assert len(missed) == 1 and int(missed[0].split()[-1]) > 0


def test_answers_of_one_prompt_count_it_once(tmp_path):
    with quire_server.serving(tmp_path, "--ladder", "f16:int4", "--hot-bytes", "6MB") as server:
        ask(server, PROMPT)
        fill(server)
        one = ask(server, PROMPT, approximate_error_max=1)[1]
        two = ask(server, PROMPT, approximate_error_max=1, n=2)[1]
        assert one["approximate_tokens"] > 0
        assert two["approximate_tokens"] <= two["cached_tokens"] <= len(PROMPT)


def test_a_session_goes_on_as_exact_as_each_turn_asks(tmp_path, exact):
    store = ["--ladder", "f16:int4", "--store", tmp_path / "store", "--load", "always"]
    with quire_server.serving(tmp_path / "a", *store) as server:
        assert ask(server, PROMPT)[0] == exact[PROMPT]
        session = server.ask("/v1/sessions", {})[1]["id"]
        ask(server, PROMPT, session=session)
        want = ask(server, " And then", session=session)[0]
    with quire_server.serving(tmp_path / "b", *store) as server:
        session = server.ask("/v1/sessions", {})[1]["id"]
        first, details = ask(server, PROMPT, session=session, approximate_error_max=1)
        assert details["approximate_tokens"] == len(PROMPT) // BLOCK * BLOCK
        assert first[0] == exact[PROMPT][0]  # the text that the second turn follows
        got, details = ask(server, " And then", session=session)
        assert got == want and "approximate_tokens" not in details


@pytest.mark.parametrize("stored", [False, True])
def test_many_clients_at_once(tmp_path, exact, stored):
    """Exact answers are those of a server with room for all, whatever others accept meanwhile."""
    flags = ["--store", tmp_path / "store", "--load", "always"] if stored else []
    seen = collections.Counter()
    wrong = []
    with quire_server.serving(tmp_path / "serve", "--ladder", "f16:int4", "--hot-bytes", "5MB",
                              *flags) as server:
        def client(seed):
            source = random.Random(seed)
            try:
                for _ in range(25):
                    prompt = source.choice(OTHERS)
                    accepts = source.random() < 0.5
                    fields = {"approximate_error_max": 1} if accepts else {}
                    answer, details = ask(server, prompt, **fields)
                    is_exact = "approximate_tokens" not in details
                    seen[is_exact, details["cached_tokens"] > 0] += 1
                    if (answer == exact[prompt]) != is_exact or not (is_exact or accepts):
                        wrong.append((prompt[:20], fields, details))
            except BaseException as error:  # shown by the test
                wrong.append(error)

        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        assert not wrong, wrong
        assert seen[True, True] > 0 and seen[True, False] > 0 and seen[False, True] > 0, seen
        # Nothing is held any more, and there is room for a long prompt.
        cache = server.wait_idle()["cache"]
        assert cache["evictable_blocks"] == cache["published_blocks"]
        assert ask(server, PROMPT)[0] == exact[PROMPT]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_field_that_makes_no_sense_is_refused(tmp_path, path):
    prompt = ({"prompt": "abc"} if path == "/v1/completions"
              else {"messages": [{"role": "user", "content": "abc"}]})
    with quire_server.serving(tmp_path, "--ladder", "f16:int8") as server:
        for wrong in (-1, 2, "x", "0.5", True, [0.5]):
            status, answer = server.ask(path, {**prompt, "max_tokens": 1,
                                               "approximate_error_max": wrong})
            assert status == 400, (wrong, answer)
            assert answer["error"]["param"] == "approximate_error_max"
        for right in (0, 0.05, 1, None):
            status, answer = server.ask(path, {**prompt, "max_tokens": 1,
                                               "approximate_error_max": right})
            assert status == 200, (right, answer)


def test_a_server_refuses_what_generate_refuses():
    for flags, word in ((["--ladder", "int8:int4"], "ladder 'int8:int4'"),
                        (["--ladder", "f16:int8:int8"], "ladder 'f16:int8:int8'"),
                        (["--ladder", "f16:int8", "--kv", "int8"], "--ladder")):
        done = quire_cli.run("serve", "--model", TINY, "--listen", "127.0.0.1:0", *flags)
        assert done.exit_code == 3 and word in done.stderr, done.describe()
