"""DerivedVerbs: the verbs that follow from a few, for back ends over another library."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from atb_dist.comm import checks
from atb_dist.comm.base import ReduceOp
from atb_dist.errors import PeerFailure

T = TypeVar("T")


class DerivedVerbs(ABC):
    """Checks arguments, then builds every verb from four that a subclass gives.

    device: where the library's tensors live, as torch names it.
    """

    name: str
    deterministic = False

    def __init__(self, rank: int, size: int, device: str):
        self.rank = rank
        self.size = size
        self._device = device
        self._closed = False

    @abstractmethod
    def _reduce(self, verb: str, x: Tensor, op: str) -> None:
        """Combine x over ranks in place."""

    @abstractmethod
    def _gather(self, verb: str, x: Tensor, rows: Sequence[int]) -> Tensor:
        """Join all ranks' x, whose rows by rank are known."""

    @abstractmethod
    def _broadcast(self, verb: str, x: Tensor, src: int, *, idle: bool = False) -> None:
        """Overwrite x with rank src's."""

    @abstractmethod
    def _exchange(self, x: Tensor, out: Tensor, gives: list[int], takes: list[int]) -> None:
        """Send rows of x and fill out; counts are known to agree."""

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Combine x [*] over ranks, in place; return x."""
        self._check("all_reduce", x)
        checks.check_op("all_reduce", op)
        self._reduce("all_reduce", x, op)
        return x

    def reduce(self, x: Tensor, dst: int = 0, op: ReduceOp = "sum") -> Tensor:
        """Combine x [*] over ranks into rank dst's x; other ranks' x is left as it was."""
        self._check("reduce", x, dst)
        checks.check_op("reduce", op)
        self._reduce("reduce", x if self.rank == dst else x.clone(), op)
        return x

    def reduce_scatter(
        self, x: Tensor, op: ReduceOp = "sum", counts: Sequence[int] | None = None
    ) -> Tensor:
        """Combine x [T, *] over ranks and keep this rank's rows → [counts[rank], *]."""
        self._check("reduce_scatter", x)
        checks.check_op("reduce_scatter", op)
        checks.check_rows("reduce_scatter", x)
        even = checks.even_counts(x.shape[0], self.size)
        rows = checks.row_counts("reduce_scatter", counts, even)
        checks.check_sum("reduce_scatter", x.shape[0], rows)
        whole = x.clone()
        self._reduce("reduce_scatter", whole, op)
        first = sum(rows[: self.rank])
        return whole[first : first + rows[self.rank]].clone()

    def all_gather(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Join x [n, *] of all ranks along dimension 0, in rank order → [Σ n, *]."""
        return self._gather("all_gather", x, self._rows("all_gather", x, counts))

    def gather(self, x: Tensor, dst: int = 0, counts: Sequence[int] | None = None) -> Tensor | None:
        """Join x [n, *] of all ranks on rank dst → [Σ n, *]; None elsewhere."""
        checks.check_rank("gather", dst, self.size)
        joined = self._gather("gather", x, self._rows("gather", x, counts))
        return joined if self.rank == dst else None

    def all_to_all(self, x: Tensor, send: Sequence[int], recv: Sequence[int]) -> Tensor:
        """Give rank j the next send[j] rows of x [Σ send, *]; return [Σ recv, *] in rank order."""
        self._check("all_to_all", x)
        checks.check_rows("all_to_all", x)
        everyone = [0] * self.size
        gives = checks.row_counts("all_to_all", send, everyone)
        takes = checks.row_counts("all_to_all", recv, everyone)
        checks.check_sum("all_to_all", x.shape[0], gives)
        mine = torch.tensor([gives], device=self._device)
        for r, row in enumerate(self._gather("all_to_all", mine, [1] * self.size).tolist()):
            if row[self.rank] != takes[r]:
                why = (
                    f"all_to_all: rank {r} sends {row[self.rank]} rows to rank {self.rank}, which "
                    f"expects {takes[r]}"
                )
                self.abort(why)
                raise PeerFailure(why)
        out = x.new_empty((sum(takes), *x.shape[1:]))
        self._exchange(x, out, gives, takes)
        return out

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Overwrite x with rank src's; return x."""
        self._check("broadcast", x, src)
        self._broadcast("broadcast", x, src)
        return x

    def scatter(self, out: Tensor, x: Tensor | None = None, src: int = 0) -> Tensor:
        """Fill out [n, *] with this rank's rows of rank src's x [N·n, *]; return out."""
        self._check("scatter", out, src)
        checks.check_rows("scatter", out)
        whole = out.new_empty((self.size * out.shape[0], *out.shape[1:]))
        if self.rank == src:
            checks.check_scatter(out, x, self.size)
            assert x is not None
            whole = x.clone()
        self._broadcast("scatter", whole, src)
        first = self.rank * out.shape[0]
        return out.copy_(whole[first : first + out.shape[0]])

    def barrier(self) -> None:
        """Return once every rank has called it."""
        checks.check_open(self.name, self._closed)
        self._reduce("barrier", torch.zeros(1, device=self._device), "sum")

    def broadcast_object(self, value: T | None, src: int = 0, *, idle: bool = False) -> T:
        """Return rank src's picklable value on every rank; idle waits without a deadline."""
        verb = "broadcast_object"
        self._check(verb, torch.empty(0), src)
        data = _pickled(value) if self.rank == src else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([data.numel()], device=self._device)
        self._broadcast(verb, length, src, idle=idle)
        if self.rank != src:
            data = torch.empty(int(length), dtype=torch.uint8)
        data = data.to(self._device)
        self._broadcast(verb, data, src)
        loaded: T = pickle.loads(data.cpu().numpy().tobytes())
        return loaded

    def all_gather_object(self, value: T) -> list[T]:
        """Return every rank's picklable value, in rank order."""
        verb = "all_gather_object"
        self._check(verb, torch.empty(0))
        data = _pickled(value)
        mine = torch.tensor([data.numel()], device=self._device)
        lengths = self._gather(verb, mine, [1] * self.size).tolist()
        joined = self._gather(verb, data.to(self._device), lengths).cpu()
        return [pickle.loads(part.numpy().tobytes()) for part in torch.split(joined, lengths)]

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return ordinary memory of the library's device."""
        return torch.empty(tuple(shape), dtype=dtype, device=self._device)

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Wake every waiting peer and make it raise PeerFailure with this rank and reason."""

    def _rows(self, verb: str, x: Tensor, counts: Sequence[int] | None) -> list[int]:
        self._check(verb, x)
        checks.check_rows(verb, x)
        rows = checks.row_counts(verb, counts, [x.shape[0]] * self.size)
        checks.check_own(verb, x.shape[0], rows, self.rank)
        return rows

    def _check(self, verb: str, x: Tensor, peer: int = 0) -> None:
        checks.check_open(self.name, self._closed)
        checks.check_tensor(verb, x)
        checks.check_rank(verb, peer, self.size)

    def _check_other(self, verb: str, x: Tensor, peer: int) -> None:
        self._check(verb, x, peer)
        checks.check_not_self(verb, peer, self.rank)


def _pickled(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
