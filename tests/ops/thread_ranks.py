"""Ranks as threads of this process, with the collectives that operators use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from atb_dist.comm.base import Communicator, TensorParallel
from atb_dist.comm.tree import combine_in_tree
from atb_dist.device import CpuStream

LIMIT_S = 30


class Meeting:
    """Where the ranks of one communicator leave what they bring to a collective."""

    def __init__(self, size: int):
        self.barrier = threading.Barrier(size)
        self.brought: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.brought[rank] = value
        self.barrier.wait(LIMIT_S)
        everyone = list(self.brought)
        self.barrier.wait(LIMIT_S)
        return everyone


class ThreadComm:
    """One rank's end of a Meeting."""

    name, deterministic = "threads", True

    def __init__(self, meeting: Meeting, rank: int, size: int):
        self.meeting, self.rank, self.size = meeting, rank, size
        self.calls: list[str] = []

    def _exchange(self, verb: str, x: Tensor) -> list[Tensor]:
        assert x.is_contiguous(), verb
        self.calls.append(verb)
        everyone = self.meeting.exchange(self.rank, (verb, x.clone()))
        assert {v for v, _ in everyone} == {verb}, "ranks issued different collectives"
        return [tensor for _, tensor in everyone]

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        assert op == "sum"
        return x.copy_(combine_in_tree(self._exchange("all_reduce", x)))

    def all_gather(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        parts = self._exchange("all_gather", x)
        if counts is None:
            assert len({p.shape for p in parts}) == 1, "counts are needed when rows differ"
        else:
            assert [p.shape[0] for p in parts] == list(counts)
        return torch.cat(parts)

    def reduce_scatter(
        self, x: Tensor, op: str = "sum", counts: Sequence[int] | None = None
    ) -> Tensor:
        assert op == "sum"
        total = combine_in_tree(self._exchange("reduce_scatter", x))
        rows = total.shape[0]
        if counts is not None:
            assert sum(counts) == rows
            return torch.split(total, list(counts))[self.rank].clone()
        return total[self.rank * rows // self.size : (self.rank + 1) * rows // self.size].clone()

    def all_to_all(self, x: Tensor, send: Sequence[int], recv: Sequence[int]) -> Tensor:
        assert sum(send) == x.shape[0]
        self.calls.append("all_to_all")
        everyone = self.meeting.exchange(self.rank, torch.split(x.clone(), list(send)))
        parts = [parts[self.rank] for parts in everyone]
        assert [part.shape[0] for part in parts] == list(recv)
        return torch.cat(parts)

    def split(self, color: int) -> ThreadComm:
        colors = self.meeting.exchange(self.rank, color)
        members = [rank for rank, each in enumerate(colors) if each == color]
        made = Meeting(len(members)) if members[0] == self.rank else None
        meetings = self.meeting.exchange(self.rank, made)
        return ThreadComm(meetings[members[0]], members.index(self.rank), len(members))


def run_ranks(size: int, body: Callable[..., Any], *args: Any) -> list[Any]:
    """Call body(tp, *args) once per rank; return results by rank, or raise the first error."""
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def work(rank: int) -> None:
        comm = cast(Communicator, ThreadComm(meeting, rank, size))
        tp = TensorParallel(comm, comm, CpuStream())
        try:
            results[rank] = body(tp, *args)
        except BaseException as error:  # raised again by the caller
            errors[rank] = error
            meeting.barrier.abort()
        finally:
            tp.stream.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
        assert not thread.is_alive(), "a rank hangs"
    own = [e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)]
    if own or any(errors):
        raise (own or [e for e in errors if e])[0]
    return results
