"""Communication between ranks: one protocol, several back ends, chosen by `connect`."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from atb_dist.config import BACKENDS
from atb_dist.errors import ConfigError

if TYPE_CHECKING:
    from atb_dist.comm.base import Communicator, TensorParallel
    from atb_dist.comm.rank import RankInfo
    from atb_dist.device import Device

_HOMES = {
    "Communicator": "atb_dist.comm.base",
    "TensorParallel": "atb_dist.comm.base",
    "RankInfo": "atb_dist.comm.rank",
}
__all__ = ["Communicator", "RankInfo", "TensorParallel", "connect", "connect_tensor_parallel"]

TIMEOUT_VARIABLE = "ATB_DIST_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 300.0
DEVICE_BACKENDS = {"npu": "hccl", "cuda": "nccl"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atb_dist.comm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def connect(
    rank: RankInfo, backend: str = "auto", *, timeout_s: float | None = None
) -> Communicator:
    """Join the job's other ranks → a communicator of all of them.

    backend: "local", "lcal", "gloo", "mpi", "lcal+gloo", "lcal+mpi", "hccl" or "nccl"; "auto" takes
    local for one rank, lcal within a host, across hosts lcal inside each and gloo between them.
    timeout_s limits every wait, this one included; None takes
    ATB_DIST_TIMEOUT_S, else 300. Collective: all ranks pass the same.

    Raises ConfigError for a back end that is unknown or not installed, PeerFailure when a rank
    does not come, or runs another version.
    """
    from atb_dist import __version__

    comm = _open(rank, choose_backend(rank, backend), resolve_timeout(timeout_s))
    versions = comm.all_gather_object(__version__)
    if len(set(versions)) > 1:
        comm.close()
        mixed = ", ".join(f"rank {r}: {version}" for r, version in enumerate(versions))
        raise ConfigError(f"ranks run different versions of atb_dist ({mixed}); install one")
    return comm


def connect_tensor_parallel(
    rank: RankInfo,
    backend: str = "auto",
    *,
    device: Device | None = None,
    timeout_s: float | None = None,
) -> TensorParallel:
    """Join the job's other ranks → communicators for tensors and for objects, and a stream.

    Tensors of NPUs and GPUs travel by HCCL and NCCL under "auto"; objects always through the host.
    Raises as `connect` does.
    """
    from atb_dist.comm.base import TensorParallel
    from atb_dist.device import Device

    place = device or Device("cpu")
    on_host = choose_backend(rank, backend)
    if on_host in DEVICE_BACKENDS.values():
        on_host = choose_backend(rank, "auto")
    control = connect(rank, on_host, timeout_s=timeout_s)
    data_backend = on_host
    if place.kind != "cpu" and backend == "auto" and rank.size > 1:
        data_backend = DEVICE_BACKENDS[place.kind]
    elif backend in DEVICE_BACKENDS.values():
        data_backend = backend
    if data_backend == on_host:
        data = control.split(0)
    else:
        data = _open(rank, data_backend, resolve_timeout(timeout_s))
    return TensorParallel(data, control, place.stream())


def choose_backend(rank: RankInfo, backend: str) -> str:
    """Return the back end that "auto" stands for, or the one named.

    Raises ConfigError for an unknown one.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend={backend} is unknown; use {', '.join(BACKENDS)}")
    if backend != "auto":
        return backend
    if rank.size == 1:
        return "local"
    return "lcal" if rank.num_nodes == 1 else "lcal+gloo"


def resolve_timeout(timeout_s: float | None) -> float:
    """Return the limit of every wait in seconds: given, from the environment, or 300.

    Raises ConfigError unless it is a number > 0.
    """
    if timeout_s is None:
        text = os.environ.get(TIMEOUT_VARIABLE, str(DEFAULT_TIMEOUT_S))
        try:
            timeout_s = float(text)
        except ValueError:
            raise ConfigError(f"{TIMEOUT_VARIABLE}={text} is not a number of seconds") from None
    if not 0 < timeout_s < float("inf"):
        raise ConfigError(f"a time limit of {timeout_s} s is out of range; use seconds > 0")
    return timeout_s


def _open(rank: RankInfo, backend: str, timeout_s: float) -> Communicator:
    if "+" in backend:
        from atb_dist.comm import hierarchical

        outer = _open(rank, backend.partition("+")[2], timeout_s)
        return hierarchical.join(outer, rank, timeout_s=timeout_s)
    if backend in ("gloo", "hccl", "nccl"):
        module, extra = importlib.import_module("atb_dist.comm.torch_dist"), [backend]
    else:
        module, extra = importlib.import_module(f"atb_dist.comm.{backend}"), []
    comm: Communicator = module.open(rank, *extra, timeout_s=timeout_s)
    return comm
