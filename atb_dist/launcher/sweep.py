"""Find and end what a job left running. Run as a file it guards a launcher.

The launcher starts this file by its path, so it must import nothing but the standard library.
Ranks get SIGKILL from the kernel when their launcher dies; this ends what they started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection


def job_processes(session: str, node: int, leaders: Collection[int]) -> list[int]:
    """List live processes of one node's part of a job, those that left its groups included.

    A process belongs to it when its environment carries the session's name and the node, or when
    the kernel's session it is in was opened by one of leaders (pids of ranks, which may have ended
    and been reaped). A pid of an ended rank that the kernel gave to a newcomer is not trusted.
    """
    marks = {f"ATB_DIST_SESSION={session}".encode(), f"GROUP_RANK={node}".encode()}
    opened_by: dict[int, int] = {}
    marked: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208  (pathlib is a slow import for a guard)
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] in (b"Z", b"X"):
                continue
            opened_by[int(name)] = int(fields[3])
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                if marks.issubset(file.read().split(b"\0")):
                    marked.add(int(name))
        except OSError:  # ended meanwhile, or another user's
            continue
    own = {pid for pid in leaders if pid in marked or pid not in opened_by}
    return [pid for pid, leader in opened_by.items() if pid in marked or leader in own]


def end_job(session: str, node: int, leaders: Collection[int], *, timeout_s: float) -> int:
    """Send SIGKILL to those processes until none is left; return how many there were."""
    deadline = time.monotonic() + timeout_s
    ended: set[int] = set()
    while (left := job_processes(session, node, leaders)) and time.monotonic() < deadline:
        for pid in left:
            ended.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return len(ended)


def guard(session: str, node: int) -> None:
    """Read pids of ranks from stdin, one a line; when it ends without "end", end the job."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher decides; it outlives its ranks
    leaders = []
    for line in sys.stdin.buffer:
        if line == b"end\n":
            return
        leaders.append(int(line))
    ended = end_job(session, node, leaders, timeout_s=10)
    os.write(2, b"atb-dist: the launcher died; ended %d processes left of its job\n" % ended)


if __name__ == "__main__":
    guard(sys.argv[1], int(sys.argv[2]))
