"""`mpirun -n N quire serve --ranks sequence|pipeline`: the answers of one process, from several that wait together as
long as nothing is asked, end together on SIGTERM, and name the one that is lost."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import time
import urllib.request

import pytest

import quire_cli
import quire_server
from rank_processes import DEADLINE_S, is_running, mpirun, rank_processes

GROUPS = [("sequence", 2), ("pipeline", 2), ("pipeline", 3)]
NAMES = [f"{mode}-{ranks}" for mode, ranks in GROUPS]
SENTENCE = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. "
# Of one to six splits of 256 tokens: each character is a token or nearly so.
PROMPTS = [f"{number}. {SENTENCE * (2 + 3 * number)}" for number in range(4)]


def ask(server, prompt, **fields):
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2} | fields
    return server.ask("/v1/completions", body)


def answer(server, prompt, **fields):
    """What may not differ, and the tokens that were found."""
    status, said = ask(server, prompt, **fields)
    assert status == 200, said
    choice = said["choices"][0]
    found = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    return {"text": choice["text"], "logprobs": choice["logprobs"], "usage": said["usage"]["completion_tokens"]}, found


class Together:
    """A server of several ranks, and the processes that it is made of."""

    def __init__(self, server):
        self.server = server
        self.pids = rank_processes(server.process.pid)

    def signal(self, rank, number):
        os.kill(self.pids[rank], number)

    def wait(self, seconds=60):
        """Its exit code, once all ranks have ended."""
        code = self.server.process.wait(timeout=seconds)
        end = time.monotonic() + 10
        while any(is_running(pid) for pid in self.pids.values()):
            assert time.monotonic() < end, "a rank goes on"
            time.sleep(0.05)
        return code

    def said(self):
        return self.server.stderr.read_text()


@contextlib.contextmanager
def together(folder, group, *flags, mpi=(), deadline_s=30):
    """A server of several ranks, which ends with the test, if the test did not end it."""
    mode, count = group
    server = quire_server.start(folder, "--ranks", mode, "--ranks-deadline", deadline_s, *flags,
                                launcher=mpirun(count, *mpi), threads=1)
    pids = {}
    try:
        ranks = Together(server)
        pids = ranks.pids
        yield ranks
    finally:
        for pid in pids.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module", name="alone")
def make_alone(tmp_path_factory):
    """What one process answers."""
    with quire_server.serving(tmp_path_factory.mktemp("alone")) as server:
        return [answer(server, prompt)[0] for prompt in PROMPTS]


@pytest.fixture(scope="module", name="groups")
def make_groups(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        made = {group: stack.enter_context(together(tmp_path_factory.mktemp("group"), group)) for group in GROUPS}
        yield made
        for ranks in made.values():
            ranks.signal(0, signal.SIGTERM)
        for ranks in made.values():
            assert ranks.wait() == 0, ranks.said()


@pytest.fixture(params=GROUPS, ids=NAMES, name="group")
def get_group(request, groups):
    return groups[request.param]


def test_answers_are_those_of_one_process_for_misses_and_hits(group, alone):
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        misses = list(pool.map(lambda prompt: answer(group.server, prompt), PROMPTS))
        hits = list(pool.map(lambda prompt: answer(group.server, prompt), PROMPTS))
    assert [said for said, _ in misses] == alone
    assert [said for said, _ in hits] == alone
    for prompt, (_, found) in zip(PROMPTS, hits, strict=True):
        assert len(prompt) - 32 <= found < len(prompt)


def test_a_stream_and_a_session_say_the_same(group, alone):
    # Tokens that wait for the connection go out as one piece: a few of them can be one or two on a busy machine.
    many = {"max_tokens": 300, "ignore_eos": True}
    body = {"prompt": PROMPTS[1], "temperature": 0, "stream": True} | many
    request = urllib.request.Request(group.server.url + "/v1/completions", data=json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as stream:
        events = [line[6:] for line in stream.read().decode().splitlines() if line.startswith("data: {")]
    texts = [json.loads(event)["choices"][0]["text"] for event in events if json.loads(event)["choices"]]
    whole = answer(group.server, PROMPTS[1], **many)[0]["text"]
    assert len(texts) > 1 and "".join(texts) == whole and whole.startswith(alone[1]["text"])

    session = group.server.ask("/v1/sessions", {"temperature": 0})[1]["id"]
    half = len(PROMPTS[2]) // 2
    for fields in ({"prompt": PROMPTS[2][:half], "max_tokens": 0}, {"prompt": PROMPTS[2][half:], "max_tokens": 12}):
        status, said = group.server.ask("/v1/completions", {"session": session, **fields})
        assert status == 200, said
    assert said["choices"][0]["text"] == alone[2]["text"]
    status, fork = group.server.ask(f"/v1/sessions/{session}/fork", {})
    assert status == 200
    says = [group.server.ask("/v1/completions", {"session": name, "prompt": " And", "max_tokens": 8})
            for name in (session, fork["id"])]
    assert says[0][1]["choices"][0]["text"] == says[1][1]["choices"][0]["text"]


def wait_durable(store, ranks):
    """Returns when each rank has something in its store."""
    for rank in range(ranks):
        quire_cli.wait_records(store / f"rank-{rank}")


def test_they_wait_longer_than_the_deadline_while_nothing_is_asked(alone, tmp_path):
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(together(tmp_path / name, group, deadline_s=DEADLINE_S))
                for group, name in zip(GROUPS, NAMES)]
        time.sleep(DEADLINE_S + 1)
        for ranks in idle:
            assert answer(ranks.server, PROMPTS[0])[0] == alone[0]


def test_a_request_that_ranks_cannot_answer_is_refused(group):
    for fields, words in (({"keep": 0.5}, "ranks do not observe"), ({"model": "tone"}, "no model 'tone'"),
                          ({"on_full": "spill"}, "streams nothing")):
        status, said = ask(group.server, PROMPTS[0], **fields)
        assert status in (400, 404) and words in said["error"]["message"], said
    for path in ("/v1/cache/resize", "/v1/cache/demote", "/v1/cache/prefetch"):
        status, said = group.server.ask(path, {})
        assert status == 501 and "not possible with --ranks" in said["error"]["message"], said
    cache = group.server.ask("/v1/cache")[1]
    assert (cache["ranks"]["count"], cache["ranks"]["rank"]) == (len(group.pids), 0)


@pytest.mark.parametrize("group", GROUPS[:2], ids=NAMES[:2])
def test_requests_that_take_each_others_room_say_the_same(group, tmp_path):
    def ask_all(server):
        status, said = ask(server, PROMPTS, max_tokens=300)  # one call, so they begin at once
        assert status == 200, said
        return [(choice["text"], choice["logprobs"]) for choice in said["choices"]]

    with quire_server.serving(tmp_path / "alone") as server:
        expected = ask_all(server)
        bytes_each = server.ask("/v1/cache")[1]["block_bytes"] / 16
    # Each of two ranks has room for less than two thirds of its half.
    held_tokens = sum(len(prompt) + 300 for prompt in PROMPTS)
    with together(tmp_path / "together", group, "--hot-bytes", int(0.3 * held_tokens * bytes_each)) as ranks:
        assert ask_all(ranks.server) == expected
        assert ranks.server.engine()["preemptions"] > 0


@pytest.mark.parametrize("group", GROUPS[::2], ids=NAMES[::2])
def test_sigterm_ends_all_ranks_and_a_restart_finds_what_they_stored(group, alone, tmp_path):
    store = ("--store", tmp_path / "store", "--store-bytes", "256MiB")
    with together(tmp_path / "a", group, *store) as ranks, concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert answer(ranks.server, PROMPTS[3])[0] == alone[3]
        session = ranks.server.ask("/v1/sessions", {"temperature": 0})[1]["id"]
        slow = pool.submit(ask, ranks.server, PROMPTS[2], max_tokens=100)
        while not ranks.server.ask("/v1/cache")[1]["calls"]:
            time.sleep(0.01)
        for rank in ranks.pids:  # the others leave it to rank 0
            ranks.signal(rank, signal.SIGTERM)
        status, said = slow.result()  # what was under way ends
        assert status == 200 and said["usage"]["completion_tokens"] == 100
        assert ranks.wait() == 0, ranks.said()
    with together(tmp_path / "b", group, *store) as ranks:
        again, found = answer(ranks.server, PROMPTS[3])
        assert again == alone[3]
        assert found >= len(PROMPTS[3]) - 32
        assert [each["id"] for each in ranks.server.ask("/v1/sessions")[1]["data"]] == [session]
        ranks.signal(0, signal.SIGTERM)
        assert ranks.wait() == 0, ranks.said()


class Generating:
    """A long answer that a server is in the middle of, and what became of it."""

    def __init__(self, server):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.answer = self.pool.submit(self.ask, server)
        while not any(call["generated_tokens"] for call in server.ask("/v1/cache")[1]["calls"]):
            time.sleep(0.01)

    @staticmethod
    def ask(server):
        """The status and the error; None where the connection was closed."""
        try:
            return ask(server, PROMPTS[0], max_tokens=100_000)
        except (OSError, http.client.HTTPException):
            return None

    def ended_with_an_error(self):
        said = self.answer.result(timeout=60)
        self.pool.shutdown()
        return said is None or said[0] == 500


LOST = f"was not heard for {DEADLINE_S * 1000} ms"


# With the recovery mpirun does not end the others by itself; without it, it names the rank too.
@pytest.mark.parametrize("group", GROUPS[:2], ids=NAMES[:2])
@pytest.mark.parametrize("number, is_busy, mpi, words", [
    (signal.SIGKILL, False, ["--enable-recovery"], f"rank 1 {LOST}"),
    (signal.SIGKILL, True, [], "rank 1 "),
    (signal.SIGSTOP, True, [], f"rank 1 {LOST}"),
], ids=["killed-while-idle", "killed", "stopped"])
def test_a_rank_that_is_lost_is_named_and_nothing_hangs(group, number, is_busy, mpi, words, tmp_path):
    with together(tmp_path, group, "--max-seq-len", 200_000, mpi=mpi, deadline_s=DEADLINE_S) as ranks:
        generating = Generating(ranks.server) if is_busy else None
        ranks.signal(1, number)
        ranks.wait()
        assert words in ranks.said()
        assert generating is None or generating.ended_with_an_error()


def test_the_others_end_where_rank_0_is_lost_and_a_restart_has_what_was_durable(alone, tmp_path):
    store = ("--store", tmp_path / "store", "--store-bytes", "256MiB")
    with together(tmp_path / "a", GROUPS[0], *store, mpi=["--enable-recovery"], deadline_s=DEADLINE_S) as ranks:
        assert answer(ranks.server, PROMPTS[3])[0] == alone[3]
        wait_durable(tmp_path / "store", 2)
        ranks.signal(0, signal.SIGKILL)
        ranks.wait()
        assert f"rank 0 {LOST}" in ranks.said()
    with together(tmp_path / "b", GROUPS[0], *store) as ranks:
        again, found = answer(ranks.server, PROMPTS[3])
        assert again == alone[3] and found > 0


KEYS = """
[[tenant]]
name = "ann"
keys = ["key-of-ann-0123456789"]
[[tenant]]
name = "bob"
keys = ["key-of-bob-0123456789"]
"""


@pytest.mark.parametrize("mode", [GROUPS[0], GROUPS[1]], ids=NAMES[:2])
def test_tenants_are_apart_have_quotas_and_are_erased_on_all_ranks(mode, alone, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    sealed = tmp_path / "store.key"
    sealed.write_bytes(bytes(range(32)))
    sealed.chmod(0o600)
    with together(tmp_path, mode, "--api-keys", keys, "--operator-listen", "127.0.0.1:0", "--store",
                  tmp_path / "store", "--keys", sealed) as ranks:
        server = ranks.server

        def found(name):
            body = {"prompt": PROMPTS[3], "max_tokens": 12, "temperature": 0}
            status, said = server.ask("/v1/completions", body, key=f"key-of-{name}-0123456789")
            assert status == 200, said
            assert said["choices"][0]["text"] == alone[3]["text"]
            return said["usage"]["prompt_tokens_details"]["cached_tokens"]

        def operate(path, **fields):
            return server.ask(path, fields, url=server.operator_url)

        assert server.ask("/v1/completions", {"prompt": "a"})[0] == 401
        assert found("ann") == 0 and found("bob") == 0
        assert found("ann") > len(PROMPTS[3]) - 32 and found("bob") > len(PROMPTS[3]) - 32
        wait_durable(tmp_path / "store", 2)
        status, said = operate("/v1/cache/erase", tenant="ann")
        assert status == 200 and said["blocks"] > 0, said
        assert found("ann") == 0  # nor in a store of any rank
        assert found("bob") > 0

        assert operate("/v1/cache/limits", tenant="ann", quota_bytes=1 << 18, floor_bytes=0)[0] == 200
        status, said = server.ask("/v1/completions", {"prompt": PROMPTS[3]}, key="key-of-ann-0123456789")
        assert status == 400 and 'the quota of tenant "ann" is 262144' in said["error"]["message"], said
        assert operate("/v1/cache/limits", tenant="ann", quota_bytes=1 << 24, floor_bytes=0)[0] == 200
        said = operate("/v1/cache/limits", tenant="ann", quota_bytes=1 << 10, floor_bytes=1 << 62)[1]
        assert "floor" in said["error"]["message"], said
        assert operate("/v1/cache/erase", tenant="eve")[0] == 404
        with concurrent.futures.ThreadPoolExecutor(6) as pool:  # erased while others compute
            asked = [pool.submit(found, name) for name in ("ann", "bob") * 2]
            for _ in range(3):
                assert operate("/v1/cache/erase", tenant="ann")[0] == 200
            for each in asked:
                each.result()
        ranks.signal(0, signal.SIGTERM)
        assert ranks.wait() == 0, ranks.said()


@pytest.mark.parametrize("flags, words", [
    (("--events", "tcp://127.0.0.1:5557"), "--events: not possible with --ranks sequence"),
    (("--adapter-directory", "adapters"), "--adapter-directory: not possible with --ranks sequence"),
    (("--resident-tokens", "300"), "--resident-tokens: not possible with --ranks"),
])
def test_what_ranks_cannot_do_is_refused_at_the_start(flags, words):
    done = quire_cli.run("serve", "--model", quire_server.TINY, "--listen", "127.0.0.1:0", "--ranks", "sequence",
                         "--rank-threads", 2, *flags)
    assert done.exit_code != 0
    assert words in done.stderr, done.describe()


def test_ranks_that_are_threads_serve_from_one_process_and_a_file_may_say_so(alone, tmp_path):
    config = tmp_path / "quire.toml"
    config.write_text('ranks = "pipeline"\nrank-threads = 2\n')
    with quire_server.serving(tmp_path / "a", "--config", config) as server:
        assert answer(server, PROMPTS[2])[0] == alone[2]
        assert server.ask("/v1/cache")[1]["ranks"] == {"mode": "pipeline", "count": 2, "rank": 0}
