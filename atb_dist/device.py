"""Devices, streams and events. The only file that touches torch_npu or torch.cuda.

A stream keeps the order of what is given to it. On CPUs that is one worker thread; on NPUs and
GPUs a device stream. NPU code here was not measured on hardware.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import torch

from atb_dist.errors import ConfigError

R = TypeVar("R")


class Event(Protocol):
    """The end of one piece of work on a stream."""

    def wait(self) -> Any:
        """Order what follows after that work. CPU: block, return its result, re-raise its error."""


class Stream(Protocol):
    """Work in order, beside the caller's own.

    busy_s     seconds that given functions ran
    exposed_s  seconds that the caller stood still for them: inline runs and waits
    On NPUs and GPUs both count host time only; device time comes from the profiler.
    """

    busy_s: float
    exposed_s: float

    def run(self, fn: Callable[..., R], /, *args: Any) -> R:
        """Run fn after everything submitted before, and return its result."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Event:
        """Start fn after what the caller has issued so far; do not wait for it."""

    def close(self) -> None:
        """Finish what was submitted and end the stream."""


class CpuEvent:
    """Result, or error, of a function that a CPU stream runs."""

    def __init__(self, stream: CpuStream, fn: Callable[..., Any], args: tuple[Any, ...]):
        self._stream = stream
        self._fn = fn
        self._args = args
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def execute(self) -> None:
        """Run the function here and keep what it returns or raises."""
        begin = time.perf_counter()
        try:
            self._result = self._fn(*self._args)
        except BaseException as error:  # handed to whoever waits
            self._error = error
        self._stream.busy_s += time.perf_counter() - begin
        self._done.set()

    def is_done(self) -> bool:
        """Whether wait would return at once."""
        return self._done.is_set()

    def wait(self) -> Any:
        """Block until the function has ended; return its result or raise its error."""
        begin = time.perf_counter()
        self._done.wait()
        self._stream.exposed_s += time.perf_counter() - begin
        if self._error is not None:
            raise self._error
        return self._result


class CpuStream:
    """One worker thread, started by the first submit; run is inline while nothing is in flight.

    What is submitted carries its own deadlines (a collective has one), so waiting here has none.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.exposed_s = 0.0
        self._jobs: queue.SimpleQueue[CpuEvent | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._last: CpuEvent | None = None

    def run(self, fn: Callable[..., R], /, *args: Any) -> R:
        """Run fn in the caller's thread once nothing is in flight."""
        if self._last is not None and not self._last.is_done():
            result: R = self.submit(fn, *args).wait()
            return result
        begin = time.perf_counter()
        try:
            return fn(*args)
        finally:
            spent = time.perf_counter() - begin
            self.busy_s += spent
            self.exposed_s += spent

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> CpuEvent:
        """Queue fn for the worker thread."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="atb_dist-comm", daemon=True)
            self._worker.start()
        self._last = CpuEvent(self, fn, args)
        self._jobs.put(self._last)
        return self._last

    def close(self) -> None:
        """Let the worker finish its queue and end."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join()
            self._worker = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.execute()


class DeviceEvent:
    """A recorded torch_npu / torch.cuda event, with what its function returned on the host."""

    def __init__(self, backend: ModuleType, event: Any, result: Any):
        self._backend = backend
        self._event = event
        self._result = result

    def wait(self) -> Any:
        """Make the current device stream wait; the host goes on."""
        self._backend.current_stream().wait_event(self._event)
        return self._result


class DeviceStream:
    """A side stream of an NPU or GPU. Not measured on hardware."""

    def __init__(self, backend: ModuleType):
        self.busy_s = 0.0
        self.exposed_s = 0.0
        self._backend = backend
        self._stream = backend.Stream()

    def run(self, fn: Callable[..., R], /, *args: Any) -> R:
        """Run fn on the side stream and order the current stream after it."""
        result: R = self.submit(fn, *args).wait()
        return result

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> DeviceEvent:
        """Issue fn on the side stream after what the current stream has issued."""
        begin = time.perf_counter()
        self._stream.wait_stream(self._backend.current_stream())
        with self._backend.stream(self._stream):
            result = fn(*args)
            event = self._stream.record_event()
        for tensor in (a for a in args if isinstance(a, torch.Tensor)):
            tensor.record_stream(self._stream)  # else the allocator may reuse it too early
        self.busy_s += time.perf_counter() - begin
        return DeviceEvent(self._backend, event, result)

    def close(self) -> None:
        """Wait for the device to finish what was issued."""
        self._stream.synchronize()


@dataclass(frozen=True)
class Device:
    """Where a rank computes. kind: "cpu", "npu" or "cuda"; index counts visible devices."""

    kind: str
    index: int = 0

    @classmethod
    def open(cls, local_rank: int, kind: str = "auto") -> Device:
        """Select the device of this rank: npu, else cuda, else cpu, unless kind says which.

        Raises ConfigError when the kind is absent or has fewer devices than ranks.
        """
        if kind == "auto":
            kind = next((k for k in ("npu", "cuda") if count_devices(k) > 0), "cpu")
        if kind == "cpu":
            return cls("cpu")
        count = count_devices(kind)
        if local_rank >= count:
            raise ConfigError(
                f"local rank {local_rank} needs {kind}:{local_rank}, but {count} are visible; "
                f"start at most {count} ranks on this host"
            )
        backend_module(kind).set_device(local_rank)
        return cls(kind, local_rank)

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device("cpu") if self.kind == "cpu" else torch.device(self.kind, self.index)

    def stream(self) -> Stream:
        """Return a new stream beside the current one."""
        return CpuStream() if self.kind == "cpu" else DeviceStream(backend_module(self.kind))

    def synchronize(self) -> None:
        """Wait until the device has finished all that was issued."""
        if self.kind != "cpu":
            backend_module(self.kind).synchronize()

    def free_memory(self) -> int:
        """Bytes that could be allocated now: on CPUs within the cgroup's limit."""
        if self.kind != "cpu":
            free, _total = backend_module(self.kind).mem_get_info(self.index)
            return int(free)
        return min(_host_available(), _cgroup_available())


def backend_module(kind: str) -> ModuleType:
    """Return torch.npu (after importing torch_npu) or torch.cuda.

    Raises ConfigError when torch_npu is not installed.
    """
    if kind == "cuda":
        return torch.cuda
    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"NPUs need torch_npu: pip install 'atb_dist[npu]' ({error})") from error
    module: ModuleType = getattr(torch, "npu")  # noqa: B009  (torch_npu adds it)
    return module


def count_devices(kind: str) -> int:
    """How many devices of a kind are visible; 0 when its software is not installed."""
    try:
        module = backend_module(kind)
    except ConfigError:
        return 0
    return int(module.device_count()) if module.is_available() else 0


def _host_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_available() -> int:
    """Room below this process's cgroup v2 limit; a huge number where there is none."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = int((root / "memory.max").read_text())
        return max(0, limit - int((root / "memory.current").read_text()))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return 1 << 62
