"""The `ranks` fixture as a test uses it: sizes, results, environment, warm processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from atb_dist.comm.rank import RankInfo
from atb_dist.testing import Ranks


def place(info: RankInfo, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return info.rank, info.size, RankInfo.from_env() == info, args, kwargs


def pid(info: RankInfo) -> int:
    return os.getpid()


def surroundings(info: RankInfo) -> tuple[str | None, str, str | None, list[str]]:
    threads = os.environ.get("OMP_NUM_THREADS")
    return os.environ.get("SOME_SWITCH"), str(Path.cwd()), threads, sys.path


def session(info: RankInfo) -> str:
    return info.session


@pytest.mark.ranks(1, 2, 3, 4, 8, 9)
def test_results_come_by_rank(ranks: Ranks) -> None:
    results = ranks.run(place, 7, backend="none", key="value")
    assert results == [(r, ranks.size, True, (7,), {"key": "value"}) for r in range(ranks.size)]


@pytest.mark.ranks(3)
def test_processes_are_used_again(ranks: Ranks) -> None:
    first = ranks.run(pid, backend="none")
    assert len({*first, os.getpid()}) == 4
    assert ranks.run(pid, backend="none") == first


@pytest.mark.ranks(2)
def test_ranks_see_the_environment_and_directory_of_the_test(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SWITCH", "on")
    here = Path(__file__).parent
    monkeypatch.chdir(here)
    assert ranks.run(surroundings, backend="none") == [("on", str(here), "1", sys.path)] * 2
    monkeypatch.delenv("SOME_SWITCH")
    assert ranks.run(surroundings, backend="none")[0][0] is None


@pytest.mark.ranks(2)
def test_every_run_is_a_job_of_its_own(ranks: Ranks) -> None:
    first, second = ranks.run(session, backend="none"), ranks.run(session, backend="none")
    assert len(set(first)) == len(set(second)) == 1
    assert first != second
