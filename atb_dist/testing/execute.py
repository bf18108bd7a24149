"""Run one rank's body on a connected communicator and put what became of it into an Outcome."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
import traceback
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from atb_dist.comm.rank import RankInfo
from atb_dist.errors import PeerFailure
from atb_dist.testing.faults import FaultPlan, Faults, faulty
from atb_dist.testing.outcomes import Outcome

if TYPE_CHECKING:
    from atb_dist.comm.base import Communicator

_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Terms:
    """How a body is run.

    name             of the run, different from all others in the session, the same on all ranks
    backend          "none": the body gets the RankInfo in place of a communicator
    limit_s          for the whole run
    comm_timeout_s   for a single wait within the communicator
    """

    name: str
    backend: str
    limit_s: float
    comm_timeout_s: float
    faults: Faults


def execute(info: RankInfo, terms: Terms, body: Callable[[Any], Any]) -> Outcome:
    """Call body with this rank's communicator; return what came of it, never raise."""
    plan = FaultPlan(terms.faults, info.rank)
    comm: Communicator | None = None
    try:
        plan.before_connect()
        if terms.backend != "none":
            from atb_dist.comm import connect

            comm = connect(info, terms.backend, timeout_s=terms.comm_timeout_s)
        plan.after_connect()
        value = body(info if comm is None else faulty(comm, plan) if plan.is_active else comm)
        payload = _pickled(value)  # while memory that belongs to the communicator is there
        outcome = Outcome(info.rank, "returned", time.monotonic(), payload)
    except BaseException as error:
        outcome = outcome_of(info.rank, error)
        _tell_peers(comm, error)
    try:
        if comm is not None:
            comm.close()
    except BaseException as error:
        if outcome.kind != "raised":
            outcome = outcome_of(info.rank, error)
    outcome.calls = plan.calls
    return outcome


def _tell_peers(comm: Communicator | None, error: BaseException) -> None:
    """Let peers that wait for this rank know why it won't come.

    Not for a PeerFailure: they have the same news already, and the first reason is the one to
    show. Not for a skip: peers about to skip too may still be on their way out of a collective.
    """
    if comm is not None and isinstance(error, Exception) and not isinstance(error, PeerFailure):
        with contextlib.suppress(Exception):
            comm.abort(f"{type(error).__name__}: {error}")


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"its result of type {type(value).__name__} can't be pickled ({error}); "
            "return plain data or tensors"
        ) from None


def outcome_of(rank: int, error: BaseException) -> Outcome:
    """Describe what a body raised, and pickle it where that is possible."""
    import pytest

    outcome = Outcome(rank, "raised", time.monotonic(), pid=os.getpid())
    outcome.text = f"{type(error).__name__}: {error}".partition("\n")[0]  # details hold the rest
    if isinstance(error, (pytest.skip.Exception, unittest.SkipTest)):
        outcome.kind, outcome.text = "skipped", str(error)
    elif isinstance(error, pytest.xfail.Exception):
        outcome.kind, outcome.text = "xfailed", str(error)
    else:
        outcome.details = _trace(error)
    if isinstance(error, (Exception, pytest.fail.Exception, pytest.exit.Exception)):
        with contextlib.suppress(Exception):
            outcome.payload = pickle.dumps(error)
    return outcome


def _trace(error: BaseException) -> str:
    trace: TracebackType | None = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_HERE) and trace.tb_next:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
