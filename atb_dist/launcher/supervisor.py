"""The launcher's loop: starts ranks, passes their output on, and ends all when one fails."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import time
from dataclasses import asdict, dataclass

from atb_dist.launcher import ascend, sweep
from atb_dist.launcher.job import Job, Meeting, parse_address
from atb_dist.launcher.output import Log, table
from atb_dist.launcher.ports import reserve_port
from atb_dist.launcher.process import Guard, RankProcess, start_ranks
from atb_dist.launcher.rendezvous import Message, Peer, meet
from atb_dist.launcher.signals import signals_on_socket

VICTIM_WAIT_S = 1.0  # a rank that names another as failed is given this long to be proved right
TERM_WAIT_S = 1.5  # from SIGTERM to SIGKILL; with the wait above it stays within 3 s
KILL_WAIT_S = 2.0
PROMPT_WAIT_S = 0.1  # rank 0 alone can be answered, so only its unfinished lines are shown
LEFTOVER_WAIT_S = 1.0  # what ranks started may finish, such as a `tee`, after a good end


@dataclass(frozen=True)
class Failure:
    """Why a job ends early: a line for people, the launcher's exit code, the last lines."""

    text: str
    code: int
    rank: int = -1
    tail: tuple[str, ...] = ()


def launch(job: Job) -> int:
    """Run this host's ranks of the job to their end; return the exit code to end with.

    0 when all ranks of all nodes ended with 0, else the first failing rank's code: 128 + signal
    when a signal ended it. Call from the main thread: it takes over signals while it runs.
    Raises ConfigError or AtbDistError before any rank starts.
    """
    holder = reserve_port()
    with holder:
        addr = parse_address(job.rendezvous)[0] if job.num_nodes > 1 else "127.0.0.1"
        session = f"atb-dist-{secrets.token_hex(12)}"
        try:
            meeting, peers = meet(job, Meeting(session, addr, holder.getsockname()[1]))
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        with ascend.ports(os.environ, job.device) as port_defaults, signals_on_socket() as wakeup:
            return Supervisor(job, meeting, peers, wakeup).run(port_defaults)


