"""Seeded delays and planned deaths, injected before a rank's communicator calls."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from atb_dist.comm.base import Communicator

CALLS = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "broadcast_object",
     "all_gather_object", "reduce", "gather", "scatter", "send", "recv", "barrier", "empty",
     "split")
)  # fmt: skip


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a run, decided by numbers alone so that it goes wrong again.

    seed, delay_ms   every rank sleeps a random time of 0 to delay_ms before each of its calls;
                     the times depend on seed, rank and the number of the call
    kill_rank        the rank that kill_signal ends
    kill_at_call     ... right before its n-th communicator call (1 is the first), or with 0
                     before it connects
    kill_after_s     ... that long after it connected, wherever it is then

    The planned death is not a failure: that rank's result is a `Killed`, the others go on, and
    what they raise counts as usual. A planned death that never came is a failure.
    """

    seed: int = 0
    delay_ms: float = 0.0
    kill_rank: int | None = None
    kill_at_call: int | None = None
    kill_after_s: float | None = None
    kill_signal: int = signal.SIGKILL

    def __post_init__(self) -> None:
        """Refuse plans that could not come true.

        Raises ValueError.
        """
        moments = (self.kill_at_call is not None) + (self.kill_after_s is not None)
        if moments != (self.kill_rank is not None):
            raise ValueError(
                f"Faults: kill_rank={self.kill_rank}, kill_at_call={self.kill_at_call}, "
                f"kill_after_s={self.kill_after_s}; give a rank and one of the two moments, or none"
            )
        if self.delay_ms < 0 or (self.kill_at_call or 0) < 0 or (self.kill_after_s or 0) < 0:
            raise ValueError(f"{self}: times and counts can't be negative")

    def is_planned(self, rank: int, number: int) -> bool:
        """True when it was the plan that this rank dies of this signal."""
        return number != 0 and rank == self.kill_rank and number == self.kill_signal

    def delays_s(self, rank: int) -> Iterator[float]:
        """Yield the delay before this rank's first call, its second, and so on."""
        source = random.Random(f"{self.seed}.{rank}")
        while True:
            yield source.uniform(0, self.delay_ms) / 1000


@dataclass(frozen=True)
class Killed:
    """The result of a rank that `Faults` ended as planned."""

    rank: int
    signal: int


class FaultPlan:
    """One rank's share of `Faults`, counting the calls of all its communicators."""

    def __init__(self, faults: Faults, rank: int):
        self.calls = 0
        self._numbers = itertools.count(1)
        self._delays_s = faults.delays_s(rank)
        self._has_delays = faults.delay_ms > 0
        self._signal = faults.kill_signal
        self._kill_at_call = faults.kill_at_call if faults.kill_rank == rank else None
        self._kill_after_s = faults.kill_after_s if faults.kill_rank == rank else None

    @property
    def is_active(self) -> bool:
        """True when this rank's calls are to be counted, delayed or ended."""
        return self._has_delays or self._kill_at_call is not None or self._kill_after_s is not None

    def before_connect(self) -> None:
        """Die here when that is the plan."""
        if self._kill_at_call == 0:
            self._die()

    def after_connect(self) -> None:
        """Start the clock of kill_after_s."""
        if self._kill_after_s is not None:
            timer = threading.Timer(self._kill_after_s, self._die)
            timer.daemon = True
            timer.start()

    def before_call(self) -> None:
        """Sleep, or die, when it is time to."""
        self.calls = next(self._numbers)
        if self._has_delays:
            time.sleep(next(self._delays_s))
        if self.calls == self._kill_at_call:
            self._die()

    def _die(self) -> None:
        os.kill(os.getpid(), self._signal)


class _FaultyCommunicator:
    def __init__(self, inner: Communicator, plan: FaultPlan):
        self._inner = inner
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in CALLS:
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self._plan.before_call()
            result = cast(Callable[..., Any], value)(*args, **kwargs)
            return faulty(result, self._plan) if name == "split" else result

        return call


def faulty(communicator: Communicator, plan: FaultPlan) -> Communicator:
    """Wrap a communicator so that plan acts before each call; everything else passes through."""
    return cast("Communicator", _FaultyCommunicator(communicator, plan))
