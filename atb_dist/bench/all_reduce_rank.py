"""One rank of `bench all-reduce`: times all-reduces of one back end, checks them, prints JSON.

The peers are called raw (torch.distributed, mpi4py), so that no layer of ours slows them. The time
of an iteration is that of its slowest rank; iterations follow each other as in decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WARMUP = 5
MEETINGS = 2000
STREAMED_BYTES = 64 << 20  # between two all-reduces, as in a model: no cache holds it


def main() -> None:
    """Measure every size; rank 0 prints floors and {"bytes": {"median_us", "best_us", "right"}}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=sorted(GROUPS), required=True)
    parser.add_argument("--sizes", required=True, help="bytes, comma-separated")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--in-situ", action="store_true")
    parser.add_argument("--rewrite", action="store_true")
    args = parser.parse_args()
    group = GROUPS[args.backend](args.dtype)
    if group.size <= (os.cpu_count() or 1):
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[group.rank % len(cpus)]})
    between = streamed_matmul() if args.in_situ else None
    result: dict[Any, Any] = group.floors()
    for size in (int(text) for text in args.sizes.split(",")):
        result[size] = measure(group, size, args.seconds, between, args.rewrite)
    if group.rank == 0:
        print(json.dumps(result), flush=True)
    group.close()


def measure(
    group: Any, size: int, seconds: float, between: Callable[[], None] | None, rewrite: bool
) -> dict[str, Any]:
    """Time as many iterations as fit into `seconds`, the same number on every rank."""
    reduce_ = group.prepare(size)
    fill = group.value.fill_ if hasattr(group.value, "fill_") else group.value.fill

    def pause() -> None:
        if between is not None:
            between()
        if rewrite or between is not None:
            fill(0)

    for _ in range(WARMUP):
        reduce_()
    begin = time.perf_counter()
    for _ in range(WARMUP):
        pause()
        reduce_()
    each = (time.perf_counter() - begin) / WARMUP
    count = int(group.maximum(np.array([max(10.0, min(5000.0, seconds / each))]))[0])
    times = np.empty(count)
    for i in range(count):
        pause()
        start = time.perf_counter()
        reduce_()
        times[i] = time.perf_counter() - start
    slowest = group.maximum(times) * 1e6
    return {
        "median_us": float(np.median(slowest)),
        "best_us": float(slowest.min()),
        "right": group.is_right(),
    }


def streamed_matmul() -> Callable[[], None]:
    """Return a function that multiplies by the next 1 MiB of a buffer that no cache holds."""
    weights = np.ones((STREAMED_BYTES >> 20, 256, 1024), dtype=np.float32)
    x = np.ones(1024, dtype=np.float32)
    step = 0

    def multiply() -> None:
        nonlocal step
        step = (step + 1) % len(weights)
        np.dot(weights[step], x)

    return multiply


