"""`bench all-reduce`: lcal beside gloo and MPI, in alternating rounds of one run."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atb_dist.errors import AtbDistError, ConfigError

DEADLINE_S = 300.0  # of one back end in one round
PEERS = ("gloo", "mpi")
FLOORS = ("copy", "add")


@dataclass(frozen=True)
class AllReduceBench:
    """sizes in bytes; in_situ streams weights between calls, as a model does.

    rewrite: each rank writes its tensor before each call. Without, as is usual in benchmarks, a
    tensor that stays in the segment hardly moves between caches.
    """

    ranks: int = 2
    sizes: tuple[int, ...] = tuple(1024 * 4**i for i in range(9))
    dtype: str = "float32"
    peers: tuple[str, ...] = PEERS
    rounds: int = 3
    seconds: float = 0.3
    in_situ: bool = False
    rewrite: bool = False


def run(bench: AllReduceBench) -> dict[str, Any]:
    """Measure; return {"meet_us": ..., "rows": {size: {back end: {median_us, best_us, right}}}}.

    meet_us: one phase of lcal, in which every rank sees that every other has come.

    Raises AtbDistError when a back end fails, ConfigError when MPI is asked for and absent.
    """
    names = ["lcal", "lcal-empty", *bench.peers, *FLOORS]
    rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(bench.rounds):
        for name in names:
            rounds[name].append(_one_round(bench, name))
    rows = {
        size: {name: _middle([r[str(size)] for r in rounds[name]]) for name in names}
        for size in bench.sizes
    }
    meet_us = statistics.median(r["meet_us"] for r in rounds["lcal"])
    return {"bench": asdict(bench), "meet_us": meet_us, "rows": rows}


def _middle(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "median_us": statistics.median(r["median_us"] for r in results),
        "best_us": min(r["best_us"] for r in results),
        "right": all(r["right"] for r in results),
    }


def _one_round(bench: AllReduceBench, backend: str) -> dict[str, Any]:
    command = _starter(bench.ranks, backend)
    command += [sys.executable, "-m", "atb_dist.bench.all_reduce_rank", "--backend", backend]
    command += ["--sizes", ",".join(map(str, bench.sizes)), "--dtype", bench.dtype]
    command += ["--seconds", str(bench.seconds)] + ["--in-situ"] * bench.in_situ
    command += ["--rewrite"] * bench.rewrite
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        raise AtbDistError(f"{backend} ended with code {done.returncode}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _starter(ranks: int, backend: str) -> list[str]:
    if backend != "mpi":
        return [sys.executable, "-m", "atb_dist", "launch", "-n", str(ranks), "--"]
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise ConfigError("no mpiexec was found; pip install mpich, or use --vs gloo")
    return [mpiexec, "-n", str(ranks)]


def table(result: dict[str, Any]) -> str:
    """Return the result of `run` as text."""
    bench = result["bench"]
    names = list(next(iter(result["rows"].values())))
    where = "between streamed matmuls" if bench["in_situ"] else "back to back"
    if bench["rewrite"]:
        where += ", each tensor written before"
    lines = [
        f"all-reduce of {bench['dtype']} over {bench['ranks']} ranks, {where}, slowest rank, µs: "
        f"median of {bench['rounds']} alternating rounds [best]",
        f"floors: the ranks meet in {result['meet_us']:.2f} µs; copy is b = a and add is a += b of "
        "that size by every rank, without peers",
        f"{'bytes':>10} " + " ".join(f"{name:>22}" for name in names) + "  best peer / lcal",
    ]
    for size, row in result["rows"].items():
        cells = (
            "{:.2f} [{:.2f}]{}".format(c["median_us"], c["best_us"], "" if c["right"] else " WRONG")
            for c in (row[name] for name in names)
        )
        peers = [row[name]["median_us"] for name in bench["peers"]]
        ratio = f"{min(peers) / row['lcal']['median_us']:.2f}" if peers else "-"
        lines.append(f"{size:>10} " + " ".join(f"{cell:>22}" for cell in cells) + f"  {ratio:>8}")
    return "\n".join(lines)
