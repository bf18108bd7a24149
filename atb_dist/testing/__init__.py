"""Multi-rank tests for pytest. Installing atb_dist is all it takes: pytest finds the plugin.

    import pytest, torch
    from atb_dist.errors import PeerFailure
    from atb_dist.testing import Faults, Killed

    def sum_of_ranks(comm):                      # runs on every rank; at module level
        return comm.all_reduce(torch.tensor([comm.rank])).item()

    @pytest.mark.ranks(2, 4)                     # one test for each size
    def test_sum(ranks):
        assert ranks.run(sum_of_ranks) == [sum(range(ranks.size))] * ranks.size

    def survive(comm):
        with pytest.raises(PeerFailure, match="rank 1"):
            while True:
                comm.barrier()

    @pytest.mark.ranks(3)
    def test_death(ranks):                       # rank 1 gets SIGKILL before its fifth call
        results = ranks.run(survive, faults=Faults(kill_rank=1, kill_at_call=5))
        assert results[1] == Killed(1, 9)

`Ranks.run` describes backends and limits, `Faults` delays and deaths; the fixture `rank_faults`
makes `Faults` with a seed that is the test's own. Ranks are warm processes: imported modules and
global state of an earlier body are still there, unless it failed. Environment, sys.path and
working directory are the test's. Output is shown by rank when a run fails.

With the marker `mpi` as well, `mpiexec -n 4 python -m pytest --with-mpi -m mpi` (pytest-mpi) runs
tests of size 4 on its own ranks; so do other launchers, which need no marker. Without a launcher
such a test runs on the pool.

Public names are loaded on first use: importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Faults": "atb_dist.testing.faults",
    "Killed": "atb_dist.testing.faults",
    "RankFailure": "atb_dist.testing.outcomes",
    "RankPool": "atb_dist.testing.pool",
    "Ranks": "atb_dist.testing.ranks",
}
__all__ = ["Faults", "Killed", "RankFailure", "RankPool", "Ranks"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atb_dist.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
