"""Where lcal's all-reduce changes its algorithm, measured once for each machine and rank count."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atb_dist.errors import ConfigError

if TYPE_CHECKING:
    from atb_dist.comm.lcal import LcalComm

VARIABLE = "ATB_DIST_LCAL"  # "one_shot_bytes=65536,piece_bytes=131072"; "default" measures nothing
BUDGET_S = 0.04
ROUNDS = 6  # of a measurement; the first touches memory and does not count
SIZES = tuple(1 << shift for shift in range(14, 19))  # 16 to 256 KiB
PIECES = tuple(1 << shift for shift in range(16, 20))  # 64 to 512 KiB


@dataclass(frozen=True)
class Choice:
    """one_shot_bytes: the largest message of one phase; piece_bytes: of one step of longer ones."""

    one_shot_bytes: int = 32 << 10
    piece_bytes: int = 256 << 10


def tune(comm: LcalComm) -> Choice:
    """Take the choice from ATB_DIST_LCAL, else from the cache, else measure → what is in force.

    Collective; at most 50 ms, once. Rank 0's environment and cache count.

    Raises ConfigError, on every rank alike, when ATB_DIST_LCAL can't be understood.
    """
    known: tuple[Choice | None, str] = (None, "")
    if comm.rank == 0:
        try:
            known = (override() or cached(key(comm.size)), "")
        except ConfigError as error:
            known = (None, str(error))
    choice, refusal = comm.broadcast_object(known)
    if refusal:
        raise ConfigError(refusal)
    if choice is None:
        choice = sweep(comm)
        if comm.rank == 0:
            remember(key(comm.size), choice)
    comm.choose(choice)
    return choice


def override() -> Choice | None:
    """Return what ATB_DIST_LCAL says, if anything.

    Raises ConfigError when that is not understood.
    """
    text = os.environ.get(VARIABLE, "")
    if text in ("", "default"):
        return Choice() if text else None
    values = asdict(Choice())
    for item in text.split(","):
        name, _, number = item.partition("=")
        if name not in values or not number.isascii() or not number.isdigit():
            names = " and ".join(values)
            raise ConfigError(f"{VARIABLE}={text}: {item!r} is not NAME=BYTES; names are {names}")
        values[name] = int(number)
    return Choice(**values)


def sweep(comm: LcalComm) -> Choice:
    """Measure, within the budget, from small messages to large; the same result on every rank."""
    begin = time.perf_counter()
    x = torch.zeros(1 << 18)
    best = Choice()
    one_shot = SIZES[0] // 2
    for size in SIZES:
        two = _seconds(comm, x[: size // 4], Choice(size // 2, best.piece_bytes))
        one = _seconds(comm, x[: size // 4], Choice(size, best.piece_bytes))
        if one > two:
            break
        one_shot = size
        if _spent(comm, begin) > BUDGET_S / 2:
            break
    fastest = float("inf")
    piece = best.piece_bytes
    for size in PIECES:
        if _spent(comm, begin) > BUDGET_S * 0.8:
            break
        took = _seconds(comm, x, Choice(one_shot, size))
        if took < fastest:
            fastest, piece = took, size
    return Choice(one_shot, piece)


def _seconds(comm: LcalComm, x: torch.Tensor, choice: Choice) -> float:
    """Return the median of a few all-reduces on the slowest rank."""
    comm.choose(choice)
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        comm.all_reduce(x)
        times.append(time.perf_counter() - begin)
    return _slowest(comm, statistics.median(times[1:]))


def _spent(comm: LcalComm, begin: float) -> float:
    return _slowest(comm, time.perf_counter() - begin)


def _slowest(comm: LcalComm, seconds: float) -> float:
    return comm.all_reduce(torch.tensor([seconds], dtype=torch.float64), "max").item()


def path() -> Path:
    """Return the file in which choices are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "atb_dist" / "lcal.json"


def key(size: int) -> str:
    """Name what the choice depends on: the CPU, how many of it are allowed, how many ranks."""
    return f"{_cpu_model()}, {len(os.sched_getaffinity(0))} CPUs, {size} ranks"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cached(name: str) -> Choice | None:
    """Return what was measured before; None when there is nothing, or nothing that can be read."""
    try:
        return Choice(**{field: int(value) for field, value in everything()[name].items()})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def everything() -> dict[str, dict[str, int]]:
    """Return all that the cache holds, by key."""
    try:
        found = json.loads(path().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(name: str, choice: Choice) -> None:
    """Keep a choice for later runs. Where that can't be written, they measure again."""
    entries = {**everything(), name: asdict(choice)}
    beside = path().with_suffix(f".{os.getpid()}")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(entries, indent=1))
        beside.replace(path())
    except OSError:
        beside.unlink(missing_ok=True)
