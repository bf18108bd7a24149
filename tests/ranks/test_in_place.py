"""One body, several launchers: these run on the pool, and on mpirun's ranks with --with-mpi."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from atb_dist.comm.base import Communicator
from atb_dist.errors import PeerFailure
from atb_dist.testing import Faults, Killed, RankFailure, Ranks

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(2, 4)]


def sum_of_ranks(comm: Communicator) -> torch.Tensor:
    return comm.all_reduce(torch.tensor([comm.rank + 1.0]))


def append_rank(comm: Communicator, numbers: list[int]) -> list[int]:
    numbers.append(comm.rank)
    return numbers


def one_raises_before_a_barrier(comm: Communicator) -> None:
    if comm.rank == 1:
        raise ValueError("no barrier for me")
    comm.barrier()


def all_skip(comm: Communicator) -> None:
    pytest.skip("absent everywhere")


def last_skips(comm: Communicator) -> None:
    if comm.rank == comm.size - 1:
        pytest.skip("absent here")


def test_results_come_by_rank(ranks: Ranks) -> None:
    total = ranks.size * (ranks.size + 1) / 2
    assert torch.equal(torch.cat(ranks.run(sum_of_ranks)), torch.full((ranks.size,), total))


def test_each_rank_has_its_own_arguments(ranks: Ranks) -> None:
    numbers = [7]
    assert ranks.run(append_rank, numbers) == [[7, rank] for rank in range(ranks.size)]
    assert numbers == [7]


def test_delays_do_not_change_results(ranks: Ranks, rank_faults: Callable[..., Faults]) -> None:
    plain = ranks.run(sum_of_ranks)
    assert ranks.run(sum_of_ranks, faults=rank_faults(delay_ms=20)) == plain


def test_one_raises_before_a_barrier(ranks: Ranks) -> None:
    with pytest.raises(ValueError, match=r"^no barrier for me$") as caught:
        ranks.run(one_raises_before_a_barrier)
    run = caught.value.rank_run  # type: ignore[attr-defined]
    assert run.events[0].rank == 1
    assert {event.rank for event in run.events} == set(range(ranks.size))
    assert all("PeerFailure" in event.text for event in run.events[1:])
    assert sum_still_works(ranks)


def test_all_ranks_skip(ranks: Ranks) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"^absent everywhere$"):
        ranks.run(all_skip)


def test_ranks_that_skip_alone_fail(ranks: Ranks) -> None:
    with pytest.raises(RankFailure, match=r"disagree.* skipped \(absent here\)"):
        ranks.run(last_skips)
    assert sum_still_works(ranks)


def sum_still_works(ranks: Ranks) -> bool:
    total = ranks.size * (ranks.size + 1) / 2
    return [result.item() for result in ranks.run(sum_of_ranks)] == [total] * ranks.size


def endless_barriers(comm: Communicator) -> None:
    while True:
        comm.barrier()


def barriers_until_a_death(comm: Communicator) -> None:
    with pytest.raises(PeerFailure, match="rank 1"):
        endless_barriers(comm)


def test_survivors_of_a_planned_death_go_on(ranks: Ranks) -> None:
    results = ranks.run(barriers_until_a_death, faults=Faults(kill_rank=1, kill_at_call=5))
    assert results == [Killed(1, 9) if rank == 1 else None for rank in range(ranks.size)]
