"""Wait for the ranks of one run: their results, their deaths, the deadline."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from pathlib import Path

from atb_dist.testing.faults import Faults
from atb_dist.testing.outcomes import Outcome, ending
from atb_dist.testing.rank_process import RankProcess, RankServer
from atb_dist.testing.rank_worker import STACKS_SIGNAL

_GRACE_S = 5.0
_STACKS_LIMIT_S = 1.0
_TICK_S = 0.5


class Watch:
    """Collects one outcome for each rank.

    After the first failure the others get a few seconds to fail by themselves: what they raise
    shows what the failure looks like from a peer.
    """

    def __init__(self, server: RankServer, processes: Sequence[RankProcess], faults: Faults):
        self._server = server
        self._processes = processes
        self._faults = faults
        self._outcomes: dict[int, Outcome] = {}
        self._grace_end_s = float("inf")

    @property
    def unfit_ranks(self) -> list[int]:
        """Ranks whose process must not be used again."""
        whole = {rank for rank, outcome in self._outcomes.items() if outcome.is_whole}
        return [rank for rank in range(len(self._processes)) if rank not in whole]

    def wait(self, limit_s: float) -> list[Outcome]:
        """Return the outcomes by rank. Kills what runs for longer than limit_s."""
        deadline_s = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._server.frames, selectors.EVENT_READ, -1)
            for rank, process in enumerate(self._processes):
                selector.register(process.frames, selectors.EVENT_READ, rank)
            while len(self._outcomes) < len(self._processes):
                end_s = min(deadline_s, self._grace_end_s)
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    self._stop_rest(f"was still running {limit_s:g} s after the start"
                                    if end_s == deadline_s else "")  # fmt: skip
                    break
                for key, _ in selector.select(min(left_s, _TICK_S)):
                    if key.data >= 0 and not self._hear(key.data):
                        selector.unregister(key.fileobj)
                self._look_for_dead()
        return [self._finish(rank) for rank in range(len(self._processes))]

    def _hear(self, rank: int) -> bool:
        """Read what a rank sent; False once it has closed its end."""
        frames = self._processes[rank].frames
        for outcome in frames.pull():
            self._record(outcome)
        return not frames.closed

    def _look_for_dead(self) -> None:
        self._server.pull()
        for rank, process in enumerate(self._processes):
            if rank in self._outcomes:
                continue
            status = self._server.statuses.get(process.pid)
            if status is not None:
                while not process.frames.closed and rank not in self._outcomes:
                    self._hear(rank)  # its last words, then the end: its process is gone
                text, number = ending(status), status & 0x7F
            elif not self._server.is_alive:
                text, number = "was lost: the process that started it has ended", 0
            else:
                continue
            if rank not in self._outcomes:
                self._record(Outcome(rank, "died", time.monotonic(), text=text, signal=number))

    def _record(self, outcome: Outcome) -> None:
        outcome.pid = self._processes[outcome.rank].pid
        self._outcomes[outcome.rank] = outcome
        planned = self._faults.is_planned(outcome.rank, outcome.signal)
        if outcome.kind != "returned" and not planned:
            self._grace_end_s = min(self._grace_end_s, time.monotonic() + _GRACE_S)

    def _stop_rest(self, at_deadline: str) -> None:
        """Let the ranks that still run write their stacks, then kill them."""
        late = [r for r in range(len(self._processes)) if r not in self._outcomes]
        for rank in late:
            self._server.kill(self._processes[rank], STACKS_SIGNAL)
        limit_s = time.monotonic() + _STACKS_LIMIT_S
        sizes: list[int] = []
        while time.monotonic() < limit_s:
            time.sleep(0.1)
            before, sizes = sizes, [self._processes[r].output_size("stacks") for r in late]
            if all(sizes) and sizes == before:
                break
        text = at_deadline or f"was still running {_GRACE_S:g} s after the first failure"
        for rank in late:
            self._server.kill(self._processes[rank])
            kind = "hung" if at_deadline else "stopped"
            self._record(Outcome(rank, kind, time.monotonic(), text=f"{text}; it was killed"))

    def _finish(self, rank: int) -> Outcome:
        outcome, process = self._outcomes[rank], self._processes[rank]
        outcome.stdout = process.take_output("stdout")
        outcome.stderr = process.take_output("stderr")
        stacks = process.take_output("stacks")
        outcome.details = outcome.details or _without_our_frames(stacks)
        return outcome


def _without_our_frames(stacks: str) -> str:
    hidden = (
        f'  File "{Path(__file__).parent}',
        '  File "<string>", line 1 in <module>',
        "Extension modules:",
    )
    return "\n".join(line for line in stacks.splitlines() if not line.startswith(hidden))
