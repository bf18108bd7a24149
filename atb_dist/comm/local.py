"""LocalComm: one rank alone. Every verb is the identity, checked like the others'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from atb_dist.comm import checks
from atb_dist.comm.base import Communicator, ReduceOp
from atb_dist.comm.rank import RankInfo
from atb_dist.errors import ConfigError

T = TypeVar("T")


def open(rank: RankInfo, *, timeout_s: float) -> Communicator:  # noqa: ARG001  (nothing waits)
    """Return the communicator of a single rank.

    Raises ConfigError when there are more.
    """
    if rank.size != 1:
        raise ConfigError(f"backend=local serves one rank, not {rank.size}; use lcal, gloo or mpi")
    return LocalComm()


class LocalComm:
    """A Communicator of size 1."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.name = "local"
        self.deterministic = True
        self._closed = False

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Return x."""
        self._check(x, "all_reduce")
        checks.check_op("all_reduce", op)
        return x

    def all_gather(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Return a copy of x."""
        self._check_rows(x, "all_gather", counts)
        return x.clone()

    def reduce_scatter(
        self, x: Tensor, op: ReduceOp = "sum", counts: Sequence[int] | None = None
    ) -> Tensor:
        """Return a copy of x."""
        checks.check_op("reduce_scatter", op)
        self._check_rows(x, "reduce_scatter", counts)
        return x.clone()

    def all_to_all(self, x: Tensor, send: Sequence[int], recv: Sequence[int]) -> Tensor:
        """Return a copy of x."""
        self._check_rows(x, "all_to_all", send)
        self._check_rows(x, "all_to_all", recv)
        return x.clone()

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Return x."""
        self._check(x, "broadcast", src)
        return x

    def broadcast_object(self, value: T | None, src: int = 0, *, idle: bool = False) -> T:
        """Return value."""
        del idle
        checks.check_open(self.name, self._closed)
        checks.check_rank("broadcast_object", src, 1)
        return value  # type: ignore[return-value]  # the source's value is never absent

    def all_gather_object(self, value: T) -> list[T]:
        """Return [value]."""
        checks.check_open(self.name, self._closed)
        return [value]

    def reduce(self, x: Tensor, dst: int = 0, op: ReduceOp = "sum") -> Tensor:
        """Return x."""
        self._check(x, "reduce", dst)
        checks.check_op("reduce", op)
        return x

    def gather(self, x: Tensor, dst: int = 0, counts: Sequence[int] | None = None) -> Tensor | None:
        """Return a copy of x."""
        checks.check_rank("gather", dst, 1)
        self._check_rows(x, "gather", counts)
        return x.clone()

    def scatter(self, out: Tensor, x: Tensor | None = None, src: int = 0) -> Tensor:
        """Copy x to out."""
        self._check(out, "scatter", src)
        checks.check_scatter(out, x, 1)
        assert x is not None
        return out.copy_(x)

    def send(self, x: Tensor, dst: int) -> None:
        """Refuse: there is nobody else."""
        self._check(x, "send")
        raise ValueError(f"send: rank {dst} is not another rank; this communicator has one")

    def recv(self, x: Tensor, src: int) -> Tensor:
        """Refuse: there is nobody else."""
        self._check(x, "recv")
        raise ValueError(f"recv: rank {src} is not another rank; this communicator has one")

    def barrier(self) -> None:
        """Return at once."""
        checks.check_open(self.name, self._closed)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return ordinary memory."""
        checks.check_open(self.name, self._closed)
        return torch.empty(tuple(shape), dtype=dtype)

    def split(self, color: int) -> Communicator:
        """Return another communicator of this rank."""
        del color
        checks.check_open(self.name, self._closed)
        return LocalComm()

    def abort(self, reason: str) -> None:
        """Close: there is no peer to wake."""
        del reason
        self._closed = True

    def close(self) -> None:
        """Refuse later calls."""
        self._closed = True

    def _check(self, x: Tensor, verb: str, peer: int = 0) -> None:
        checks.check_open(self.name, self._closed)
        checks.check_tensor(verb, x)
        checks.check_rank(verb, peer, 1)

    def _check_rows(self, x: Tensor, verb: str, counts: Sequence[int] | None) -> None:
        checks.check_open(self.name, self._closed)
        checks.check_rows(verb, x)
        rows = x.shape[0]
        checks.check_sum(verb, rows, checks.row_counts(verb, counts, [rows]))
