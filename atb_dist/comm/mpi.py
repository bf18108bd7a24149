"""MpiComm: whichever MPI started the ranks, through mpi4py.

Waits poll non-blocking collectives, so that deaths on this host, aborts and deadlines are noticed.
Half types, which MPI lacks, are gathered and added in fp32 along the rank tree.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atb_dist.comm import checks
from atb_dist.comm.base import Communicator
from atb_dist.comm.derived import DerivedVerbs
from atb_dist.comm.rank import RankInfo
from atb_dist.comm.tree import combine_in_tree
from atb_dist.comm.watch import Peer, PeerWatch
from atb_dist.errors import ConfigError

TYPES = {
    torch.float64: "DOUBLE", torch.float32: "FLOAT", torch.int64: "INT64_T",
    torch.int32: "INT32_T", torch.int8: "INT8_T", torch.uint8: "UINT8_T",
}  # fmt: skip


def open(rank: RankInfo, *, timeout_s: float) -> Communicator:
    """Join the ranks of MPI's world.

    Raises ConfigError when mpi4py or an MPI library is missing, or mpirun did not start the ranks.
    """
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    if (world.rank, world.size) != (rank.rank, rank.size):
        raise ConfigError(
            f"backend=mpi: this is rank {rank.rank} of {rank.size}, but MPI says {world.rank} of "
            f"{world.size}; start the ranks with mpirun, or use lcal or gloo"
        )
    return MpiComm(mpi, world.Dup(), timeout_s=timeout_s)


def load_mpi() -> Any:
    """Return mpi4py.MPI.

    Raises ConfigError; mpi4py without an MPI library raises RuntimeError, not ImportError.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"backend=mpi needs mpi4py and an MPI library: pip install 'atb_dist[mpi]' mpich "
            f"({reason})"
        ) from error
    return MPI


class MpiComm(DerivedVerbs):
    """A Communicator over an MPI communicator of its own. Sums follow MPI's order."""

    name = "mpi"

    def __init__(self, mpi: Any, comm: Any, *, timeout_s: float, label: int | None = None):
        """Take over an MPI communicator. label: what errors call this rank, None for its rank."""
        self._mpi = mpi
        self._comm = comm
        self._alarm = comm.Dup()  # where ranks tell why they gave up
        self._timeout_s = timeout_s
        peers = comm.allgather(Peer.of_this_process(comm.rank if label is None else label))
        self._watch = PeerWatch(
            comm.rank, peers, post=self._post, read=self._read, timeout_s=timeout_s
        )
        super().__init__(comm.rank, comm.size, "cpu")
        _unfinished.append(self)

    def _post(self, reason: str) -> None:
        for peer in range(self.size):
            if peer != self.rank:
                self._alarm.isend(reason, dest=peer)

    def _read(self) -> str | None:
        return str(self._alarm.recv()) if self._alarm.Iprobe() else None

    def _reduce(self, verb: str, x: Tensor, op: str) -> None:
        if x.dtype not in TYPES:
            parts = self._gather(verb, x.view(1, -1), [1] * self.size)
            x.copy_(combine_in_tree([part.float() for part in parts], op).view_as(x))
            return
        target = [self._memory(x), x.numel(), getattr(self._mpi, TYPES[x.dtype])]
        mpi_op = getattr(self._mpi, op.upper())
        self._wait(verb, x, self._comm.Iallreduce(self._mpi.IN_PLACE, target, mpi_op))

    def _gather(self, verb: str, x: Tensor, rows: Sequence[int]) -> Tensor:
        out = x.new_empty((sum(rows), *x.shape[1:]))
        target = [self._memory(out), checks.row_bytes(x, rows), self._mpi.BYTE]
        self._wait(verb, x, self._comm.Iallgatherv([self._memory(x), self._mpi.BYTE], target))
        return out

    def _broadcast(self, verb: str, x: Tensor, src: int, *, idle: bool = False) -> None:
        request = self._comm.Ibcast([self._memory(x), self._mpi.BYTE], root=src)
        self._wait(verb, x, request, idle=idle)

    def _exchange(self, x: Tensor, out: Tensor, gives: list[int], takes: list[int]) -> None:
        source = [self._memory(x), checks.row_bytes(x, gives), self._mpi.BYTE]
        target = [self._memory(out), checks.row_bytes(x, takes), self._mpi.BYTE]
        self._wait("all_to_all", x, self._comm.Ialltoallv(source, target))

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst, which must call recv with the same shape and dtype."""
        self._check_other("send", x, dst)
        self._wait("send", x, self._comm.Isend([self._memory(x), self._mpi.BYTE], dest=dst))

    def recv(self, x: Tensor, src: int) -> Tensor:
        """Fill x from rank src's send; return x."""
        self._check_other("recv", x, src)
        self._wait("recv", x, self._comm.Irecv([self._memory(x), self._mpi.BYTE], source=src))
        return x

    def split(self, color: int) -> Communicator:
        """Return a communicator of the ranks that passed the same color, in rank order."""
        colors = self.all_gather_object(int(color))
        place = sorted(set(colors)).index(color)  # MPI's colors can't be negative
        part = self._comm.Split(place, self.rank)
        return MpiComm(self._mpi, part, timeout_s=self._timeout_s, label=self._watch.label)

    def abort(self, reason: str) -> None:
        """Wake every waiting peer; this process then ends the MPI job when it exits."""
        self._watch.abort(reason)
        self._watch.broken = self._watch.broken or f"aborted: {reason}"

    def close(self) -> None:
        """Refuse later calls. MPI frees a communicator collectively only, so it stays till exit."""
        self._closed = True
        if not self._watch.broken and self in _unfinished:
            _unfinished.remove(self)

    def _memory(self, x: Tensor) -> Any:
        return self._mpi.buffer.fromaddress(x.data_ptr(), x.nbytes)

    def _wait(self, verb: str, x: Tensor, request: Any, *, idle: bool = False) -> None:
        self._watch.wait(verb, x, _Polled(request), idle=idle)


_unfinished: list[MpiComm] = []  # open, or broken


@atexit.register
def _end_if_broken() -> None:
    """End the job where finalising would wait for ranks that can't answer."""
    for comm in _unfinished:
        if comm._watch.broken:
            comm._mpi.COMM_WORLD.Abort(1)


def forgive() -> None:
    """Leave MPI in order at exit although communicators broke: all ranks are known to be well."""
    _unfinished.clear()


class _Polled:
    """An MPI request in the words of PeerWatch."""

    def __init__(self, request: Any):
        self._request = request

    def is_completed(self) -> bool:
        return bool(self._request.Test())

    def wait(self) -> None:
        self._request.Wait()
