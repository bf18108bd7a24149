"""A rank dies at a random moment of random collectives: the others say so within their deadline."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bodies
import pytest
import torch

from atb_dist.comm.base import Communicator
from atb_dist.errors import PeerFailure
from atb_dist.testing import Faults, Killed

SOAK = bool(os.environ.get("ATB_DIST_SOAK"))
LIMIT_S = 20.0  # of a wait; a death must be noticed long before


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def until_failure(comm: Communicator, seed: int) -> tuple[str, float, int]:
    """Run collectives until one fails; return what it said, how long that took from the last
    that went well, and the descriptors this rank keeps once it has closed.
    """
    before = descriptors()
    shared = random.Random(seed)
    part = comm.split(0)
    last = time.monotonic()
    try:
        while True:
            chosen = shared.choice([comm, part])
            size = shared.choice([1, 100, 5000, 300_000])
            verb = shared.randrange(4)
            if verb == 0:
                chosen.all_reduce(bodies.noise(comm.rank, size, torch.float32))
            elif verb == 1:
                chosen.all_gather(bodies.noise(comm.rank, size, torch.bfloat16))
            elif verb == 2:
                chosen.broadcast_object("x" * size if comm.rank == 0 else None)
            else:
                chosen.barrier()
            last = time.monotonic()
    except PeerFailure as error:
        took = time.monotonic() - last
        comm.close()
        part.close()
        return str(error), took, descriptors() - before


@pytest.mark.ranks(3)
@pytest.mark.parametrize("backend", ["lcal", "gloo"])
def test_survivors_name_the_dead_rank_in_time(ranks: Any, backend: str) -> None:
    chance = random.Random(7)
    slowest = 0.0
    rounds = (300 if SOAK else 12) if backend == "lcal" else (30 if SOAK else 3)
    for seed in range(rounds):
        victim = chance.randrange(3)
        faults = Faults(kill_rank=victim, kill_after_s=chance.uniform(0, 0.2))
        results = ranks.run(
            until_failure, seed, backend=backend, faults=faults, comm_timeout_s=LIMIT_S
        )
        assert isinstance(results[victim], Killed)
        for rank in {0, 1, 2} - {victim}:
            said, took, kept = results[rank]
            assert f"rank {victim} (pid" in said, said
            assert took < LIMIT_S / 4, "that is not noticing, that is waiting"
            slowest = max(slowest, took)
            if backend == "lcal":
                assert kept <= 0, "descriptors stay open"
    print(f"{rounds} deaths over {backend}: noticed within {slowest:.3f} s")


def test_hundreds_of_deaths_and_stops_are_named_and_leave_nothing() -> None:
    counts = ("2000", "300") if SOAK else ("200", "20")
    program = Path(__file__).parent / "death_trials.py"
    done = subprocess.run(
        [sys.executable, str(program), *counts], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    print(report)
    assert report["wrong"] == []
    assert not report["left"], "descriptors or files stay"
    assert report["absences"] < int(counts[0]) / 4, "most victims must die at work"
    assert report["killed_noticed_s"] < 1
    assert report["stopped_noticed_s"] < 2  # the limit of a wait is 0.4 s
