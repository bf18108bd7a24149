"""HierarchicalComm: shared memory inside each host, another library between one rank of each.

Ranks are taken to share a host when they can share memory (`host_identity`), whatever the launcher
says. Collectives go through lcal to the host's first rank, over the network once a host, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from atb_dist.comm.base import Communicator
from atb_dist.comm.derived import DerivedVerbs
from atb_dist.comm.host import host_identity
from atb_dist.comm.lcal import LcalComm
from atb_dist.comm.rank import RankInfo
from atb_dist.comm.tree import combine_in_tree, follows_tree
from atb_dist.comm.tuning import tune
from atb_dist.errors import PeerFailure

T = TypeVar("T")
R = TypeVar("R")
HALF_TYPES = (torch.float16, torch.bfloat16)
# A rank waits inside its host while its leader waits outside: the leader knows better who is late.
INNER_SLACK = 1.2


def join(
    outer: Communicator, rank: RankInfo, *, timeout_s: float, host: str | None = None
) -> Communicator:
    """Group the ranks of `outer` by host → outer itself, an lcal communicator, or both in one.

    outer joins all ranks over a network and belongs to the result. host: instead of this host's
    identity. Collective.
    """
    hosts = outer.all_gather_object(host or host_identity())
    members = [r for r, each in enumerate(hosts) if each == hosts[outer.rank]]
    if len(set(hosts)) == len(hosts):
        return outer
    place = members.index(outer.rank)
    session = f"{rank.session}.host{members[0]}"
    inner = LcalComm(
        session, place, len(members), timeout_s=timeout_s * INNER_SLACK, labels=members
    )
    tune(inner)
    if len(members) == len(hosts):
        outer.close()
        return inner
    return HierarchicalComm(inner, outer)


class HierarchicalComm(DerivedVerbs):
    """A Communicator over an lcal one per host and one of all ranks, which it owns.

    Sums follow the tree inside hosts and then over hosts, each rounded once. Where that is the
    tree over all ranks (hosts with equally many, 2, 4, 8 ... of them) it is `deterministic`.
    """

    def __init__(self, inner: Communicator, outer: Communicator):
        super().__init__(outer.rank, outer.size, "cpu")
        self.name = f"{inner.name}+{outer.name}"
        self._inner = inner
        self._outer = outer
        leader = inner.broadcast_object(outer.rank)
        leaders = outer.all_gather_object(leader)
        self._hosts = [
            [r for r, each in enumerate(leaders) if each == first] for first in sorted(set(leaders))
        ]
        self._host = next(h for h, ranks in enumerate(self._hosts) if outer.rank in ranks)
        self._leads = inner.rank == 0
        between = outer.split(int(self._leads))
        self._between = between if self._leads else None
        if not self._leads:
            between.close()
        in_order = [r for ranks in self._hosts for r in ranks]
        borders = [0]
        for ranks in self._hosts:
            borders.append(borders[-1] + len(ranks))
        self._places = [in_order.index(r) for r in range(outer.size)]
        self.deterministic = in_order == list(range(outer.size)) and follows_tree(borders)

    def _reduce(self, verb: str, x: Tensor, op: str) -> None:
        self._together(verb, lambda: self._reduce_over_hosts(x, op))

    def _reduce_over_hosts(self, x: Tensor, op: str) -> None:
        total = x.float() if x.dtype in HALF_TYPES else x
        self._inner.reduce(total, 0, op)  # type: ignore[arg-type]
        if self._between is not None and total.numel():
            parts = self._between.all_gather(total.view(1, -1))
            total.copy_(combine_in_tree(list(parts), op).view_as(total))
        if total is x:
            self._inner.broadcast(x)
            return
        if self._leads:
            x.copy_(total)
        self._inner.broadcast(x)

    def _gather(self, verb: str, x: Tensor, rows: Sequence[int]) -> Tensor:
        return self._together(verb, lambda: self._gather_over_hosts(x, rows))

    def _gather_over_hosts(self, x: Tensor, rows: Sequence[int]) -> Tensor:
        here = self._inner.gather(x, 0, [rows[r] for r in self._hosts[self._host]])
        everyone = x.new_empty((sum(rows), *x.shape[1:]))
        if self._between is not None:
            assert here is not None
            counts = [sum(rows[r] for r in ranks) for ranks in self._hosts]
            joined = self._between.all_gather(here, counts)
            parts = torch.split(joined, [rows[r] for ranks in self._hosts for r in ranks])
            torch.cat([parts[place] for place in self._places], out=everyone)
        return self._inner.broadcast(everyone)

    def _broadcast(
        self,
        verb: str,
        x: Tensor,
        src: int,
        *,
        idle: bool = False,  # noqa: ARG002
    ) -> None:  # broadcast_object, which alone may be idle, is defined below
        def move(comm: Communicator, root: int) -> None:
            comm.broadcast(x, root)

        self._together(verb, lambda: self._from(src, move))

    def _from(self, src: int, move: Callable[[Communicator, int], None]) -> None:
        """Bring what rank src has to all: inside its host, between hosts, inside the others."""
        home = next(h for h, ranks in enumerate(self._hosts) if src in ranks)
        if self._host == home:
            move(self._inner, self._hosts[home].index(src))
        if self._between is not None:
            move(self._between, home)
        if self._host != home:
            move(self._inner, 0)

    def broadcast_object(self, value: T | None, src: int = 0, *, idle: bool = False) -> T:
        """Return rank src's picklable value on every rank; idle waits without a deadline."""
        self._check("broadcast_object", torch.empty(0), src)
        held: list[T | None] = [value if self.rank == src else None]

        def move(comm: Communicator, root: int) -> None:
            held[0] = comm.broadcast_object(held[0], root, idle=idle)

        self._together("broadcast_object", lambda: self._from(src, move))
        result: T = held[0]  # type: ignore[assignment]
        return result

    def _exchange(
        self,
        x: Tensor,
        out: Tensor,
        gives: list[int],
        takes: list[int],  # noqa: ARG002
    ) -> None:
        mine = torch.tensor([gives])
        counts = self._gather("all_to_all", mine, [1] * self.size).tolist()
        self._together("all_to_all", lambda: self._exchange_over_hosts(x, out, counts))

    def _exchange_over_hosts(self, x: Tensor, out: Tensor, counts: list[list[int]]) -> None:
        """Hand all rows to the host's leader, exchange between leaders, deal out."""
        here = self._hosts[self._host]
        there = [r for ranks in self._hosts for r in ranks]
        gathered = self._inner.gather(x, 0, [sum(counts[r]) for r in here])
        dealt = out.new_empty((0, *out.shape[1:]))
        if self._between is not None:
            assert gathered is not None
            pairs = [(s, d) for s in here for d in range(self.size)]
            parts = torch.split(gathered, [counts[s][d] for s, d in pairs])
            by_pair = dict(zip(pairs, parts, strict=True))
            leaving = torch.cat([by_pair[s, d] for d in there for s in here])
            send = [sum(counts[s][d] for s in here for d in ranks) for ranks in self._hosts]
            recv = [sum(counts[s][d] for s in ranks for d in here) for ranks in self._hosts]
            arrived = self._between.all_to_all(leaving, send, recv)
            pairs = [(s, d) for ranks in self._hosts for d in here for s in ranks]
            parts = torch.split(arrived, [counts[s][d] for s, d in pairs])
            by_pair = dict(zip(pairs, parts, strict=True))
            dealt = torch.cat([by_pair[s, d] for d in here for s in range(self.size)])
        totals = [sum(counts[s][d] for s in range(self.size)) for d in here]
        nothing = [0] * len(here)
        received = [totals[self._inner.rank], *nothing[1:]]
        out.copy_(self._inner.all_to_all(dealt, totals if self._leads else nothing, received))

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst, which must call recv with the same shape and dtype."""
        self._check_other("send", x, dst)
        comm, peer = self._way_to(dst)
        self._together("send", lambda: comm.send(x, peer))

    def recv(self, x: Tensor, src: int) -> Tensor:
        """Fill x from rank src's send; return x."""
        self._check_other("recv", x, src)
        comm, peer = self._way_to(src)
        return self._together("recv", lambda: comm.recv(x, peer))

    def _way_to(self, rank: int) -> tuple[Communicator, int]:
        here = self._hosts[self._host]
        return (self._inner, here.index(rank)) if rank in here else (self._outer, rank)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return uninitialised memory in the host's segment."""
        return self._inner.empty(shape, dtype)

    def split(self, color: int) -> Communicator:
        """Return a communicator of the ranks that passed the same color, in rank order."""
        outer = self._together("split", lambda: self._outer.split(color))
        inner = self._together("split", lambda: self._inner.split(color))
        if inner.size == outer.size:
            outer.close()
            return inner
        hosts = outer.all_gather_object(self._host)
        if len(set(hosts)) == len(hosts):
            inner.close()
            return outer
        return HierarchicalComm(inner, outer)

    def abort(self, reason: str) -> None:
        """Wake every waiting peer, here and on other hosts."""
        self._inner.abort(reason)
        if self._between is not None:
            self._between.abort(reason)
        self._outer.abort(reason)

    def close(self) -> None:
        """Release everything; later calls raise. Never waits for peers, safe to call twice."""
        self._closed = True
        self._inner.close()
        if self._between is not None:
            self._between.close()
        self._outer.close()

    def _together(self, verb: str, step: Callable[[], R]) -> R:
        """Do a step; when it fails, tell who waits in the other communicators."""
        try:
            return step()
        except PeerFailure as error:
            self.abort(str(error))
            raise PeerFailure(f"{error} [a step of {verb} over {self.name}]") from error
