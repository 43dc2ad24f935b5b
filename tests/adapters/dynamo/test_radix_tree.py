"""The stream of KV events in Dynamo's RadixTree: it finds of each prompt what the server finds."""

import json
import pathlib
import random
import sys
import threading
import time

from dynamo._core import RadixTree, compute_block_hash_for_seq

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "examples/router"), str(ROOT / "tests/e2e")]

import kv_index  # noqa: E402
import quire_server  # noqa: E402

BLOCK = 16
WORKER = 7


class DynamoIndex:
    """Gives events to a RadixTree as Dynamo's relay of vLLM's events does: blocks have the hashes of the stream, and
    their tokens Dynamo's own."""

    def __init__(self):
        self.tree = RadixTree()
        self.lock = threading.Lock()
        self.count = 0
        self.kinds = set()

    def apply(self, events):
        with self.lock:
            for event in events:
                self.kinds.add(event["type"])
                if event["type"] == "AllBlocksCleared":
                    self._apply("cleared")
                elif event["medium"] == "GPU" and event["type"] == "BlockRemoved":
                    for block in event["block_hashes"]:
                        self._remove(block)
                elif event["medium"] == "GPU":
                    tokens = compute_block_hash_for_seq(event["token_ids"], event["block_size"])
                    self._apply({"stored": {
                        "parent_hash": event["parent_block_hash"],
                        "blocks": [{"block_hash": block, "tokens_hash": hashed}
                                   for block, hashed in zip(event["block_hashes"], tokens, strict=True)]}})

    def _remove(self, block):
        try:
            self._apply({"removed": {"block_hashes": [block]}})
        except RuntimeError as error:
            # It went while a snapshot was made (docs/events.md): the tree skips it with a warning, and raises.
            assert "Failed to find block" in str(error)

    def _apply(self, data):
        event = {"event_id": self.count, "data": data, "dp_rank": 0}
        self.tree.apply_event(WORKER, json.dumps(event).encode())
        self.count += 1

    def match(self, tokens):
        with self.lock:
            scores = self.tree.find_matches(compute_block_hash_for_seq(tokens, BLOCK)).scores
        return max(scores.values(), default=0) * BLOCK


def test_it_finds_what_the_server_finds(tmp_path):
    chance = random.Random(5)
    ends = f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r"
    dynamo, ours = DynamoIndex(), kv_index.KvIndex()
    for index in (dynamo, ours):
        kv_index.Follower(index, *ends).start()
    # So few blocks that many are evicted.
    flags = ["--events", ends[0], "--events-replay", ends[1], "--hot-bytes", "400KB"]
    with quire_server.serving(tmp_path / "a", *flags) as server:
        prompts = []
        for _ in range(60):
            prompt = [token for _ in range(chance.randrange(1, 8)) for token in [chance.randrange(3) + 40] * BLOCK]
            prompts.append(prompt + [9])
            assert server.ask("/v1/completions", {"prompt": prompts[-1], "max_tokens": 2})[0] == 200
        server.wait_idle()
        time.sleep(2)
        found = [dynamo.match(prompt) for prompt in prompts]
        assert found == [ours.match(prompt) for prompt in prompts]
        assert 0 < sum(found) < sum(len(prompt) // BLOCK * BLOCK for prompt in prompts)
        usage = server.ask("/v1/completions", {"prompt": prompts[-1], "max_tokens": 1})[1]["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == found[-1] > 0
    assert dynamo.kinds == {"AllBlocksCleared", "BlockStored", "BlockRemoved"}
    time.sleep(1)  # the server's last message
    assert not any(dynamo.match(prompt) for prompt in prompts)
