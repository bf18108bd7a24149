"""BlockPool: no block is lost, shared by mistake, or found under another's tokens."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atb_dist.engine.blocks import BlockPool
from atb_dist.errors import OutOfBlocks

NUM_BLOCKS = 12


class Pool(RuleBasedStateMachine):
    """Users with tables, and what each block is known to hold, kept beside the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    @rule(count=st.integers(0, 5), key=st.binary(min_size=1, max_size=1))
    def allocate(self, count: int, key: bytes) -> None:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(OutOfBlocks, match=f"{count} blocks are needed, {free} are free"):
                self.pool.allocate(count)
            assert self.pool.num_free == free
            return
        table = self.pool.allocate(count)
        held = {block for other in self.tables for block in other}
        assert not held & set(table)
        self.tables.append(table)
        for i, block in enumerate(table):
            self.content[block] = key * (i + 1)
            self.pool.register(block, key * (i + 1))

    @rule(which=st.integers(0, 99))
    def fork(self, which: int) -> None:
        if self.tables:
            self.tables.append(self.pool.fork(self.tables[which % len(self.tables)]))

    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        if self.tables:
            self.pool.release(self.tables.pop(which % len(self.tables)))

    @rule(key=st.binary(min_size=1, max_size=1), count=st.integers(1, 5))
    def match(self, key: bytes, count: int) -> None:
        keys = [key * (i + 1) for i in range(count)]
        found = self.pool.match_prefix(keys)
        assert [self.content[block] for block in found] == keys[: len(found)]
        self.tables.append(found)

    @invariant()
    def users_are_counted(self) -> None:
        wanted = Counter(block for table in self.tables for block in table)
        assert all(self.pool.users(block) == wanted[block] for block in range(NUM_BLOCKS))
        assert self.pool.num_free == NUM_BLOCKS - len(wanted)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_known_blocks_are_evicted_oldest_first_and_only_when_needed() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2), pool.allocate(1)
    for block, key in zip([*first, *second], (b"a", b"b", b"c"), strict=True):
        pool.register(block, key)
    pool.release(first)
    pool.release(second)
    pool.allocate(1)  # the one that never had a key
    assert len(pool.match_prefix([b"a"])) == 1
    pool.allocate(1)  # b: freed before a and c
    assert pool.match_prefix([b"b"]) == []
    assert pool.match_prefix([b"c"]) == second
