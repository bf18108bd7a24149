"""What became of each rank of a run, and what that makes of the run."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from atb_dist.errors import AtbDistError
from atb_dist.testing.faults import Faults, Killed

_OUTPUT_CHARS = 20_000


class RankFailure(AtbDistError):
    """A rank died, hung, skipped alone, or failed with what can't be raised here again."""


@dataclass
class Outcome:
    """What became of one rank.

    kind      "returned", "raised", "skipped", "xfailed": told by the rank itself;
              "died", "hung" (at the deadline), "stopped" (not done some time after the first
              failure): seen from outside; "killed": died as `Faults` planned
    when_s    on the host's monotonic clock
    payload   pickled result or exception
    text      the reason, or the exception in one line
    details   traceback, or the stacks of all its threads
    calls     communicator calls made, where `Faults` counted them
    signal    what ended a rank that died, or 0
    """

    rank: int
    kind: str
    when_s: float
    payload: bytes = b""
    text: str = ""
    details: str = ""
    calls: int = 0
    pid: int = 0
    signal: int = 0
    stdout: str = ""
    stderr: str = ""

    @property
    def is_whole(self) -> bool:
        """True when the rank came to the end of its body, or chose not to."""
        return self.kind in ("returned", "skipped", "xfailed")

    @property
    def name(self) -> str:
        """How reports call this rank."""
        return f"rank {self.rank} (pid {self.pid})"

    @property
    def headline(self) -> str:
        """What happened, in one line."""
        if self.kind == "raised":
            return f"{self.name}: {self.text}"
        return (
            f"{self.name} {self.kind}: {self.text}" if self.is_whole else f"{self.name} {self.text}"
        )


class Run:
    """The outcomes of all ranks of one `ranks.run`."""

    def __init__(self, outcomes: Sequence[Outcome], faults: Faults = Faults()):  # noqa: B008
        self.outcomes = outcomes
        self.headline = ""
        for outcome in outcomes:
            if outcome.rank == faults.kill_rank:
                _expect_death(outcome, faults)
        _date_deaths(outcomes)
        self.events = sorted(
            (o for o in outcomes if o.kind not in ("returned", "killed")), key=lambda o: o.when_s
        )

    def results(self) -> list[Any]:
        """Return what the ranks returned, or raise what the run comes to.

        The first rank by time that did anything but return decides. All skipped: skip; all
        xfailed: xfail. What is raised for a failure carries this object as `rank_run`.
        """
        import pytest

        __tracebackhide__ = True
        if not self.events:
            return [self._value(outcome) for outcome in self.outcomes]
        first = self.events[0]
        if first.is_whole and {o.kind for o in self.outcomes} <= {first.kind, "killed"}:
            reason = "; ".join(dict.fromkeys(o.text for o in self.events))
            (pytest.skip if first.kind == "skipped" else pytest.xfail)(reason)
        if first.is_whole:
            told = ", ".join(f"rank {o.rank} {_brief(o)}" for o in self.outcomes)
            self._fail(RankFailure(f"ranks disagree on whether to run this test: {told}"))
        error = _load(first.payload) if first.kind == "raised" else None
        if isinstance(error, BaseException):
            # No note: pytest.raises matches notes too, which would break a pattern's "$".
            error.__cause__ = RankFailure(f"{first.headline}\n{first.details}")
        else:
            error = RankFailure(first.headline)
        return self._fail(error, first.headline)

    def report(self) -> str:
        """Write a failure down: the first rank in full, then the others in order of time."""
        lines = [self.headline]
        shown: dict[tuple[str, str], str] = {}
        for position, outcome in enumerate(self.events):
            if position or outcome.headline != self.headline:
                after_s = outcome.when_s - self.events[0].when_s
                late = f"{after_s:.2f} s later: " if outcome.kind == "raised" and position else ""
                lines += ["", late + outcome.headline]
            same = shown.setdefault((outcome.text, outcome.details), outcome.name)
            if outcome.details and same != outcome.name:
                lines += [f"(as {same} above)"]
            else:
                lines += outcome.details.rstrip().splitlines()
        return "\n".join(lines)

    def _value(self, outcome: Outcome) -> Any:
        if outcome.kind == "killed":
            return Killed(outcome.rank, outcome.signal)
        try:
            return pickle.loads(outcome.payload)
        except Exception as error:
            self._fail(RankFailure(f"{outcome.name}: its result can't be unpickled: {error!r}"))

    def _fail(self, error: BaseException, headline: str = "") -> NoReturn:
        __tracebackhide__ = True
        self.headline = headline or str(error)
        error.rank_run = self  # type: ignore[attr-defined]
        raise error


def _expect_death(outcome: Outcome, faults: Faults) -> None:
    if outcome.kind == "died" and faults.is_planned(outcome.rank, outcome.signal):
        outcome.kind = "killed"
    elif outcome.kind == "returned":
        after = f"{faults.kill_after_s} s"
        moment = (
            f"after {after}" if faults.kill_at_call is None else f"at call {faults.kill_at_call}"
        )
        outcome.kind, outcome.payload = "raised", b""
        outcome.text = f"was to be killed {moment}, but returned after {outcome.calls} calls"


def _date_deaths(outcomes: Sequence[Outcome]) -> None:
    """Let no death come after the news of it: a peer may notice before pytest does."""
    news = [o.when_s for o in outcomes if o.kind == "raised" and o.text.startswith("PeerFailure")]
    for outcome in outcomes:
        if outcome.kind == "died" and news:
            outcome.when_s = min(outcome.when_s, min(news) - 1e-6)


def _load(payload: bytes) -> object:
    try:
        return pickle.loads(payload)
    except Exception:  # an exception class may refuse its own arguments; its text is shown instead
        return None


def _brief(outcome: Outcome) -> str:
    reason = f" ({outcome.text})" if outcome.text and outcome.kind != "stopped" else ""
    return ("was still running" if outcome.kind in ("hung", "stopped") else outcome.kind) + reason


def clip(text: str) -> str:
    """Keep the end of a long output, and say how much went."""
    if len(text) <= _OUTPUT_CHARS:
        return text
    return f"[{len(text) - _OUTPUT_CHARS} characters left out]\n{text[-_OUTPUT_CHARS:]}"


def ending(status: int) -> str:
    """Say in words how a process ended. status: as os.waitpid gives it."""
    code = status >> 8
    number = status & 0x7F
    if not number:
        return f"exited with code {code} without a result"
    known = number in signal.valid_signals()
    return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"