class TorchGroup:
    """Ranks under a torch-style launcher. Integers small enough to be exact in any dtype."""

    def __init__(self, dtype: str):
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self.torch = torch
        self.distributed = distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.dtype = getattr(torch, dtype)
        self.value: Any = None

    def floors(self) -> dict[str, float]:
        """Return what bounds this back end, by name."""
        return {}

    def prepare(self, size: int) -> Callable[[], Any]:
        """Return the all-reduce of `size` bytes, in place on a tensor of zeros."""
        self.value = self.allocate(size)
        return self.bind(self.value)

    def allocate(self, size: int) -> Any:
        """Return zeros in ordinary memory."""
        return self.torch.zeros(max(1, size // self.dtype.itemsize), dtype=self.dtype)

    def bind(self, value: Any) -> Callable[[], Any]:
        """Return the call that is timed."""
        return lambda: self.distributed.all_reduce(value)

    def is_right(self) -> bool:
        """Whether the ranks' numbers add up, everywhere, in every element."""
        reduce_ = self.bind(self.value)
        self.value.fill_(self.rank + 1)
        reduce_()
        wrong = float((self.value.float() != self.size * (self.size + 1) / 2).any())
        return not self.maximum(np.array([wrong]))[0]

    def maximum(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the elementwise maximum over ranks."""
        tensor = self.torch.from_numpy(np.ascontiguousarray(values))
        self.distributed.all_reduce(tensor, op=self.distributed.ReduceOp.MAX)
        result: np.ndarray[Any, Any] = tensor.numpy()
        return result

    def close(self) -> None:
        """Leave the group."""
        self.distributed.destroy_process_group()


class LcalGroup(TorchGroup):
    """lcal, with gloo only for gathering the times."""

    def __init__(self, dtype: str):
        super().__init__(dtype)
        from atb_dist.comm import RankInfo, connect

        self.comm: Any = connect(RankInfo.from_env(), "lcal")

    def floors(self) -> dict[str, float]:
        """Return the time of one phase, in µs."""
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            self.comm.native.barriers(MEETINGS)
            times.append((time.perf_counter() - begin) / MEETINGS * 1e6)
        return {"meet_us": float(np.median(times))}

    def bind(self, value: Any) -> Callable[[], Any]:
        """Return lcal's all-reduce of the tensor."""
        return lambda: self.comm.all_reduce(value)

    def close(self) -> None:
        """Leave both groups."""
        self.comm.close()
        super().close()


class LcalEmptyGroup(LcalGroup):
    """lcal on tensors that live in the shared segment."""

    def allocate(self, size: int) -> Any:
        """Return zeros in the segment."""
        return self.comm.empty([max(1, size // self.dtype.itemsize)], self.dtype).zero_()


class AddGroup(TorchGroup):
    """A floor: each rank adds a tensor of that size to another, without any peer."""

    def bind(self, value: Any) -> Callable[[], Any]:
        """Return a += b of the size."""
        other = self.torch.ones_like(value)
        return lambda: value.add_(other)

    def is_right(self) -> bool:
        """Nothing is exchanged, so nothing can be wrong."""
        return True


class CopyGroup(AddGroup):
    """A floor: each rank copies a tensor of that size, without any peer."""

    def bind(self, value: Any) -> Callable[[], Any]:
        """Return b = a of the size."""
        other = self.torch.ones_like(value)
        return lambda: value.copy_(other)


class MpiGroup:
    """Ranks under mpiexec, through mpi4py and numpy: no torch in the process."""

    def __init__(self, dtype: str):
        from mpi4py import MPI

        if dtype not in ("float32", "float64"):
            raise SystemExit(f"mpi4py has no {dtype}; use float32")
        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.dtype = np.dtype(dtype)
        self.value = np.zeros(1)

    def floors(self) -> dict[str, float]:
        """Return nothing: what bounds lcal is measured with lcal."""
        return {}

    def prepare(self, size: int) -> Callable[[], Any]:
        """Return the all-reduce of `size` bytes, in place on an array of zeros."""
        self.value = np.zeros(max(1, size // self.dtype.itemsize), dtype=self.dtype)
        value, comm, in_place = self.value, self.comm, self.mpi.IN_PLACE
        return lambda: comm.Allreduce(in_place, value)

    def is_right(self) -> bool:
        """Whether the ranks' numbers add up, everywhere, in every element."""
        self.value.fill(self.rank + 1)
        self.comm.Allreduce(self.mpi.IN_PLACE, self.value)
        wrong = float((self.value != self.size * (self.size + 1) / 2).any())
        return not self.maximum(np.array([wrong]))[0]

    def maximum(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the elementwise maximum over ranks."""
        result = np.empty_like(values)
        self.comm.Allreduce(np.ascontiguousarray(values), result, op=self.mpi.MAX)
        return result

    def close(self) -> None:
        """Nothing to leave: mpi4py finalises at exit."""
        self.comm.Barrier()


GROUPS: dict[str, Callable[[str], Any]] = {
    "lcal": LcalGroup,
    "lcal-empty": LcalEmptyGroup,
    "gloo": TorchGroup,
    "mpi": MpiGroup,
    "copy": CopyGroup,
    "add": AddGroup,
}

if __name__ == "__main__":
    main()
