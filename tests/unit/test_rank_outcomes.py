"""What the outcomes of single ranks make of a run."""

from __future__ import annotations

import pickle
import signal

import pytest

from atb_dist.errors import PeerFailure
from atb_dist.testing.faults import Faults, Killed
from atb_dist.testing.outcomes import Outcome, RankFailure, Run, ending


def returned(rank: int, value: object = None) -> Outcome:
    return Outcome(rank, "returned", 9.0, pickle.dumps(value))


def raised(rank: int, when_s: float, error: Exception) -> Outcome:
    text = f"{type(error).__name__}: {error}"
    return Outcome(rank, "raised", when_s, pickle.dumps(error), text, f"trace of {rank}")


def died(rank: int, when_s: float, number: int = signal.SIGKILL) -> Outcome:
    return Outcome(rank, "died", when_s, text=ending(number), signal=number)


def test_results_are_those_of_all_ranks() -> None:
    assert Run([returned(0, 7), returned(1, [8])]).results() == [7, [8]]


def test_first_by_time_is_raised_with_its_type() -> None:
    run = Run([raised(0, 2.0, ValueError("late")), returned(1), raised(2, 1.0, KeyError("early"))])
    with pytest.raises(KeyError, match="early"):
        run.results()
    report = run.report()
    assert report.index("trace of 2") < report.index("1.00 s later: rank 0")


def test_a_death_comes_before_the_news_of_it() -> None:
    run = Run([raised(0, 1.0, PeerFailure("rank 1 died")), died(1, 1.2)])
    with pytest.raises(RankFailure, match=r"^rank 1 \(pid 0\) was killed by SIGKILL$"):
        run.results()


def test_a_death_does_not_come_before_what_went_wrong_earlier() -> None:
    run = Run([raised(0, 0.5, ValueError("root")), raised(1, 1.0, PeerFailure("")), died(2, 1.2)])
    with pytest.raises(ValueError, match="root"):
        run.results()


def test_a_planned_death_is_a_result_and_another_is_not() -> None:
    faults = Faults(kill_rank=1, kill_at_call=1)
    outcomes = [returned(0, 7), died(1, 1.0)]
    assert Run(outcomes, faults).results() == [7, Killed(1, signal.SIGKILL)]
    for other in ([died(0, 1.0), died(1, 1.0)], [returned(0), died(1, 1.0, signal.SIGSEGV)]):
        with pytest.raises(RankFailure):
            Run(other, faults).results()


def test_equal_traces_are_shown_once() -> None:
    outcomes = [raised(rank, rank, ValueError("same")) for rank in range(3)]
    for outcome in outcomes:
        outcome.details = "one trace"
    run = Run(outcomes)
    with pytest.raises(ValueError, match="same"):
        run.results()
    assert run.report().count("one trace") == 1
    assert run.report().count("(as rank 0 (pid 0) above)") == 2


@pytest.mark.parametrize("kind", ["skipped", "xfailed"])
def test_some_that_opt_out_are_a_failure(kind: str) -> None:
    outcomes = [Outcome(0, kind, 1.0, text="why"), raised(1, 1.1, PeerFailure("rank 0 left"))]
    with pytest.raises(RankFailure, match=rf"disagree.*rank 0 {kind} \(why\), rank 1 raised"):
        Run(outcomes).results()


def test_all_that_skip_are_a_skip_with_every_reason() -> None:
    outcomes = [Outcome(rank, "skipped", 1.0, text=why) for rank, why in enumerate("aba")]
    with pytest.raises(pytest.skip.Exception, match=r"^a; b$"):
        Run(outcomes).results()
