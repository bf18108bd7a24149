"""What tells hosts apart, and a process from a later one with the same id. No torch."""

from __future__ import annotations

import os
import socket
from pathlib import Path

VARIABLE = "ATB_DIST_HOST"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_identity() -> str:
    """Return what two processes have in common when they can share memory and see each other.

    The boot of the kernel and the network and process namespaces: containers with the same host
    name differ. ATB_DIST_HOST is added, to tell apart what this cannot.
    """
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = socket.gethostname()
    spaces = [_namespace(kind) for kind in ("net", "pid")]
    return "/".join([boot, *spaces, os.environ.get(VARIABLE, "")])


def _namespace(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").stat().st_ino)
    except OSError:
        return ""


def started_at(pid: int) -> str:
    """Return a process's start time; "" when it has ended, even if nobody has reaped it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
