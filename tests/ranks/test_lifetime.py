"""Nothing outlives a test session, however it ends, and forks are made from one thread."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atb_dist.comm.rank import RankInfo
from atb_dist.testing import Ranks

SUITE = """
import os, subprocess, time
from pathlib import Path
import pytest

def stay(info, directory):
    child = subprocess.Popen(["sleep", "1000"])
    partial = Path(directory, f"partial.{info.rank}")
    partial.write_text(f"{os.getpid()} {os.getppid()} {child.pid}")
    partial.rename(Path(directory, f"pids.{info.rank}"))
    time.sleep(1000 if ENDLESS else 0)

@pytest.mark.ranks(3)
def test_stay(ranks, tmp_path):
    ranks.run(stay, os.getcwd(), backend="none")
    time.sleep(1000)
"""


def threads_of_server(info: RankInfo) -> int:
    return len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))


@pytest.mark.ranks(1)
def test_forks_are_made_from_one_thread(ranks: Ranks) -> None:
    assert ranks.run(threads_of_server, backend="none") == [1]


@contextlib.contextmanager
def running_session(directory: Path, *, endless: bool) -> Iterator[subprocess.Popen[bytes]]:
    (directory / "test_inner.py").write_text(SUITE.replace("ENDLESS", str(endless)))
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=directory,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("end", "endless"),
    [
        (signal.SIGKILL, True),
        (signal.SIGKILL, False),
        (signal.SIGINT, True),
    ],
)
def test_all_processes_end_with_the_session(tmp_path: Path, end: int, endless: bool) -> None:
    files = [tmp_path / f"pids.{rank}" for rank in range(3)]
    with running_session(tmp_path, endless=endless) as process:
        give_up = time.monotonic() + 60
        while not all(file.exists() for file in files):
            assert process.poll() is None
            assert time.monotonic() < give_up, "the session did not start"
            time.sleep(0.05)
        pids = {int(pid) for file in files for pid in file.read_text().split()}
        assert len(pids) == 7  # three ranks, what each started, and the server
        process.send_signal(end)
        process.wait(10)
        give_up = time.monotonic() + 3
        while left := [pid for pid in pids if is_running(pid)]:
            assert time.monotonic() < give_up, f"still running: {left}"
            time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
