"""`atb-dist info`: what this host offers and which implementation would serve each operator."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atb_dist import __version__

HELP = "show devices, back ends, SIMD level, limits, and what serves each operator"
NODES = Path("/sys/devices/system/node")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Print the report; missing optional parts are named with the package that brings them."""
    report = collect()
    if args.json:
        print(json.dumps(report))
        return 0
    for section, lines in report.items():
        print(section)
        width = max(map(len, lines))
        for name, value in lines.items():
            print(f"  {name:{width}}  {value}")
    return 0


def collect() -> dict[str, dict[str, str]]:
    """Return the report as section → name → text."""
    return {
        "versions": _versions(),
        "host": _host(),
        "devices": _devices(),
        "back ends": {name: _attempt(probe) for name, probe in BACK_ENDS.items()},
        "lcal": _lcal_choices(),
        "operators": _operators(),
    }


def _versions() -> dict[str, str]:
    import torch

    return {
        "atb_dist": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()} {platform.system()} {platform.release()}",
    }


def _host() -> dict[str, str]:
    from atb_dist import _kernels
    from atb_dist.device import Device

    allowed = sorted(os.sched_getaffinity(0))
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    memlock = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:.0f} MiB"
    nodes = sorted(p.name for p in NODES.glob("node[0-9]*")) or ["node0"]
    return {
        "CPUs allowed": f"{len(allowed)} of {os.cpu_count()}",
        "NUMA nodes": str(len(nodes)),
        "SIMD level": _kernels.simd_level(),
        "memory free": f"{Device('cpu').free_memory() / 2**30:.1f} GiB",
        "/dev/shm": f"{_shm()} (lcal does not use it: its segment is a memfd)",
        "memlock limit": f"{memlock} (lcal needs none)",
    }


def _shm() -> str:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return f"absent: {error.strerror}"
    return f"{usage.free / 2**20:.0f} of {usage.total / 2**20:.0f} MiB free"


def _devices() -> dict[str, str]:
    from atb_dist.device import backend_module, count_devices
    from atb_dist.errors import ConfigError

    found = {"cpu": "1 (this host)"}
    for kind in ("npu", "cuda"):
        try:
            backend_module(kind)
            found[kind] = f"{count_devices(kind)} visible"
        except ConfigError as error:
            found[kind] = f"0: {error}"
    return found


def _attempt(probe: Callable[[], Any]) -> str:
    """Say "ready", or why not; probing a broken optional package may raise anything."""
    try:
        missing = probe()
    except Exception as error:
        return f"not usable: {' '.join(str(error).split())}"
    return missing or "ready"


def _lcal() -> str | None:
    importlib.import_module("atb_dist._lcal")
    return None


def _gloo() -> str | None:
    from torch import distributed

    return None if distributed.is_gloo_available() else "this torch was built without gloo"


def _mpi() -> str | None:
    if importlib.util.find_spec("mpi4py") is None:
        return "needs mpi4py: pip install 'atb_dist[mpi]'"
    from mpi4py import MPI

    return f"ready ({MPI.Get_library_version().split(',')[0].splitlines()[0].strip()})"


def _hccl() -> str | None:
    from atb_dist.device import backend_module

    backend_module("npu")
    return None


def _nccl() -> str | None:
    from torch import distributed

    return None if distributed.is_nccl_available() else "this torch was built without NCCL"


BACK_ENDS: dict[str, Callable[[], str | None]] = {
    "local": lambda: None,
    "lcal": _lcal,
    "gloo": _gloo,
    "mpi": _mpi,
    "hccl": _hccl,
    "nccl": _nccl,
}


def _lcal_choices() -> dict[str, str]:
    """Say where all-reduces change their algorithm, as far as that has been measured here."""
    from atb_dist.comm import tuning

    told = tuning.override()
    if told is not None:
        return {f"{tuning.VARIABLE} says": _choice_text(told)}
    measured = {
        name: _choice_text(tuning.Choice(**each)) for name, each in tuning.everything().items()
    }
    return measured or {"not measured yet": "the first run over several ranks does, in 50 ms"}


def _choice_text(choice: Any) -> str:
    one_shot, piece = choice.one_shot_bytes >> 10, choice.piece_bytes >> 10
    return f"one shot up to {one_shot} KiB, then pieces of {piece} KiB"


def _operators() -> dict[str, str]:
    from atb_dist import ops

    return {row.op: ", ".join(row.implementations) for row in ops.table()}
