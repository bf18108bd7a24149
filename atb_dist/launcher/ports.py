"""TCP ports of a job: taking them without races, and naming who holds one."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path


def reserve_port() -> socket.socket:
    """Take a free TCP port; keep the socket open for as long as the number is to stay ours.

    The socket never listens and allows address reuse, so rank 0's store can still bind the port,
    while the kernel hands it to nobody who asks for any free one.
    """
    dual = socket.has_dualstack_ipv6()
    holder = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if dual:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    holder.bind(("", 0))
    return holder


def is_free(port: int) -> bool:
    """Whether a server that allows address reuse could listen at this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def claim(port: int, held: ExitStack) -> bool:
    """Keep other launchers off a port until held closes; says nothing to other programs."""
    name = held.enter_context(socket.socket(socket.AF_UNIX))
    try:
        name.bind(f"\0atb_dist-port-{port}")
    except OSError:
        return False
    return True


def port_owner(port: int) -> str:
    """Name the process that holds a TCP port, as far as this user may know."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended, or another user's
            if any(_target(link) in wanted for link in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return "another process"


def _target(link: Path) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115  (Path.readlink would normalise it)
    except OSError:  # closed meanwhile
        return ""


def _inodes(port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                found.add(fields[9])
    return found
