"""PeerWatch: waiting on another library's work while looking after the other ranks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from atb_dist.comm.host import host_identity, started_at
from atb_dist.errors import PeerFailure

CHECK_S = 0.2  # how late a death, an abort or a deadline may be noticed
SPIN_S = 0.002  # yield this long before sleeping between polls
NAP_S = 0.0005


@dataclass(frozen=True)
class Peer:
    """Where a rank runs. started tells a process from a later one with the same id.

    label: what errors call it, its number among all ranks of the job.
    """

    host: str
    pid: int
    started: str
    label: int

    @classmethod
    def of_this_process(cls, label: int) -> Peer:
        """Describe the caller."""
        return cls(host_identity(), os.getpid(), started_at(os.getpid()), label)


class WaitingThread:
    """A work that only knows how to block (gloo's send and recv), waited for by a thread."""

    def __init__(self, work: Any):
        self._work = work
        self._error: RuntimeError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            self._error = error

    def is_completed(self) -> bool:
        """Whether the work has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Raise the work's error, if it had one."""
        if self._error is not None:
            raise self._error


class PeerWatch:
    """Waits with a deadline, knowing every rank's process.

    post tells all ranks why this one gave up; read returns what another has told, or None. Both
    may raise RuntimeError when the way to the others is gone.
    """

    def __init__(
        self,
        rank: int,
        peers: Sequence[Peer],
        *,
        post: Callable[[str], None],
        read: Callable[[], str | None],
        timeout_s: float,
    ):
        self.peers = list(peers)
        self._rank = rank
        self._post = post
        self._read = read
        self._timeout_s = timeout_s
        self._number = 0
        self.broken = ""

    def wait(self, verb: str, x: Tensor, work: Any, *, idle: bool) -> None:
        """Return when the work is done.

        Raises PeerFailure when a rank of this host dies, any rank aborts, or time is over.
        """
        if self.broken:
            raise PeerFailure(self.broken)
        self._number += 1
        what = f"{verb} #{self._number} ({x.nbytes} bytes {str(x.dtype).removeprefix('torch.')})"
        begin = checked = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if now - checked > CHECK_S:
                checked = now
                self._look(what, now - begin, idle=idle)
            time.sleep(0 if now - begin < SPIN_S else NAP_S)
        try:
            work.wait()
        except RuntimeError as error:
            self._look_after_error(what)
            self._raise(f"{self._me()} failed in {what}: {' '.join(str(error).split())[:300]}")

    def abort(self, reason: str) -> None:
        """Tell all waiting ranks; where that fails their connections have failed too."""
        with suppress(RuntimeError):
            self._post(f"{self._me()} aborted: {reason}")

    def _look(self, what: str, waited_s: float, *, idle: bool) -> None:
        try:
            told = self._read()
        except RuntimeError:
            self._refuse_dead(what)
            self._raise(f"{self._me()} lost its connection to rank 0 in {what}")
        if told is not None:
            self._raise(f"{told} [seen by {self._me()} in {what}]")
        self._refuse_dead(what)
        if not idle and waited_s > self._timeout_s:
            why = (
                f"{self._me()} waited {waited_s:.3g} s in {what} for other ranks; "
                "ATB_DIST_TIMEOUT_S changes the limit"
            )
            self.abort(why)
            self._raise(why)

    def _look_after_error(self, what: str) -> None:
        """Find the cause of a broken connection: a peer that died may still be dying."""
        end = time.monotonic() + 1
        while time.monotonic() < end:
            self._look(what, 0, idle=True)
            time.sleep(CHECK_S / 4)

    def _refuse_dead(self, what: str) -> None:
        here = self.peers[self._rank].host
        for rank, peer in enumerate(self.peers):
            if peer.host == here and started_at(peer.pid) != peer.started:
                why = f"{self._name(rank)} died; {self._me()} was in {what}"
                self.abort(why)
                self._raise(why)

    def _name(self, rank: int) -> str:
        return f"rank {self.peers[rank].label} (pid {self.peers[rank].pid})"

    @property
    def label(self) -> int:
        """What errors call this rank."""
        return self.peers[self._rank].label

    def _me(self) -> str:
        return self._name(self._rank)

    def _raise(self, why: str) -> NoReturn:
        self.broken = why
        raise PeerFailure(why)
