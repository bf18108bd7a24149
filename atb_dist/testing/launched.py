"""Ranks that mpirun or torchrun started: pytest itself runs on each of them."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import hashlib
import os
import pickle
import sys
from collections.abc import Iterator

import pytest

from atb_dist.comm.rank import RankInfo
from atb_dist.errors import PeerFailure
from atb_dist.testing.call import Call
from atb_dist.testing.execute import Terms, execute
from atb_dist.testing.outcomes import Outcome, RankFailure

_GRACE_S = 3.0


class LaunchedRanks:
    """Runs bodies in this very process, as this rank, and shares the outcomes with the others.

    All ranks must run the same tests in the same order, as they do when given the same command
    line. Then all of them pass, or all fail with the first failing rank's error. A rank that hangs
    can't be replaced here: it writes its stacks, the others fail what is left, report and exit,
    and the launcher ends the one that hangs.
    """

    def __init__(self, info: RankInfo, stderr: int):
        """stderr: a file descriptor of our own, not captured by pytest."""
        self._stderr = stderr
        self._lost = ""
        self.size = info.size
        self.default_backend = "mpi" if info.launcher in ("openmpi", "mpich", "slurm") else "auto"
        self._info = info

    def run(self, size: int, call: Call, terms: Terms) -> list[Outcome]:
        """Run a call on this rank while the others do; return the outcomes of all."""
        __tracebackhide__ = True  # pytest shows the test's own line
        assert size == self.size
        if self._lost:
            raise RankFailure(f"ranks were lost in {self._lost}; this launch can't go on")
        if terms.faults.kill_rank is not None:
            pytest.skip("a planned death would end the whole launch; run without the launcher")
        from atb_dist.comm import connect

        faulthandler.dump_traceback_later(terms.limit_s + _GRACE_S, file=self._stderr)
        limit_s = terms.limit_s + 2 * _GRACE_S
        try:
            control = connect(self._job(terms.name, "control"), self.default_backend,
                              timeout_s=limit_s)  # fmt: skip
            try:
                # As on the pool, where one test hands out the arguments: paths of temporary
                # directories, say, differ between the ranks' own tests.
                data = control.broadcast_object(call.data)
                outcomes = control.all_gather_object(self._execute(data, terms))
            finally:
                control.close()
        except PeerFailure as error:
            self._lost = terms.name
            raise RankFailure(f"not all ranks came to the end of {terms.name}: {error}") from None
        finally:
            faulthandler.cancel_dump_traceback_later()
        if control.name == "mpi":
            from atb_dist.comm import mpi

            mpi.forgive()  # a test may break its communicator; every rank has just answered
        return outcomes

    def close(self) -> None:
        """End the process here if ranks were lost: an orderly exit from MPI would wait for them."""
        if self._lost:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(pytest.ExitCode.TESTS_FAILED)
        os.close(self._stderr)

    def _job(self, name: str, part: str) -> RankInfo:
        digest = hashlib.sha256(f"{self._info.session} {name} {part}".encode()).hexdigest()
        return dataclasses.replace(self._info, session=f"test-{digest[:32]}")

    def _execute(self, data: bytes, terms: Terms) -> Outcome:
        body, args, kwargs = pickle.loads(data)
        info = self._job(terms.name, "data")
        with _environment("ATB_DIST_SESSION", info.session):
            return execute(info, terms, lambda first: body(first, *args, **kwargs))


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
