"""Starting the command line as users do, and looking at what is left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
ATB_DIST = [sys.executable, "-m", "atb_dist"]
BARD = Path(__file__).parents[2] / "examples" / "models" / "bard"
LAUNCHERS = {
    "atb-dist": lambda n: [*ATB_DIST, "launch", "--quiet", "-n", str(n), "--"],
    "torchrun": lambda n: [str(BIN / "torchrun"), "--nproc-per-node", str(n), "--no-python"],
    "mpiexec": lambda n: [str(BIN / "mpiexec"), "-n", str(n)],
}


def run(*command: str, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def generate(*flags: str, prefix: list[str] | None = None) -> dict[str, Any]:
    done = run(*(prefix or []), *ATB_DIST, "generate", "--model", str(BARD), "--json", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def descendants(pid: int) -> set[int]:
    """The process and all below it."""
    found = {pid}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in found:
                    found |= descendants(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_gone(pids: set[int], limit_s: float) -> set[int]:
    """Return those that still live after the limit."""
    end = time.monotonic() + limit_s
    while (left := {pid for pid in pids if is_alive(pid)}) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def ranks_of(pids: set[int]) -> dict[int, int]:
    """Rank → pid, by the RANK in each process's environment; launchers have none."""
    found = {}
    for pid in sorted(pids):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            for item in environment:
                if item.startswith((b"RANK=", b"PMI_RANK=")) and item.partition(b"=")[2]:
                    found[int(item.partition(b"=")[2])] = pid
    return found


def left_behind() -> set[str]:
    """Names in the places where shared memory and scratch files live."""
    places = [Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp"))]
    return {str(p) for place in places for p in place.glob("*atb_dist*")}
