"""The process that imports torch once and forks a rank process whenever pytest asks for one.

Started by `RankPool`, which leaves one end of a socket pair open in it. Over the socket come
requests to fork, with the new rank's four file descriptors, and go pids and exit statuses. The
process has one thread and makes no torch call, so its forks are sound. It ends, with every rank,
when the socket closes or its parent dies; a rank also dies with this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
from typing import NoReturn

from atb_dist.testing.wire import Frames

_PRELOAD = (
    "torch",
    "torch.distributed",
    "pytest",
    "atb_dist.comm",
    "atb_dist.comm.lcal",
    "atb_dist.comm.local",
    "atb_dist.comm.torch_dist",
    "atb_dist.testing.rank_worker",
)
_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_S = 1.0
NUM_DESCRIPTORS = 4
_libc = ctypes.CDLL(None)
_ranks: set[int] = set()


def main(fd: int) -> None:
    """Serve the socket fd until the session ends."""
    connection = socket.socket(fileno=fd)
    parent = os.getppid()
    for name in _PRELOAD:
        with contextlib.suppress(ModuleNotFoundError):  # parts of the package may be absent
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # collections in a rank leave these pages shared
    frames = Frames(connection)
    frames.send(("ready", os.getpid()))
    with contextlib.suppress(OSError):  # pytest left between two messages
        _serve(frames, parent)
    for pid in _ranks:
        _end_group(pid)


def _serve(frames: Frames, parent: int) -> None:
    connection = frames.connection.fileno()
    wake, wake_in = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_in, False)
    signal.set_wakeup_fd(wake_in)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while os.getppid() == parent:
        ready, _, _ = select.select([connection, wake], [], [], _PARENT_CHECK_S)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        _reap(frames)
        if connection in ready:
            data, descriptors, _, _ = socket.recv_fds(frames.connection, 1, NUM_DESCRIPTORS)
            if not data:
                return
            _fork(frames, descriptors, (wake, wake_in))


def _fork(frames: Frames, descriptors: list[int], wake: tuple[int, int]) -> None:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in wake:
            os.close(fd)
        frames.close()
        _become_rank(server, descriptors)
    _ranks.add(pid)
    for fd in descriptors:
        os.close(fd)
    frames.send(("forked", pid))


def _become_rank(server: int, descriptors: list[int]) -> NoReturn:
    """Turn this fork into a rank; never come back to the server's loop."""
    code = 1
    try:
        os.setsid()  # a group of its own: what a body starts can be ended with it
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == server:
            from atb_dist.testing.rank_worker import serve

            connection, *outputs = descriptors
            serve(socket.socket(fileno=connection), *outputs)
            code = 0
    finally:
        os._exit(code)


def _reap(frames: Frames) -> None:
    while _ranks:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        pid = ended.si_pid
        _end_group(pid)  # while it is unreaped nobody else can have the number
        _ranks.discard(pid)
        frames.send(("ended", pid, os.waitpid(pid, 0)[1]))


def _end_group(pid: int) -> None:
    """Kill a rank and what it started."""
    for kill in (os.killpg, os.kill):  # a rank just forked has no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
