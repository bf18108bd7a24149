"""What the `ranks` fixture gives a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

from atb_dist.testing.call import Call
from atb_dist.testing.execute import Terms
from atb_dist.testing.faults import Faults
from atb_dist.testing.outcomes import Outcome, Run

_NO_FAULTS = Faults()


class Runner(Protocol):
    """Where bodies run: a pool of processes, or the launch that pytest itself is part of."""

    default_backend: str

    @property
    def size(self) -> int | None:
        """The only number of ranks it can run; None when it can run any."""

    def run(self, size: int, call: Call, terms: Terms) -> list[Outcome]:
        """Run a call on all ranks; return what became of each."""

    def close(self) -> None:
        """End what it started."""


class Ranks:
    """Runs functions on several ranks and brings their results back.

    size   how many ranks, from the marker `@pytest.mark.ranks(2, 4)`
    """

    def __init__(self, size: int, runner: Runner, name: str):
        self.size = size
        self._runner = runner
        self._names = (f"{name} run {number}" for number in itertools.count(1))

    def run(
        self,
        body: Callable[..., Any],
        *args: Any,
        backend: str | None = None,
        timeout_s: float = 60.0,
        comm_timeout_s: float | None = None,
        faults: Faults = _NO_FAULTS,
        **kwargs: Any,
    ) -> list[Any]:
        """Call body(communicator, *args, **kwargs) on every rank; return the results by rank.

        body             defined with def at module level; results and arguments are pickled
        backend          None: lcal on the pool, mpi under mpirun, auto under other launchers;
                         "none": body gets its RankInfo in place of a communicator
        timeout_s        after this the ranks that still run are killed and their stacks shown
        comm_timeout_s   limit of a single wait within the communicator; default timeout_s
        faults           delays and deaths to inject; a rank killed as planned returns a Killed

        When ranks fail, the error of the first by time is raised here; the report shows it and,
        after it, the others'. Skips and xfails count when all ranks agree on them.
        """
        __tracebackhide__ = True
        if faults.kill_rank is not None and not 0 <= faults.kill_rank < self.size:
            raise ValueError(f"kill_rank={faults.kill_rank} is not one of {self.size} ranks")
        call = Call.of(body, args, kwargs)
        terms = Terms(
            name=next(self._names),
            backend=backend or self._runner.default_backend,
            limit_s=timeout_s,
            comm_timeout_s=timeout_s if comm_timeout_s is None else comm_timeout_s,
            faults=faults,
        )
        return Run(self._runner.run(self.size, call, terms), faults).results()
