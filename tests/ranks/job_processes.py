"""What tests of launchers share: a clean environment, the command, and whether a pid runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from atb_dist.comm.rank import without_launcher

BIN = Path(sys.executable).parent
LAUNCH = [
    sys.executable, "-c", "import sys; from atb_dist.cli import main; sys.exit(main())", "launch",
]  # fmt: skip
ENDED_WITHIN_S = 8.0  # promised are 3; the rest is slack for a busy host


def environment() -> dict[str, str]:
    """The caller's environment without what changes a job."""
    env = without_launcher(os.environ)
    for name in ("PYTHONUNBUFFERED", "OMP_NUM_THREADS", "ASCEND_RT_VISIBLE_DEVICES"):
        env.pop(name, None)
    return env


def wait_for(what: str, holds: Callable[[], object], timeout_s: float = 15.0) -> None:
    """Poll until it holds; fail the test when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
