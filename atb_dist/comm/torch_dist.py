"""TorchDistComm: torch.distributed's gloo, hccl and nccl behind the Communicator protocol.

Process groups are made directly on a store, so a default group that the user has made, or will
make, is left alone. On hosts waits poll, so that deaths, aborts and deadlines are noticed; on
devices they order streams, and the library's own time limit holds. Device back ends were not
measured on hardware.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import astuple
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d  # the process groups themselves, not the default one

from atb_dist.comm.base import Communicator
from atb_dist.comm.derived import DerivedVerbs
from atb_dist.comm.rank import RankInfo
from atb_dist.comm.watch import Peer, PeerWatch, WaitingThread
from atb_dist.errors import ConfigError, PeerFailure

GROUPS = {
    "gloo": ("torch.distributed", "ProcessGroupGloo"),
    "nccl": ("torch.distributed", "ProcessGroupNCCL"),
    "hccl": ("torch_npu._C._distributed_c10d", "ProcessGroupHCCL"),
}
REDUCE_OPS = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}
DEVICES = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}
FOREVER = timedelta(days=365)  # the library's limit where ours, or none, is to hold
_stores: dict[tuple[str, int], c10d.TCPStore] = {}
_num_opened: dict[str, int] = {}


def open(rank: RankInfo, backend: str, *, timeout_s: float) -> Communicator:
    """Join the job's ranks through a store on rank 0 or in torchrun's agent.

    Raises ConfigError when torch lacks the back end or the store's address is unknown, PeerFailure
    when a rank does not come.
    """
    group_class = _group_class(backend)
    try:
        store = _store(rank, timeout_s)
        number = _num_opened[rank.session] = _num_opened.get(rank.session, 0) + 1
        place = c10d.PrefixStore(f"atb_dist/{rank.session}/{number}", store)
        return TorchDistComm(group_class, backend, place, rank.rank, rank.size, timeout_s=timeout_s)
    except RuntimeError as error:
        if isinstance(error, PeerFailure):
            raise
        raise PeerFailure(
            f"rank {rank.rank} (pid {os.getpid()}) waited up to {timeout_s:g} s in connect "
            f"({backend}) for {rank.size} ranks: {' '.join(str(error).split())[:300]}"
        ) from error


def _group_class(backend: str) -> Any:
    module, name = GROUPS[backend]
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        extra = "torch_npu: pip install 'atb_dist[npu]'" if backend == "hccl" else "another torch"
        raise ConfigError(f"backend={backend} is not installed here; it needs {extra}") from error


def _store(rank: RankInfo, timeout_s: float) -> c10d.TCPStore:
    """Return this process's store at the job's address; one serves all communicators."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if rank.launcher in ("torchrun", "atb-dist") and host and port:
        key = (host, int(port))
        serve = rank.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if key not in _stores:
            _stores[key] = _tcp_store(host, int(port), timeout_s, serve=serve)
        return _stores[key]
    own = _stores.get((rank.session, 0))
    if own is None:
        own = _stores[rank.session, 0] = _store_of_session(rank, timeout_s)
    return own


def _store_of_session(rank: RankInfo, timeout_s: float) -> c10d.TCPStore:
    """Let rank 0 choose a port and tell the others over lcal or MPI."""
    if rank.num_nodes > 1:
        from atb_dist.comm import mpi

        teller = mpi.open(rank, timeout_s=timeout_s)
        host = socket.getfqdn()
    else:
        from atb_dist.comm import lcal

        teller = lcal.open(rank, timeout_s=timeout_s)
        host = "127.0.0.1"
    try:
        if rank.rank == 0:
            store = _tcp_store(host, 0, timeout_s, serve=True)
            teller.broadcast_object((host, store.port))
            return store
        address: tuple[str, int] | None = teller.broadcast_object(None)
        assert address is not None
        host, port = address
        return _tcp_store(host, port, timeout_s, serve=False)
    finally:
        teller.close()


def _tcp_store(host: str, port: int, timeout_s: float, *, serve: bool) -> c10d.TCPStore:
    return c10d.TCPStore(
        host, port, is_master=serve, timeout=timedelta(seconds=timeout_s), wait_for_workers=False,
        multi_tenant=True,
    )  # fmt: skip


