"""KV events of a cache from Python: they are told as long as the cache lives, and no forked child tells any."""

from __future__ import annotations

import os
import time

import msgpack
import pytest
import zmq
from conftest import compute, make_cache

import quire


def test_what_a_cache_has_is_told(identity, tmp_path):
    endpoint = f"ipc://{tmp_path}/e"
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe("kv")
        subscriber.connect(endpoint)
        cache = make_cache(events=endpoint, events_replay=f"ipc://{tmp_path}/r", events_topic="kv")
        assert subscriber.poll(10_000)
        compute(cache, identity, list(range(40))).close()
        child = os.fork()
        if child == 0:
            del cache
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        events, end = [], time.monotonic() + 10
        while not any(event["type"] == "BlockStored" for event in events):
            assert subscriber.poll(10_000) and time.monotonic() < end
            events = msgpack.unpackb(subscriber.recv_multipart()[2])[1]
        assert events[0]["token_ids"] == list(range(32))
        del cache
        while events != [{"type": "AllBlocksCleared"}]:
            assert subscriber.poll(30_000)
            events = msgpack.unpackb(subscriber.recv_multipart()[2])[1]
        assert not subscriber.poll(500), "the child told something too"


def test_an_endpoint_that_cannot_be(identity):
    with pytest.raises(quire.InvalidArgumentError, match="5557"):
        make_cache(events="5557")