class Supervisor:
    """One host's ranks, from start to end."""

    def __init__(self, job: Job, meeting: Meeting, peers: list[Peer], wakeup: socket.socket):
        self._job = job
        self._meeting = meeting
        self._peers = peers
        self._wakeup = wakeup
        self._log = Log()
        self._poll = selectors.PollSelector()
        self._ranks: list[RankProcess] = []
        self._failed: list[RankProcess] = []  # in the order in which they ended
        self._failure: Failure | None = None
        self._decide_at = float("inf")
        self._kill_at = float("inf")
        self._give_up_at = float("inf")
        self._leftovers_until: float | None = None
        self._said_done = False

    def run(self, defaults: dict[str, str]) -> int:
        """Start, watch, end."""
        guard = Guard(self._meeting.session, self._job.node_rank)
        try:
            self._poll.register(self._wakeup, selectors.EVENT_READ)
            for peer in self._peers:
                self._poll.register(peer, selectors.EVENT_READ)
            self._start(guard, defaults)
            while not self._finished():
                self._step()
        finally:
            for rank in self._ranks:
                rank.signal(signal.SIGKILL)
            self._end_leftovers(KILL_WAIT_S)
            guard.dismiss()
            self._say_end()
            for peer in self._peers:
                peer.close(wait_s=1.0)
        return self._failure.code if self._failure else 0

    def _start(self, guard: Guard, defaults: dict[str, str]) -> None:
        rows = []
        for process, row in start_ranks(self._job, self._meeting, defaults):
            guard.watch(process.pid)
            self._ranks.append(process)
            for fd in process.pipes:
                self._poll.register(fd, selectors.EVENT_READ, process)
            rows.append(row)
        if not self._job.quiet:
            for line in table(("rank", "pid", "cpus", "threads", "device"), rows):
                self._log.say(line)

    def _step(self) -> None:
        """Wait for something to happen and see to it."""
        self._watch_stderr()
        now = time.monotonic()
        soon = 0.02 if self._leftovers_until is not None else 1.0
        if self._log.has_unfinished(0):
            soon = min(soon, PROMPT_WAIT_S)
        wake_at = min(self._decide_at, self._kill_at, now + soon)
        ready = self._poll.select(max(0.0, wake_at - now))
        if not ready and self._log.has_unfinished(0):
            self._log.show_unfinished(0)
        for key, _ in ready:
            if isinstance(key.data, RankProcess):
                self._read(key.data, key.fd)
            elif isinstance(key.fileobj, Peer):
                self._hear(key.fileobj)
            elif key.fileobj is self._wakeup:
                self._on_signals(self._wakeup.recv(4096))
            else:
                self._log.write_some()
        self._reap()
        now = time.monotonic()
        if now >= self._decide_at and self._failure is None:
            self._fail(self._first_failure())
        if now >= self._kill_at:
            self._signal_ranks(signal.SIGKILL)
            self._kill_at = now + 0.2
            self._give_up_at = min(self._give_up_at, now + KILL_WAIT_S)

    def _watch_stderr(self) -> None:
        """Wait for stderr when there is something to write; not for ranks when there is a lot."""
        watched = self._poll.get_map()
        if self._log.has_pending and 2 not in watched:
            self._poll.register(2, selectors.EVENT_WRITE)
        elif 2 in watched and not self._log.has_pending:
            self._poll.unregister(2)
        for process in self._ranks:
            for fd in process.pipes:
                if self._log.is_full and fd in watched:
                    self._poll.unregister(fd)
                elif not self._log.is_full and fd not in watched:
                    self._poll.register(fd, selectors.EVENT_READ, process)

    def _read(self, process: RankProcess, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._log.feed(process.rank, process.pipes[fd], data)
        else:
            if fd in self._poll.get_map():
                self._poll.unregister(fd)
            process.pipes.pop(fd)

    def _reap(self) -> None:
        for process in self._ranks:
            if not process.poll():
                continue
            for fd in list(process.pipes):
                self._read(process, fd)
            self._log.end(process.rank)
            if process.code != 0 and self._failure is None:
                self._failed.append(process)
                self._log.hold()
                is_victim = any("PeerFailure" in line for line in self._log.tail(process.rank))
                wait_s = VICTIM_WAIT_S if is_victim else 0.0
                self._decide_at = min(self._decide_at, time.monotonic() + wait_s)

    def _first_failure(self) -> Failure:
        """The first rank that failed, but not one that only reports another's failure."""
        tails = {process.rank: tuple(self._log.tail(process.rank)) for process in self._failed}
        own = [p for p in self._failed if not any("PeerFailure" in t for t in tails[p.rank])]
        process = (own or self._failed)[0]
        node = f" on node {self._job.node_rank}" if self._job.num_nodes > 1 else ""
        text = f"rank {process.rank} of {self._job.size} (pid {process.pid}{node}) {process.ending}"
        return Failure(text, process.exit_code, process.rank, tails[process.rank])

    def _fail(self, failure: Failure, *, number: int = signal.SIGTERM, told: bool = False) -> None:
        """End the job because of this failure; the first one counts."""
        if self._failure is not None:
            return
        self._failure = failure
        title = f"atb-dist: {failure.text}; its last lines:"
        self._log.say_tail(failure.rank, title, list(failure.tail))
        self._log.release()
        for peer in self._peers:
            if not (told and self._job.node_rank != 0):
                peer.send({"failed": asdict(failure)})
        self._signal_ranks(number)
        self._kill_at = time.monotonic() + TERM_WAIT_S

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                continue
            if self._failure is not None:  # asked twice: at once
                self._kill_at = 0.0
            name = signal.Signals(number).name
            self._fail(Failure(f"stopped by {name}", 128 + number), number=number)

    def _signal_ranks(self, number: int) -> None:
        for process in self._ranks:
            process.signal(number)

    def _hear(self, peer: Peer) -> None:
        messages = peer.receive()
        for message in messages:
            self._on_message(peer, message)
        if peer.closed:
            self._poll.unregister(peer)
            self._peers.remove(peer)
            if not peer.done:
                self._fail(Failure(f"the launcher of node {peer.node} is gone", 1))
            peer.close()

    def _on_message(self, peer: Peer, message: Message) -> None:
        if "failed" in message:
            failed = message["failed"]
            self._fail(
                Failure(failed["text"], failed["code"], failed["rank"], tuple(failed["tail"])),
                told=True,
            )
        peer.done |= "done" in message

    def _finished(self) -> bool:
        """Whether all ranks and what they started have ended, here and on the other nodes."""
        now = time.monotonic()
        if any(process.code is None for process in self._ranks):
            return now >= self._give_up_at
        if self._failure is None and self._failed:
            return False
        if self._leftovers_until is None:
            self._leftovers_until = now + (0.0 if self._failure else LEFTOVER_WAIT_S)
        if now < self._leftovers_until and self._job_processes():
            return False
        if self._failure is not None:
            return True
        return self._all_nodes_done()

    def _all_nodes_done(self) -> bool:
        """Node 0 ends when all have said done; the others when node 0 answers."""
        if not self._said_done and (
            self._job.node_rank != 0 or all(peer.done for peer in self._peers)
        ):
            self._said_done = True
            for peer in self._peers:
                peer.send({"done": self._job.node_rank})
        return self._said_done and all(peer.done for peer in self._peers)

    def _job_processes(self) -> list[int]:
        leaders = [process.pid for process in self._ranks]
        return sweep.job_processes(self._meeting.session, self._job.node_rank, leaders)

    def _end_leftovers(self, timeout_s: float) -> None:
        leaders = [process.pid for process in self._ranks]
        sweep.end_job(self._meeting.session, self._job.node_rank, leaders, timeout_s=timeout_s)
        for process in self._ranks:
            process.poll()
            for fd in list(process.pipes):
                self._read(process, fd)
            self._log.end(process.rank)
        self._log.release()

    def _say_end(self) -> None:
        for process in self._ranks:
            if process.code is None:
                self._log.say(f"atb-dist: rank {process.rank} (pid {process.pid}) does not end; "
                              "SIGKILL waits for the kernel, a device driver perhaps")  # fmt: skip
        if self._failure is not None:
            others = self._job.size - 1
            rest = (
                f"; stopped the other {others} ranks" if others > 1 else "; stopped the other rank"
            )
            rest = rest if others and self._failure.rank >= 0 else ""
            self._log.say(f"atb-dist: error: {self._failure.text}{rest}")
        self._log.flush(stall_s=2.0 if self._failure else 10.0)
