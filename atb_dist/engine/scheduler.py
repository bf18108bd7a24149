"""Scheduler: which tokens of which sequences the next step computes. Imports no torch.

A pure function of the requests, cancellations and samples it was given, in order: every rank
computes the same plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from atb_dist.engine.blocks import BlockPool
from atb_dist.engine.request import Request, Sampled, Sequence
from atb_dist.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """Tokens start to start + count of a sequence; samples continuations from the last, or 0."""

    sequence: Sequence
    start: int
    count: int
    samples: int


@dataclass(frozen=True)
class StepPlan:
    """The rows of a step, and the blocks to copy (source, target) before it."""

    entries: tuple[Entry, ...]
    copies: tuple[tuple[int, int], ...]


class Scheduler:
    """Running sequences first, one token each if they decode; prompts fill up in chunks.

    When blocks run out, the youngest running sequence gives up its blocks and is computed again
    later. pool and block_size are those of the KV cache.
    """

    def __init__(
        self, pool: BlockPool, *, block_size: int, max_num_seqs: int, max_batched_tokens: int
    ):
        if max_batched_tokens < max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens={max_batched_tokens} can't hold a token of each of "
                f"max_num_seqs={max_num_seqs}; raise it or use fewer sequences"
            )
        self.pool = pool
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        whole = request.params.n > 1
        self.waiting.append(Sequence(request, 0, list(request.prompt), is_whole=whole))

    def cancel(self, request_id: int) -> None:
        """Forget all sequences of a request; unknown or finished ones are no error."""
        for sequence in [s for s in self.running if s.request.id == request_id]:
            self._finish(sequence)
        self.waiting = deque(s for s in self.waiting if s.request.id != request_id)

    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.running or self.waiting)

    def schedule(self) -> StepPlan:
        """Choose the rows of the next step and give them their blocks."""
        entries: list[Entry] = []
        copies: list[tuple[int, int]] = []
        decoding = sum(s.num_pending == 1 for s in self.running)
        room = max(0, self.max_batched_tokens - decoding)  # for tokens of prompts
        for sequence in list(self.running):
            if sequence not in self.running:  # preempted for an older one
                continue
            count = 1 if sequence.num_pending == 1 else min(sequence.num_pending, room)
            if count and self._make_room(sequence, count):
                room -= count if sequence.num_pending > 1 else 0
                entries.append(self._enter(sequence, count, copies))
        while self.waiting and room > 0 and (entry := self._admit(room, copies)) is not None:
            room -= entry.count
            entries.append(entry)
        return StepPlan(tuple(entries), tuple(copies))

    def commit(self, plan: StepPlan, samples: Seq[Sampled]) -> None:
        """Record that a plan was computed and what was sampled, in the order of its entries."""
        drawn = iter(samples)
        for entry in plan.entries:
            sequence = entry.sequence
            self._count_computed(sequence, entry.count)
            if entry.samples == 0:
                continue
            parts = [sequence, *self._part(sequence)]
            for part in parts:
                sampled = next(drawn)
                part.tokens.append(sampled.token)
                if sampled.finish_reason is not None:
                    self._finish(part)

    def _admit(self, room: int, copies: list[tuple[int, int]]) -> Entry | None:
        """Start the oldest waiting sequence if places and blocks allow, reusing known prefixes."""
        sequence = self.waiting[0]
        places = self.max_num_seqs - sum(s.slots for s in self.running)
        if sequence.slots > places:
            return None
        reusable = (len(sequence.tokens) - 1) // self.block_size  # one token must be computed
        matched = self.pool.match_prefix(sequence.block_keys(self.block_size, reusable))
        computed = len(matched) * self.block_size
        count = min(len(sequence.tokens) - computed, room)
        if self._blocks_for(computed + count) - len(matched) > self.pool.num_free:
            self.pool.release(matched)
            return None
        self.waiting.popleft()
        sequence.table, sequence.num_computed = matched, computed
        self.running.append(sequence)
        return self._enter(sequence, count, copies)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Preempt the youngest until the blocks suffice; False if that was the sequence itself."""
        while self._num_needed(sequence, count) > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _num_needed(self, sequence: Sequence, count: int) -> int:
        new = self._blocks_for(sequence.num_computed + count) - len(sequence.table)
        return new + (self._shared_block(sequence) is not None)

    def _shared_block(self, sequence: Sequence) -> int | None:
        """Return the place in the table of a block that would be written but has other users."""
        place = sequence.num_computed // self.block_size
        if place < len(sequence.table) and self.pool.users(sequence.table[place]) > 1:
            return place
        return None

    def _enter(self, sequence: Sequence, count: int, copies: list[tuple[int, int]]) -> Entry:
        place = self._shared_block(sequence)
        if place is not None:  # copy on write
            source, target = sequence.table[place], self.pool.allocate(1)[0]
            self.pool.release([source])
            sequence.table[place] = target
            copies.append((source, target))
        start = sequence.num_computed
        new = self._blocks_for(start + count) - len(sequence.table)
        sequence.table += self.pool.allocate(new)
        complete = start + count == len(sequence.tokens)
        return Entry(sequence, start, count, sequence.slots if complete else 0)

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self.pool.release(victim.table)
        victim.table, victim.num_computed = [], 0
        self.waiting.appendleft(victim)
        self.num_preemptions += 1

    def _count_computed(self, sequence: Sequence, count: int) -> None:
        before = sequence.num_computed // self.block_size
        sequence.num_computed += count
        after = sequence.num_computed // self.block_size
        keys = sequence.block_keys(self.block_size, after)
        for place in range(before, after):
            self.pool.register(sequence.table[place], keys[place])

    def _part(self, sequence: Sequence) -> list[Sequence]:
        """Make the other continuations of a request whose prompt is done; they share its blocks."""
        if not sequence.is_whole:
            return []
        sequence.is_whole = False
        others = []
        for index in range(1, sequence.request.params.n):
            other = Sequence(sequence.request, index, list(sequence.tokens), is_whole=False)
            other.num_computed = sequence.num_computed
            other.table = self.pool.fork(sequence.table)
            others.append(other)
        place = self.running.index(sequence) + 1
        self.running[place:place] = others
        return others

    def _finish(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.table)
        sequence.table = []
