"""Shared memory inside hosts, gloo or MPI between them: as good as one back end for all ranks."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bodies
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atb_dist.comm import RankInfo
from atb_dist.comm.base import Communicator
from atb_dist.comm.hierarchical import join
from atb_dist.comm.host import VARIABLE
from atb_dist.comm.tree import combine_in_tree, follows_tree
from atb_dist.errors import PeerFailure
from atb_dist.testing import Faults, Killed

HERE = Path(__file__).parent
LIMIT_S = 30.0

# Which host each rank is on: one rank alone, equal and unequal hosts, ranks dealt out in turn.
TOLD = {
    "aa": "lcal True", "ab": "gloo False",
    "aab": "lcal+gloo False", "abb": "lcal+gloo True", "aba": "lcal+gloo False",
    "aabb": "lcal+gloo True", "aaab": "lcal+gloo False", "abab": "lcal+gloo False",
    "aaaabbbb": "lcal+gloo True", "aabbccdd": "lcal+gloo True",
}  # fmt: skip
LAYOUTS = {n: [layout for layout in TOLD if len(layout) == n] for n in (2, 3, 4, 8)}


def over(outer: Communicator, layout: str, session: str, limit_s: float = LIMIT_S) -> Communicator:
    rank = RankInfo(outer.rank, outer.size, 0, 1, outer.rank, outer.size, session, "none")
    return join(outer, rank, timeout_s=limit_s, host=layout[outer.rank])


def run_body(outer: Communicator, layout: str, name: str) -> str:
    comm = over(outer.split(0), layout, f"test-hosts-{os.getppid()}")
    getattr(bodies, name)(comm)
    told = f"{comm.name} {comm.deterministic}"
    comm.close()
    return told


@pytest.mark.ranks(2, 3, 4, 8)
@pytest.mark.parametrize("body", bodies.BODIES, ids=lambda b: b.__name__)
def test_every_verb_over_hosts(ranks: Any, body: Any) -> None:
    for layout in LAYOUTS[ranks.size]:
        told = ranks.run(run_body, layout, body.__name__, backend="gloo", timeout_s=120)
        assert set(told) == {TOLD[layout]}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_hosts_that_follow_the_tree_add_like_it(sizes: list[int]) -> None:
    borders = [0]
    for size in sizes:
        borders.append(borders[-1] + size)
    values = [torch.randn(64) * 10.0 ** (i % 7) for i in range(borders[-1])]
    groups = [combine_in_tree(values[a:b]) for a, b in itertools.pairwise(borders)]
    same = torch.equal(combine_in_tree(groups), combine_in_tree(values))
    assert same or not follows_tree(borders)


def until_failure(outer: Communicator, layout: str) -> tuple[str, float]:
    comm = over(outer, layout, f"test-deaths-{os.getppid()}")
    last = time.monotonic()
    try:
        for i in range(1_000_000):
            comm.all_reduce(torch.ones([1, 5000, 200_000][i % 3]))
            comm.broadcast_object(i)
            last = time.monotonic()
    except PeerFailure as error:
        said, took = str(error), time.monotonic() - last
        comm.close()
        return said, took
    return "", 0.0


@pytest.mark.ranks(4)
def test_a_death_on_any_host_ends_all(ranks: Any) -> None:
    for victim in range(4):
        faults = Faults(kill_rank=victim, kill_after_s=0.3)
        results = ranks.run(
            until_failure, "aabb", backend="gloo", faults=faults, comm_timeout_s=LIMIT_S
        )
        assert isinstance(results[victim], Killed)
        for rank in {0, 1, 2, 3} - {victim}:
            said, took = results[rank]
            assert f"rank {victim} (pid" in said, said
            assert took < LIMIT_S / 3, "that is not noticing, that is waiting"


def test_mpi_between_hosts() -> None:
    mpiexec = Path(sys.executable).parent / "mpiexec"
    command = [str(mpiexec)]
    for host in "ab":
        command += ["-n", "2", "-env", VARIABLE, host, sys.executable, str(HERE / "run_bodies.py"),
                    "lcal+mpi", ":"]  # fmt: skip
    run = subprocess.run(command[:-1], capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 bodies passed over 4 ranks of lcal+mpi" in run.stdout


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces joined by a veth pair: two hosts, as far as sockets can tell."""
    names = [f"atbd{os.getpid()}{end}" for end in "ab"]
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and the command ip (Debian: iproute2)")

    def ip(*words: str) -> bool:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        return done.returncode == 0

    if not all(ip("netns", "add", name) for name in names):
        pytest.skip("network namespaces are not allowed here")
    try:
        assert ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name",
                  names[1], "netns", names[1])  # fmt: skip
        for i, name in enumerate(names):
            assert ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", name)
            assert ip("-n", name, "link", "set", name, "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.mark.parametrize("local", [1, 2])
def test_two_network_namespaces(namespaces: list[str], local: int) -> None:
    jobs = []
    for i, name in enumerate(namespaces):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "atb_dist", "launch",
                   "-n", str(local), "--nodes", "2", "--node-rank", str(i),
                   "--rendezvous", "10.77.0.1:29511", "--",
                   sys.executable, str(HERE / "run_bodies.py"), "auto"]  # fmt: skip
        jobs.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    outputs = [job.communicate(timeout=150) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    kind = "lcal+gloo" if local > 1 else "gloo"
    assert f"5 bodies passed over {2 * local} ranks of {kind}" in outputs[0][0]
