"""Sequences of calls that hypothesis makes up, in lock step with lists of tokens."""

from __future__ import annotations

import numpy as np
from conftest import KV_HEADS, LAYERS, append, digest, make_cache, rows
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (Bundle, RuleBasedStateMachine, consumes, invariant, multiple,
                                 precondition, rule)

import quire

IDENTITIES = [quire.Identity(digest(name)) for name in ("a", "b")]
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


class Cache(RuleBasedStateMachine):
    """A cache whose tokens come from three words, so that prefixes meet often."""

    sequences = Bundle("sequences")

    def __init__(self):
        super().__init__()
        self.cache = make_cache(hot_bytes=600_000)
        self.published = {0: set(), 1: set()}  # prefixes of whole blocks that were ever committed
        self.full = 0

    def note(self, who, tokens):
        for end in range(16, len(tokens) + 1, 16):
            self.published[who].add(tuple(tokens[:end]))

    @rule(target=sequences, who=st.integers(0, 1), prompt=TOKENS, reuse=st.booleans())
    def open(self, who, prompt, reuse):
        with self.cache.acquire(prompt, IDENTITIES[who], reuse=reuse) as plan:
            found = plan.resident_tokens
            assert found % 16 == 0 and found < len(prompt) and (reuse or found == 0)
            assert found + plan.missing_tokens == len(prompt)
            assert found == 0 or tuple(prompt[:found]) in self.published[who]
            assert sum(tokens for _, tokens in plan.missing) == plan.missing_tokens
            try:
                sequence = self.cache.open(plan, reserve_tokens=len(prompt) + 20)
            except quire.NoSpaceError:
                self.full += 1
                return multiple()
        append(sequence, prompt[found:])
        sequence.commit(prompt[found:])
        self.note(who, prompt)
        return {"sequence": sequence, "who": who, "tokens": list(prompt)}

    @rule(state=sequences, more=TOKENS, commit=st.booleans())
    def extend(self, state, more, commit):
        try:
            append(state["sequence"], more)
        except quire.NoSpaceError:
            self.full += 1
            commit = False
        if not commit:
            state["sequence"].rollback(len(state["tokens"]))
            return
        state["sequence"].commit(np.array(more, np.int64))
        state["tokens"] += more
        self.note(state["who"], state["tokens"])

    @rule(state=sequences, part=st.floats(0, 1))
    def rollback(self, state, part):
        position = int(len(state["tokens"]) * part)
        try:
            state["sequence"].rollback(position)
        except quire.NoSpaceError:
            self.full += 1
            return
        del state["tokens"][position:]

    @rule(target=sequences, state=sequences)
    def fork(self, state):
        try:
            fork = state["sequence"].fork()
        except quire.NoSpaceError:
            self.full += 1
            return multiple()
        return {**state, "sequence": fork, "tokens": list(state["tokens"])}

    @rule(state=sequences, layer=st.integers(0, LAYERS - 1), role=st.sampled_from(["key", "value"]))
    def read(self, state, layer, role):
        expected = rows(state["tokens"], layer, KV_HEADS, role).transpose(1, 0, 2)
        sequence = state["sequence"]
        np.testing.assert_array_equal(sequence.gather(layer, role), expected)
        view = sequence.view(layer, role)
        for block in range(len(view)):
            there = expected[:, block * 16:block * 16 + 16]
            np.testing.assert_array_equal(view.numpy(block), there)

    @rule(state=consumes(sequences))
    def close(self, state):
        state["sequence"].close()

    @rule(blocks=st.integers(0, 8))
    def evict(self, blocks):
        assert self.cache.evict(blocks) <= blocks

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def budget(self):
        stats = self.cache.stats()
        assert stats["hot_bytes_used"] <= stats["hot_bytes_limit"]

    def teardown(self):
        assert self.cache.verify()[1] == 0


Cache.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None,
                                   suppress_health_check=list(HealthCheck))
test_calls_in_lock_step_with_lists = Cache.TestCase
