"""What every communication back end offers, and the triple a tensor-parallel model is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from atb_dist.device import Stream

T = TypeVar("T")
ReduceOp = Literal["sum", "max", "min", "prod"]


class Communicator(Protocol):
    """Ranks that share a computation.

    Collectives are matched by order: every rank issues the same ones, from one thread at a time.
    Tensors must be contiguous. Every wait ends with PeerFailure when a peer dies, aborts, issues
    another collective, or stays away for longer than the time limit given to `connect`.
    Sums over ranks follow a balanced binary tree over rank numbers where `deterministic` holds:
    sum(lo, hi) = sum(lo, mid) + sum(mid, hi) with mid = (lo + hi) // 2; half types add in fp32
    and round once. Such back ends give the same bits on every rank.
    """

    rank: int
    size: int
    name: str  # "local", "lcal", "gloo", "mpi", "lcal+gloo", "lcal+mpi", "hccl", "nccl"
    deterministic: bool

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Combine x [*] over ranks, in place; return x."""

    def all_gather(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Join x [n, *] of all ranks along dimension 0, in rank order → [Σ n, *].

        counts: rows of each rank, needed only when they differ.
        """

    def reduce_scatter(
        self, x: Tensor, op: ReduceOp = "sum", counts: Sequence[int] | None = None
    ) -> Tensor:
        """Combine x [T, *] over ranks and keep this rank's rows → [counts[rank], *].

        counts default to the even cut: rank r of N keeps rows ⌊r·T/N⌋ to ⌊(r+1)·T/N⌋.
        """

    def all_to_all(self, x: Tensor, send: Sequence[int], recv: Sequence[int]) -> Tensor:
        """Give rank j the next send[j] rows of x [Σ send, *]; return [Σ recv, *] in rank order."""

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Overwrite x with rank src's; return x."""

    def broadcast_object(self, value: T | None, src: int = 0, *, idle: bool = False) -> T:
        """Return rank src's picklable value on every rank.

        idle: waiting is normal here (a prompt, an empty server), so there is no deadline; a dead
        peer or an abort is still noticed within a second.
        """

    def all_gather_object(self, value: T) -> list[T]:
        """Return every rank's picklable value, in rank order."""

    def reduce(self, x: Tensor, dst: int = 0, op: ReduceOp = "sum") -> Tensor:
        """Combine x [*] over ranks into rank dst's x; other ranks' x is left as it was."""

    def gather(self, x: Tensor, dst: int = 0, counts: Sequence[int] | None = None) -> Tensor | None:
        """Join x [n, *] of all ranks on rank dst → [Σ n, *]; None elsewhere."""

    def scatter(self, out: Tensor, x: Tensor | None = None, src: int = 0) -> Tensor:
        """Fill out [n, *] with this rank's rows of rank src's x [N·n, *]; return out."""

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst, which must call recv with the same shape and dtype."""

    def recv(self, x: Tensor, src: int) -> Tensor:
        """Fill x from rank src's send; return x."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return uninitialised memory that peers read directly where there is such a thing.

        Collective: same shapes in the same order on every rank.
        """

    def split(self, color: int) -> Communicator:
        """Return a communicator of the ranks that passed the same color, in rank order."""

    def abort(self, reason: str) -> None:
        """Wake every waiting peer and make it raise PeerFailure with this rank and reason."""

    def close(self) -> None:
        """Release everything; later calls raise. Never waits for peers, safe to call twice."""


@dataclass(frozen=True)
class TensorParallel:
    """What a tensor-parallel model is given: data for tensors, control for objects, one stream.

    Rule: one communicator, one stream. Model collectives go through `stream`, on `data`.
    """

    data: Communicator
    control: Communicator
    stream: Stream

    @property
    def rank(self) -> int:
        """This rank's number within the group."""
        return self.data.rank

    @property
    def size(self) -> int:
        """How many ranks share the model."""
        return self.data.size

    def close(self) -> None:
        """Release both communicators and the stream's thread."""
        self.stream.close()
        self.data.close()
        self.control.close()
