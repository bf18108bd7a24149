"""BlockPool: which blocks of the KV cache are in use, shared, or hold a known prefix. No torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from atb_dist.errors import OutOfBlocks


class BlockPool:
    """Reference counts over block numbers.

    A block whose tokens are known by key keeps them after its last user has gone, until the memory
    is needed: least recently used first. Blocks without a key are taken before those.
    """

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self._users = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()  # free, with a key; oldest first
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that allocate can give."""
        return len(self._empty) + len(self._reusable)

    def users(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._users[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks for one user; what they held is forgotten.

        Raises OutOfBlocks, having taken nothing.
        """
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks are needed, {self.num_free} are free")
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._reusable.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
        self._users[block] = 1
        return block

    def fork(self, table: Iterable[int]) -> list[int]:
        """Add a user to each block; return the new user's table."""
        shared = list(table)
        for block in shared:
            self._users[block] += 1
        return shared

    def release(self, table: Iterable[int]) -> None:
        """Remove a user from each block. Later blocks of a prefix are given up before earlier."""
        for block in reversed(list(table)):
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._key_of:
                    self._reusable[block] = None
                else:
                    self._empty.append(block)

    def register(self, block: int, key: bytes) -> None:
        """Make a full block findable. The first block of a key stays the one that is found."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def match_prefix(self, keys: Sequence[bytes]) -> list[int]:
        """Return the blocks of the longest known run of keys, with this caller as a user."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            if self._users[block] == 0:
                del self._reusable[block]
            self._users[block] += 1
            found.append(block)
        return found
