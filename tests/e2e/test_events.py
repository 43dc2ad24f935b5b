"""KV events of real servers: whatever is lost on the way, the index of examples/router ends equal to what the server
has; and the router itself, with the client of OpenAI.
"""

import contextlib
import random
import threading
import time

import msgpack
import openai
import pytest
import zmq

import quire_cli
import quire_server
from routed_servers import endpoints, events_flags, kv_index, routed

BLOCK = 16
TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. "
MODEL = quire_server.TINY.name


def shape_of_index(index):
    """The tree of blocks without their tokens: what two trees are compared by."""
    with index.lock:
        memory = {key: block for key, block in index.blocks.items() if "GPU" in block.media}
    children = {}
    for key, block in memory.items():
        children.setdefault(block.parent, []).append(key)

    def shape(key):
        return tuple(sorted(shape(child) for child in children.get(key, ())))
    return len(memory), shape(None)


def shape_of_server(server):
    """The same as the server lists its blocks."""
    index = server.ask("/v1/cache")[1]["index"]
    assert index["blocks_left_out"] == 0
    children = {}
    for number, run in enumerate(index["runs"]):
        children.setdefault(run["parent"], []).append((number, run["tokens"] // BLOCK))

    def shape(run):
        shapes = []
        for number, blocks in children.get(run, ()):
            one = shape(number)
            for _ in range(blocks - 1):
                one = (one,)
            shapes.append(one)
        return tuple(sorted(shapes))
    return index["blocks"], shape(-1)


def wait_until_equal(index, server, seconds=20):
    end = time.monotonic() + seconds
    while shape_of_index(index) != shape_of_server(server):
        assert time.monotonic() < end, (shape_of_index(index), shape_of_server(server))
        time.sleep(0.05)


class LossyNetwork(threading.Thread):
    """Between a server and its subscriber: loses messages, repeats them, and gives later ones first."""

    def __init__(self, events, told, seed):
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.bad = True
        self.counts = {"lost": 0, "late": 0, "twice": 0}
        context = zmq.Context.instance()
        self.heard = context.socket(zmq.SUB)
        self.heard.subscribe("")
        self.heard.connect(events)
        self.told = context.socket(zmq.PUB)
        self.told.bind(told)

    def run(self):
        held, fates = None, []
        while True:
            message = self.heard.recv_multipart()
            # Of five messages in any order.
            fates = fates or self.random.sample(("lost", "late", "twice", "", ""), 5)
            fate = fates.pop() if self.bad else ""
            if fate:
                self.counts[fate] += 1
            if fate == "late" and held is None:
                held = message
            elif fate != "lost":
                self.told.send_multipart(message)
                if fate == "twice":
                    self.told.send_multipart(message)
                if held is not None:
                    self.told.send_multipart(held)
                    held = None


def some_prompt(chance):
    """Token ids of which many prompts have the first ones in common."""
    tokens = []
    for _ in range(chance.randrange(1, 7)):
        tokens += [chance.randrange(3) + 40] * BLOCK
    return tokens + [9] * chance.randrange(1, BLOCK)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_index_ends_equal_to_the_server_whatever_is_lost(tmp_path, seed):
    chance = random.Random(seed)
    events, replay = endpoints(tmp_path)
    network = LossyNetwork(events, events + "2", seed)
    network.start()
    index = kv_index.KvIndex()
    kv_index.Follower(index, events + "2", replay).start()
    # So few blocks that some are evicted, and so few messages kept that snapshots are needed.
    flags = [*events_flags(events, replay), "--hot-bytes", "400KB", "--events-buffer", 5 if seed == 1 else 10_000]
    for life in range(3):
        killed = pytest.raises(AssertionError, match=r"\(-9, ") if life == 1 else contextlib.nullcontext()
        with killed, quire_server.serving(tmp_path / str(life), *flags) as server:
            prompts = []
            network.bad = True
            for _ in range(30):
                prompts.append(some_prompt(chance))
                status, answer = server.ask("/v1/completions", {"prompt": prompts[-1], "max_tokens": 2})
                assert status == 200, answer
                if chance.random() < 0.2:
                    time.sleep(0.02)
            network.bad = False
            server.wait_idle()
            wait_until_equal(index, server)
            assert shape_of_index(index)[0] > 0
            for prompt in prompts[-5:]:
                # Two indexes of one shape may differ: what is told after this one has come tells of all before it.
                last = [chance.randint(10, 200) for _ in range(2 * BLOCK + 1)]
                assert server.ask("/v1/completions", {"prompt": last, "max_tokens": 1})[0] == 200
                server.wait_idle()
                end = time.monotonic() + 20
                while index.match(last) < 2 * BLOCK:
                    assert time.monotonic() < end
                    time.sleep(0.01)
                found = min(index.match(prompt), (len(prompt) - 1) // BLOCK * BLOCK)
                usage = server.ask("/v1/completions", {"prompt": prompt, "max_tokens": 1})[1]["usage"]
                assert usage["prompt_tokens_details"]["cached_tokens"] == found
            wait_until_equal(index, server)
            if life == 1:
                server.process.kill()  # it says nothing any more
                server.process.wait()
    assert all(network.counts.values()), network.counts


def test_named_tenants_are_not_told(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[tenant]]\nname = "alice"\nkeys = ["alice-secret-key-123"]\n')
    keys.chmod(0o600)
    events, replay = endpoints(tmp_path)
    index = kv_index.KvIndex()
    kv_index.Follower(index, events, replay).start()
    with quire_server.serving(tmp_path / "a", "--api-keys", keys, "--operator-listen", "127.0.0.1:0",
                              *events_flags(events, replay)) as server:
        status, _ = server.ask("/v1/completions", {"prompt": TEXT, "max_tokens": 1}, key="alice-secret-key-123")
        assert status == 200
        server.wait_idle()
        assert server.ask("/v1/cache", url=server.operator_url)[1]["index"]["blocks"] > 0
        time.sleep(1.5)
        assert shape_of_index(index)[0] == 0


def test_the_store_is_another_medium(tmp_path):
    events, replay = endpoints(tmp_path)
    index = kv_index.KvIndex()
    kv_index.Follower(index, events, replay).start()
    flags = ["--store", tmp_path / "store", "--operator-listen", "127.0.0.1:0", *events_flags(events, replay)]
    with quire_server.serving(tmp_path / "a", *flags) as server:
        assert server.ask("/v1/completions", {"prompt": TEXT, "max_tokens": 1})[0] == 200
        end = time.monotonic() + 20
        while not index.blocks or any(block.media != {"GPU", "STORAGE"} for block in index.blocks.values()):
            assert time.monotonic() < end, index.blocks
            time.sleep(0.05)
        blocks = len(index.blocks)
        # What leaves memory is found in the store, so the router still goes there for it.
        server.wait_idle()
        status, answer = server.ask("/v1/cache/demote", {"prompt": TEXT}, url=server.operator_url)
        assert status == 200, answer
        demoted = answer["blocks"]
        assert demoted > 0
        while sum(block.media == {"STORAGE"} for block in index.blocks.values()) != demoted:
            assert time.monotonic() < end, index.blocks
            time.sleep(0.05)
        assert len(index.blocks) == blocks
        assert server.ask("/v1/cache/erase", {"tenant": "default"}, url=server.operator_url)[0] == 200
        while index.blocks:
            assert time.monotonic() < end, index.blocks
            time.sleep(0.05)


def test_flags(tmp_path):
    done = quire_cli.run("serve", "--model", quire_server.TINY, "--events", "5557")
    assert done.exit_code == 3 and "'5557'" in done.stderr
    done = quire_cli.run("serve", "--model", quire_server.TINY, "--events-replay", "tcp://*:1")
    assert done.exit_code == 2 and "--events" in done.stderr


def test_the_router_with_the_client_of_openai(tmp_path):
    with routed(tmp_path) as (url, behind, servers):
        client = openai.OpenAI(base_url=url + "/v1", api_key="none")
        assert client.models.list().data[0].id == MODEL
        texts = [str(i) * 40 + TEXT for i in range(4)]

        def found(text):
            usage = client.completions.create(model=MODEL, prompt=text, max_tokens=4, temperature=0).usage
            return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens

        def wait_until_heard():
            for behind_one, server in zip(behind, servers):
                server.wait_idle()
                wait_until_equal(behind_one.index, server)

        for text in texts:
            found(text)
        wait_until_heard()
        for text in texts:  # each is where it was
            tokens, cached = found(text)
            assert cached == (tokens - 1) // BLOCK * BLOCK
        # Chats too, and streams as they come.
        messages = [{"role": "user", "content": TEXT}]
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
        wait_until_heard()
        pieces = list(client.chat.completions.create(model=MODEL, messages=messages, max_tokens=400, stream=True,
                                                     stream_options={"include_usage": True},
                                                     extra_body={"ignore_eos": True}))
        assert len(pieces) > 2  # not whole at its end, where the usage is one more
        assert pieces[-1].usage.prompt_tokens_details.cached_tokens > 0
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=MODEL, prompt=TEXT, max_tokens=-1)
        # One server ends: the other one answers all.
        servers[0].terminate()
        for text in texts:
            assert found(text)[0] > 0


def test_messages_have_the_format_of_vllm(tmp_path):
    events, replay = endpoints(tmp_path)
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.subscribe("kv@")
    socket.connect(events)
    with quire_server.serving(tmp_path / "a", *events_flags(events, replay), "--events-topic", "kv@a@tiny") as server:
        assert socket.poll(10_000)  # from now on it hears all
        prompt = [7] * BLOCK + [8] * BLOCK + [9]
        assert server.ask("/v1/completions", {"prompt": prompt, "max_tokens": 1})[0] == 200
        stored, last = None, None
        end = time.monotonic() + 20
        while stored is None:
            assert socket.poll(10_000) and time.monotonic() < end
            topic, number, payload = socket.recv_multipart()
            assert topic == b"kv@a@tiny" and len(number) == 8
            assert last is None or int.from_bytes(number, "big") == last + 1
            last = int.from_bytes(number, "big")
            ts, events_, rank = msgpack.unpackb(payload)
            assert abs(ts - time.time()) < 60 and rank == 0
            stored = next((event for event in events_ if event["type"] == "BlockStored"), None)
        assert stored["block_size"] == BLOCK and stored["medium"] == "GPU"
        assert stored["token_ids"] == prompt[:2 * BLOCK]
        assert len(set(stored["block_hashes"])) == 2 and stored["parent_block_hash"] is None