class TorchDistComm(DerivedVerbs):
    """A Communicator over one process group. Sums follow the library's order: not deterministic."""

    def __init__(
        self, group_class: Any, backend: str, store: Any, rank: int, size: int, *,
        timeout_s: float, label: int | None = None,
    ):  # fmt: skip
        """Make the group through the store. label: what errors call this rank, None for rank."""
        self.name = backend
        self._class = group_class
        self._store = store
        self._timeout_s = timeout_s
        self._num_splits = 0
        store.set(
            f"peer{rank}",
            json.dumps(astuple(Peer.of_this_process(rank if label is None else label))),
        )
        peers = [Peer(*json.loads(store.get(f"peer{r}"))) for r in range(size)]
        self._watch = PeerWatch(rank, peers, post=self._post, read=self._read, timeout_s=timeout_s)
        super().__init__(rank, size, DEVICES[backend])
        self._group: Any = self._make_group(timedelta(seconds=timeout_s))

    def _make_group(self, limit: timedelta) -> Any:
        if self.name == "gloo":
            options = self._class._Options()
            options._timeout = limit
            options._devices = [self._gloo_device()]
            group = self._class(self._store, self.rank, self.size, options)
            self._wait_for_joined(limit)
            return group
        options = self._class.Options()
        options._timeout = limit
        return self._class(self._store, self.rank, self.size, options)

    def _wait_for_joined(self, limit: timedelta) -> None:
        """Stay until all ranks are connected: one that closes at once would reset the slowest's."""
        self._store.set(f"joined{self.rank}", "")
        self._store.wait([f"joined{r}" for r in range(self.size)], limit)

    def _gloo_device(self) -> Any:
        """Listen where the store can be reached from.

        gloo's own choice is the address of this host's name, which many hosts map to 127.0.1.1.
        """
        if os.environ.get("GLOO_SOCKET_IFNAME"):
            return self._class.create_default_device()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((self._store._underlying_non_prefix_store.host, 9))  # sends nothing
            except OSError:
                return self._class.create_default_device()
            return self._class.create_device(hostname=probe.getsockname()[0])

    def _post(self, reason: str) -> None:
        self._store.set("abort", reason)

    def _read(self) -> str | None:
        return self._store.get("abort").decode() if self._store.check(["abort"]) else None

    def _reduce(self, verb: str, x: Tensor, op: str) -> None:
        if x.numel() == 0:
            return self.barrier()
        options = _limited(c10d.AllreduceOptions())
        options.reduceOp = getattr(c10d.ReduceOp, REDUCE_OPS[op])
        return self._wait(verb, x, self._group.allreduce([x], options))

    def _gather(self, verb: str, x: Tensor, rows: Sequence[int]) -> Tensor:
        """Gather rows padded to one count, then cut: the library wants equal sizes."""
        padded = x
        if x.shape[0] < max(rows):
            padded = x.new_zeros((max(rows), *x.shape[1:]))
            padded[: x.shape[0]] = x
        if padded.numel() == 0:
            self.barrier()
            return x.new_empty((sum(rows), *x.shape[1:]))
        parts = [torch.empty_like(padded) for _ in rows]
        options = _limited(c10d.AllgatherOptions())
        self._wait(verb, x, self._group.allgather([parts], [padded], options))
        return torch.cat([part[:n] for part, n in zip(parts, rows, strict=True)])

    def _broadcast(self, verb: str, x: Tensor, src: int, *, idle: bool = False) -> None:
        if x.numel() == 0:
            return self.barrier()
        options = _limited(c10d.BroadcastOptions())
        options.rootRank, options.rootTensor = src, 0
        return self._wait(verb, x, self._group.broadcast([x], options), idle=idle)

    def _exchange(self, x: Tensor, out: Tensor, gives: list[int], takes: list[int]) -> None:
        options = _limited(c10d.AllToAllOptions())
        work = self._group.alltoall_base(out, x, takes, gives, options)
        self._wait("all_to_all", x, work)

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst, which must call recv with the same shape and dtype."""
        self._check_other("send", x, dst)
        if x.numel():
            self._wait("send", x, self._message(self._group.send([x], dst, 0)))

    def recv(self, x: Tensor, src: int) -> Tensor:
        """Fill x from rank src's send; return x."""
        self._check_other("recv", x, src)
        if x.numel():
            self._wait("recv", x, self._message(self._group.recv([x], src, 0)))
        return x

    def _message(self, work: Any) -> Any:
        return WaitingThread(work) if self.name == "gloo" else work

    def split(self, color: int) -> Communicator:
        """Return a communicator of the ranks that passed the same color, in rank order."""
        colors = self.all_gather_object(int(color))
        self._num_splits += 1
        members = [r for r, each in enumerate(colors) if each == color]
        place = c10d.PrefixStore(f"split{self._num_splits}/{color}", self._store)
        return TorchDistComm(
            self._class, self.name, place, members.index(self.rank), len(members),
            timeout_s=self._timeout_s, label=self._watch.label,
        )  # fmt: skip

    def abort(self, reason: str) -> None:
        """Wake every waiting peer and make it raise PeerFailure with this rank and reason."""
        self._watch.abort(reason)

    def close(self) -> None:
        """Release everything; later calls raise. Never waits for peers, safe to call twice."""
        self._closed = True
        self._group = None

    def _wait(self, verb: str, x: Tensor, work: Any, *, idle: bool = False) -> None:
        if self._device == "cpu":
            self._watch.wait(verb, x, work, idle=idle)
        else:
            work.wait()


def _limited(options: Any) -> Any:
    """Switch the library's own limit off: PeerWatch keeps ours, and an idle wait has none."""
    options.timeout = FOREVER
    return options
