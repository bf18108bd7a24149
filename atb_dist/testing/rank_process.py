"""The rank server and a rank process as pytest sees them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from atb_dist.comm.rank import without_launcher
from atb_dist.errors import AtbDistError
from atb_dist.testing.outcomes import clip
from atb_dist.testing.wire import Frames

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from atb_dist.testing.rank_server import main; main(int(sys.argv[1]))"
)
_START_LIMIT_S = 180.0  # importing torch on a crowded host
_FORK_LIMIT_S = 30.0
_CLOSE_LIMIT_S = 5.0


class RankProcess:
    """One rank process. Its outputs go to files in memory, which nobody has to clean up."""

    def __init__(self, pid: int, frames: Frames, outputs: Sequence[int]):
        self.pid = pid
        self.frames = frames
        self._outputs = dict(zip(("stdout", "stderr", "stacks"), outputs, strict=True))

    def take_output(self, name: str) -> str:
        """Return what came on "stdout", "stderr" or "stacks", and forget it."""
        fd = self._outputs[name]
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        os.ftruncate(fd, 0)
        return clip(data.decode(errors="replace"))

    def output_size(self, name: str) -> int:
        """Return how many bytes have come."""
        return os.fstat(self._outputs[name]).st_size

    def close(self) -> None:
        """Let go of it; an idle rank ends when its socket closes."""
        self.frames.close()
        for fd in self._outputs.values():
            os.close(fd)
        self._outputs = {}


class RankServer:
    """The process that forks ranks; see rank_server.py. Closing it ends every rank.

    statuses   pid → wait status of ranks that have ended
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.frames = Frames(ours)
        self.statuses: dict[int, int] = {}
        self._log = _memory_file("log")
        self._owner = os.getpid()
        paths = [path or str(Path.cwd()) for path in sys.path]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(paths)],
                env={**without_launcher(os.environ), **ONE_THREAD},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C reaches pytest, which then ends us
            )
        self._wait_for("ready", _START_LIMIT_S)

    @property
    def is_alive(self) -> bool:
        """True while it can fork."""
        return not self.frames.closed and self._process.poll() is None

    def fork(self) -> RankProcess:
        """Start one more rank process."""
        ours, theirs = socket.socketpair()
        outputs = [_memory_file(name) for name in ("stdout", "stderr", "stacks")]
        with theirs:
            socket.send_fds(self.frames.connection, [b"f"], [theirs.fileno(), *outputs])
        pid = self._wait_for("forked", _FORK_LIMIT_S)
        return RankProcess(pid, Frames(ours), outputs)

    def kill(self, process: RankProcess, number: int = signal.SIGKILL) -> None:
        """Signal a rank that has not been reported as ended."""
        if process.pid not in self.statuses:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def pull(self, wait_s: float = 0.0) -> int:
        """Take in the server's messages; return the pid that came with "ready" or "forked"."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.frames, selectors.EVENT_READ)
            if self.frames.closed or not selector.select(wait_s):
                return 0
        answer = 0
        for kind, pid, *status in self.frames.pull():
            if kind == "ended":
                self.statuses[pid] = status[0]
            else:
                self.statuses.pop(pid, None)  # the number of an earlier rank
                answer = pid
        return answer

    def close(self) -> None:
        """End the server and thereby all ranks, within seconds."""
        if os.getpid() != self._owner or self._log < 0:  # a fork of pytest has no say
            return
        self.frames.close()
        try:
            self._process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._log)
        self._log = -1

    def _wait_for(self, what: str, limit_s: float) -> int:
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0 and not self.frames.closed:
            if pid := self.pull(left_s):
                return pid
        reason = "ended" if self.frames.closed else f"was not {what} within {limit_s:g} s"
        log = os.pread(self._log, 1 << 16, 0).decode(errors="replace")
        self.close()
        raise AtbDistError(f"the process that starts test ranks {reason}\n{log}".rstrip())


def _memory_file(name: str) -> int:
    """Make a file whose writers append, so that it can be emptied while they hold it open."""
    fd = os.memfd_create(name)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd
