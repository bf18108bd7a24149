"""LcalComm: collectives between the ranks of one host over shared memory (csrc/lcal)."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from atb_dist import _lcal
from atb_dist.comm import checks, tuning
from atb_dist.comm.base import Communicator, ReduceOp
from atb_dist.comm.rank import RankInfo
from atb_dist.errors import ConfigError, PeerFailure

T = TypeVar("T")

# The numbers of csrc/lcal/types.h.
DTYPES = {
    torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int64: 4,
    torch.int32: 5, torch.int8: 6, torch.uint8: 7,
}  # fmt: skip
OPS = {"sum": 0, "max": 1, "min": 2, "prod": 3}
HALF_BYTES = 1 << 20  # two such buffers a rank
MANY_RANKS = 16
HALF_BYTES_OF_MANY = 256 << 10


def open(rank: RankInfo, *, timeout_s: float) -> Communicator:
    """Join the ranks of this host's job.

    Raises ConfigError when they span hosts or memory is short, PeerFailure when one does not come.
    """
    if rank.num_nodes != 1:
        raise ConfigError(
            f"backend=lcal works inside one host, but the ranks span {rank.num_nodes}; use gloo"
        )
    comm = LcalComm(rank.session, rank.rank, rank.size, timeout_s=timeout_s)
    tuning.tune(comm)
    return comm


class LcalComm:
    """A Communicator over one shared segment. Sums have the same bits on every rank."""

    def __init__(
        self,
        session: str,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        labels: Sequence[int] | None = None,
        parent: LcalComm | None = None,
    ):
        """Meet the other ranks of the session.

        labels: their numbers in error texts. parent: a communicator that has them all; whoever dies
        meanwhile is named at once.
        """
        self.rank = rank
        self.size = size
        self.name = "lcal"
        self.deterministic = True
        self._session = session
        self._timeout_s = timeout_s
        self._labels = list(labels if labels is not None else range(size))
        self._num_splits = 0
        half = HALF_BYTES if size <= MANY_RANKS else HALF_BYTES_OF_MANY
        self._comm = _lcal.Comm(
            session=session, rank=rank, size=size, half_bytes=half, timeout_s=timeout_s,
            labels=self._labels, parent=parent.native if parent else None,
        )  # fmt: skip
        self._all_reduce = _lcal.fast_all_reduce(self._comm, list(DTYPES))

    @property
    def native(self) -> _lcal.Comm:
        """The C++ communicator, for kernels that communicate as they compute."""
        return self._comm

    @property
    def choice(self) -> tuning.Choice:
        """Where all_reduce changes its algorithm."""
        return tuning.Choice(*self._comm.choice)

    def choose(self, choice: tuning.Choice) -> None:
        """Change that: between collectives, the same on every rank. No bit depends on it.

        Raises ConfigError when it does not fit the buffers.
        """
        room = HALF_BYTES if self.size <= MANY_RANKS else HALF_BYTES_OF_MANY
        piece = min(choice.piece_bytes, room // 2)
        try:
            self._comm.choose(min(choice.one_shot_bytes, room), piece)
        except ValueError as error:
            raise ConfigError(f"{tuning.VARIABLE}: {error}") from None

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Combine x [*] over ranks, in place; return x."""
        if not self._all_reduce(x, op):  # only for what the checks refuse
            dtype, code = _dtype("all_reduce", x), _op("all_reduce", op)
            self._comm.all_reduce(x.data_ptr(), x.numel(), dtype, code)
        return x

    def all_reduce_int8(self, x: Tensor) -> Tensor:
        """Sum x [*] over ranks, in place, with addends that travel as int8; return x.

        Lossy: each addend is rounded to 1/254 of the largest magnitude among its 64 neighbours, so
        the sum of N ranks is off by at most the N such steps together. A NaN or an infinity makes
        its 64 neighbours NaN. A quarter of fp32's bytes, the same bits on every rank.
        """
        dtype = _dtype("all_reduce_int8", x)
        self._comm.all_reduce_int8(x.data_ptr(), x.numel(), dtype)
        return x

    def reduce(self, x: Tensor, dst: int = 0, op: ReduceOp = "sum") -> Tensor:
        """Combine x [*] over ranks into rank dst's x; other ranks' x is left as it was."""
        dtype, code = _dtype("reduce", x), _op("reduce", op)
        checks.check_rank("reduce", dst, self.size)
        self._comm.reduce(x.data_ptr(), x.numel(), dtype, code, dst)
        return x

    def reduce_scatter(
        self, x: Tensor, op: ReduceOp = "sum", counts: Sequence[int] | None = None
    ) -> Tensor:
        """Combine x [T, *] over ranks and keep this rank's rows → [counts[rank], *]."""
        dtype, code = _dtype("reduce_scatter", x), _op("reduce_scatter", op)
        checks.check_rows("reduce_scatter", x)
        rows = checks.row_counts("reduce_scatter", counts, checks.even_counts(len(x), self.size))
        checks.check_sum("reduce_scatter", x.shape[0], rows)
        width = math.prod(x.shape[1:])
        out = x.new_empty((rows[self.rank], *x.shape[1:]))
        self._comm.reduce_scatter(
            x.data_ptr(), out.data_ptr(), [n * width for n in rows], dtype, code
        )
        return out

    def all_gather(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Join x [n, *] of all ranks along dimension 0, in rank order → [Σ n, *]."""
        rows, out = self._gathered("all_gather", x, counts)
        self._comm.all_gather(x.data_ptr(), out.data_ptr(), checks.row_bytes(x, rows))
        return out

    def gather(self, x: Tensor, dst: int = 0, counts: Sequence[int] | None = None) -> Tensor | None:
        """Join x [n, *] of all ranks on rank dst → [Σ n, *]; None elsewhere."""
        checks.check_rank("gather", dst, self.size)
        rows, out = self._gathered("gather", x, counts)
        self._comm.gather(x.data_ptr(), out.data_ptr(), checks.row_bytes(x, rows), dst)
        return out if self.rank == dst else None

    def all_to_all(self, x: Tensor, send: Sequence[int], recv: Sequence[int]) -> Tensor:
        """Give rank j the next send[j] rows of x [Σ send, *]; return [Σ recv, *] in rank order."""
        checks.check_rows("all_to_all", x)
        checks.check_on_host("all_to_all", x)
        everyone = [0] * self.size
        gives = checks.row_counts("all_to_all", send, everyone)
        takes = checks.row_counts("all_to_all", recv, everyone)
        checks.check_sum("all_to_all", x.shape[0], gives)
        out = x.new_empty((sum(takes), *x.shape[1:]))
        self._comm.all_to_all(
            x.data_ptr(), out.data_ptr(), checks.row_bytes(x, gives), checks.row_bytes(x, takes)
        )
        return out

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Overwrite x with rank src's; return x."""
        _check("broadcast", x)
        checks.check_rank("broadcast", src, self.size)
        self._comm.broadcast(x.data_ptr(), x.nbytes, src)
        return x

    def scatter(self, out: Tensor, x: Tensor | None = None, src: int = 0) -> Tensor:
        """Fill out [n, *] with this rank's rows of rank src's x [N·n, *]; return out."""
        checks.check_rows("scatter", out)
        checks.check_on_host("scatter", out)
        checks.check_rank("scatter", src, self.size)
        source = 0
        if self.rank == src:
            checks.check_scatter(out, x, self.size)
            assert x is not None
            source = x.data_ptr()
        self._comm.scatter(source, out.data_ptr(), out.nbytes, src)
        return out

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst, which must call recv with the same shape and dtype."""
        self._check_peer("send", x, dst)
        self._comm.send(x.data_ptr(), x.nbytes, dst)

    def recv(self, x: Tensor, src: int) -> Tensor:
        """Fill x from rank src's send; return x."""
        self._check_peer("recv", x, src)
        self._comm.recv(x.data_ptr(), x.nbytes, src)
        return x

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._comm.barrier()

    def broadcast_object(self, value: T | None, src: int = 0, *, idle: bool = False) -> T:
        """Return rank src's picklable value on every rank; idle waits without a deadline."""
        checks.check_rank("broadcast_object", src, self.size)
        mine = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if self.rank == src else b""
        result = self._comm.broadcast_object(mine, src, idle)
        loaded: T = value if self.rank == src else pickle.loads(result)  # type: ignore[assignment]
        return loaded

    def all_gather_object(self, value: T) -> list[T]:
        """Return every rank's picklable value, in rank order."""
        mine = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        results = self._comm.all_gather_object(mine)
        return [pickle.loads(result) for result in results]

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return uninitialised memory in the segment, which peers read and write in place.

        Collective: same shapes in the same order on every rank. It comes back when every rank has
        dropped its tensor, at the next call of empty.

        Raises ConfigError, on every rank alike, when a rank can't have the memory.
        """
        count = math.prod(shape)
        if min(shape, default=0) < 0:
            raise ValueError(f"empty: shape {list(shape)} has a negative size")
        block = self._comm.empty(count * dtype.itemsize)
        if count == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        return torch.frombuffer(block, dtype=dtype, count=count).view(tuple(shape))

    def split(self, color: int) -> Communicator:
        """Return a communicator of the ranks that passed the same color, in rank order."""
        self._num_splits += 1
        colors = self.all_gather_object(int(color))
        members = [r for r, each in enumerate(colors) if each == color]
        session = f"{self._session}.{self._num_splits}.{color}"
        try:
            part = LcalComm(
                session, members.index(self.rank), len(members), timeout_s=self._timeout_s,
                labels=[self._labels[r] for r in members], parent=self,
            )  # fmt: skip
        except PeerFailure as error:
            self.abort(str(error))
            raise
        if part.size == self.size:  # else nothing was measured for it
            part.choose(self.choice)
        return part

    def abort(self, reason: str) -> None:
        """Wake every waiting peer and make it raise PeerFailure with this rank and reason."""
        self._comm.abort(reason)

    def close(self) -> None:
        """Release everything; later calls raise. Never waits for peers, safe to call twice."""
        self._comm.close()

    def _gathered(
        self, verb: str, x: Tensor, counts: Sequence[int] | None
    ) -> tuple[list[int], Tensor]:
        checks.check_rows(verb, x)
        checks.check_on_host(verb, x)
        rows = checks.row_counts(verb, counts, [x.shape[0]] * self.size)
        checks.check_own(verb, x.shape[0], rows, self.rank)
        return rows, x.new_empty((sum(rows), *x.shape[1:]))

    def _check_peer(self, verb: str, x: Tensor, peer: int) -> None:
        _check(verb, x)
        checks.check_rank(verb, peer, self.size)
        checks.check_not_self(verb, peer, self.rank)


def _check(verb: str, x: Tensor) -> None:
    checks.check_tensor(verb, x)
    checks.check_on_host(verb, x)


def _dtype(verb: str, x: Tensor) -> int:
    _check(verb, x)
    if x.dtype not in DTYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise ValueError(f"{verb}: {x.dtype} can't be combined; use one of {names}")
    return DTYPES[x.dtype]


def _op(verb: str, op: str) -> int:
    checks.check_op(verb, op)
    return OPS[op]
