"""Which CPUs each rank of this host runs on, and with how many threads."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

BINDINGS = ("cores", "numa", "none")
_SYS = Path("/sys/devices/system")


def place(
    bind: str, local_size: int, cpus: Sequence[int], nodes: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Give each local rank its CPUs.

    cpus    allowed CPUs, those of one core and one socket side by side
    nodes   allowed CPUs by NUMA node; used by "numa" only

    "cores" deals out neighbouring CPUs, "numa" whole nodes; with more ranks than CPUs (nodes),
    neighbouring ranks share one. "none" gives every rank all of them.
    """
    if bind == "none":
        return [tuple(sorted(cpus))] * local_size
    units = [[cpu] for cpu in cpus] if bind == "cores" else [list(n) for n in nodes if n]
    placed = []
    for rank in range(local_size):
        first = rank * len(units) // local_size
        last = max(first + 1, (rank + 1) * len(units) // local_size)
        placed.append(tuple(sorted(cpu for unit in units[first:last] for cpu in unit)))
    return placed


def allowed_cpus() -> list[int]:
    """CPUs this process may use, hyper-threads of a core and cores of a socket side by side."""

    def topology(cpu: int) -> tuple[int, int, int]:
        place = _SYS / f"cpu/cpu{cpu}/topology"
        return _number(place / "physical_package_id"), _number(place / "core_id"), cpu

    return sorted(os.sched_getaffinity(0), key=topology)


def numa_nodes(cpus: Sequence[int]) -> list[list[int]]:
    """Split cpus by NUMA node; one node where the kernel shows none."""
    nodes = []
    for path in sorted(_SYS.glob("node/node[0-9]*"), key=lambda p: int(p.name[4:])):
        held = set(parse_cpus((path / "cpulist").read_text()))
        nodes.append([cpu for cpu in cpus if cpu in held])
    return [node for node in nodes if node] or [list(cpus)]


def threads_per_rank(cpus: int, local_size: int, cpu_max: str) -> int:
    """Threads for each rank: its share of the CPUs, or of the cgroup's CPU time if that is less.

    cpu_max is the text of the cgroup v2 file cpu.max, "QUOTA PERIOD" or "max PERIOD".
    """
    words = cpu_max.split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
        cpus = min(cpus, max(1, math.ceil(int(words[0]) / int(words[1]))))
    return max(1, cpus // local_size)


def cgroup_cpu_max() -> str:
    """Text of this cgroup's cpu.max; empty where there is none."""
    try:
        return Path("/sys/fs/cgroup/cpu.max").read_text()
    except OSError:
        return ""


def parse_cpus(text: str) -> list[int]:
    """Read the kernel's list form: "0-2,5" → [0, 1, 2, 5]."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def show_cpus(cpus: Sequence[int]) -> str:
    """Write the kernel's list form: [0, 1, 2, 5] → "0-2,5"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
