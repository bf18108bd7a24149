"""Injected delays and deaths: the same ones every time, and only where they were planned."""

from __future__ import annotations

import itertools
import re
import signal
import time
from collections.abc import Callable
from unittest import mock

import pytest
import torch

from atb_dist.comm.base import Communicator
from atb_dist.comm.rank import RankInfo
from atb_dist.testing import Faults, Killed, RankFailure, Ranks


def delays_of_calls(comm: Communicator, calls: int) -> list[float]:
    with mock.patch("time.sleep") as sleep:
        for _ in range(calls):
            comm.barrier()
        comm.split(0).all_reduce(torch.ones(1))  # a part counts on
    return [call.args[0] for call in sleep.call_args_list]


def three_calls(comm: Communicator) -> int:
    for _ in range(3):
        comm.barrier()
    return comm.size


def wait(info: RankInfo) -> int:
    if info.rank == 1:
        time.sleep(60)
    return info.rank


def rank(info: RankInfo) -> int:
    return info.rank


@pytest.mark.ranks(1)
def test_delays_follow_from_seed_rank_and_call(ranks: Ranks) -> None:
    faults = Faults(seed=7, delay_ms=2)
    first = ranks.run(delays_of_calls, 3, backend="local", faults=faults)
    assert first == ranks.run(delays_of_calls, 3, backend="local", faults=faults)
    assert first == [list(itertools.islice(faults.delays_s(0), 5))]
    other = ranks.run(delays_of_calls, 3, backend="local", faults=Faults(seed=8, delay_ms=2))
    assert set(other[0]).isdisjoint(first[0])
    assert all(0 <= delay <= 0.002 for delay in first[0] + other[0])


def test_ranks_are_delayed_differently() -> None:
    faults = Faults(seed=7, delay_ms=2)
    assert next(faults.delays_s(0)) != next(faults.delays_s(1))


@pytest.mark.ranks(1)
@pytest.mark.parametrize("call", [0, 1, 3])
def test_kill_at_call(ranks: Ranks, call: int) -> None:
    faults = Faults(kill_rank=0, kill_at_call=call)
    assert ranks.run(three_calls, backend="local", faults=faults) == [Killed(0, signal.SIGKILL)]


@pytest.mark.ranks(1)
def test_a_death_that_never_came_is_a_failure(ranks: Ranks) -> None:
    faults = Faults(kill_rank=0, kill_at_call=4)
    with pytest.raises(RankFailure, match="to be killed at call 4, but returned after 3 calls"):
        ranks.run(three_calls, backend="local", faults=faults)


@pytest.mark.ranks(3)
def test_kill_after_a_time_leaves_the_others_alone(ranks: Ranks) -> None:
    faults = Faults(kill_rank=1, kill_after_s=0.1, kill_signal=signal.SIGTERM)
    results = ranks.run(wait, backend="none", faults=faults)
    assert results == [0, Killed(1, signal.SIGTERM), 2]


@pytest.mark.ranks(2)
def test_killing_a_rank_there_is_not_is_refused(ranks: Ranks) -> None:
    with pytest.raises(ValueError, match=re.escape("kill_rank=2 is not one of 2 ranks")):
        ranks.run(rank, backend="none", faults=Faults(kill_rank=2, kill_at_call=0))


@pytest.mark.parametrize(
    "fields",
    [{"kill_rank": 1}, {"kill_at_call": 1}, {"kill_after_s": 1}, {"delay_ms": -1},
     {"kill_rank": 0, "kill_at_call": 1, "kill_after_s": 1}, {"kill_rank": 0, "kill_at_call": -1}],
)  # fmt: skip
def test_plans_that_cannot_come_true_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="Faults"):
        Faults(**fields)  # type: ignore[arg-type]


def test_the_fixture_has_a_seed_of_its_own(rank_faults: Callable[..., Faults]) -> None:
    assert rank_faults(delay_ms=1) == rank_faults(delay_ms=1)
    assert rank_faults().seed != 0
    assert rank_faults(seed=3).seed == 3
