"""Loading: a plan's byte ranges of a checkpoint, straight into this rank's parameters."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atb_dist.device import Device
from atb_dist.errors import ConfigError
from atb_dist.weights.checkpoint import Checkpoint, TensorInfo
from atb_dist.weights.plan import Param, ShardingPlan, Slice

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SOURCE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
                 "BF16": torch.bfloat16}  # fmt: skip
WINDOW_BYTES = 4 << 20
# A row's part shorter than a page costs a system call for what the kernel reads anyway.
MIN_RUN_BYTES = 4096


@dataclass
class Loaded:
    """Parameters by name, and what it took: bytes copied out of files, seconds."""

    params: dict[str, Tensor]
    bytes_read: int = 0
    seconds: float = 0.0


def load_weights(
    plan: ShardingPlan, checkpoint: Checkpoint, device: Device, dtype: str, *, progress: bool
) -> Loaded:
    """Read this rank's share, checking the whole checkpoint first.

    dtype is "fp32", "bf16" or "fp16"; values of another type are rounded to nearest even, as torch
    does. Where types agree and memory is the host's, bytes go from the file into the parameter;
    else through a window of 4 MiB. Raises ShardingError or ConfigError as Checkpoint.check does,
    and when a file shrinks meanwhile.
    """
    checkpoint.check(plan)
    begin = time.perf_counter()
    loaded = Loaded({})
    with _Files() as files, _progress_bar(plan, checkpoint, progress) as advance:
        for param in plan.params:
            target = _allocate(param, TORCH_DTYPES[dtype], device)
            for part in param.slices:
                count = _read(files, checkpoint.tensors[part.source], part, target)
                loaded.bytes_read += count
                advance(count)
            loaded.params[param.name] = target
    device.synchronize()
    loaded.seconds = time.perf_counter() - begin
    return loaded


def _allocate(param: Param, dtype: torch.dtype, device: Device) -> Tensor:
    target = torch.empty(param.shape, dtype=dtype, device=device.torch_device)
    filled = sum(part.stop - part.start for part in param.slices)
    dim = param.slices[0].dim
    if filled < param.shape[dim]:  # rows of padded vocabulary
        target.narrow(dim, filled, param.shape[dim] - filled).zero_()
    return target


def _read(files: _Files, info: TensorInfo, part: Slice, target: Tensor) -> int:
    """Copy one slice from its file; return the bytes that were read."""
    count = part.stop - part.start
    place = target.narrow(part.dim, part.offset, count)
    item = SOURCE_DTYPES[info.dtype].itemsize
    direct = target.device.type == "cpu" and target.dtype == SOURCE_DTYPES[info.dtype]
    if part.dim == 0:
        row = item * (info.shape[1] if len(info.shape) == 2 else 1)
        return _read_run(files, info, info.offset + part.start * row, place, direct=direct)
    pitch = info.shape[1] * item
    if count * item >= MIN_RUN_BYTES and count < info.shape[1]:
        first = info.offset + part.start * item
        return sum(
            _read_run(files, info, first + i * pitch, row, direct=direct)
            for i, row in enumerate(place)
        )
    return _read_whole_rows(files, info, part, place)


def _read_run(files: _Files, info: TensorInfo, offset: int, place: Tensor, *, direct: bool) -> int:
    """Fill place, which is contiguous, with the bytes that follow offset."""
    if place.numel() == 0:
        return 0
    if direct:
        files.read(info, offset, _bytes_of(place))
        return place.nbytes
    dtype = SOURCE_DTYPES[info.dtype]
    flat = place.view(-1)
    step = WINDOW_BYTES // dtype.itemsize
    for first in range(0, flat.numel(), step):
        part = flat[first : first + step]
        window = files.window(dtype, part.numel())
        files.read(info, offset, _bytes_of(window))
        part.copy_(window)
        offset += window.nbytes
    return flat.numel() * dtype.itemsize


def _read_whole_rows(files: _Files, info: TensorInfo, part: Slice, place: Tensor) -> int:
    """Read rows whole, as many as the window holds, and copy this rank's columns out of them."""
    dtype = SOURCE_DTYPES[info.dtype]
    width = info.shape[1]
    rows = max(1, WINDOW_BYTES // (width * dtype.itemsize))
    for first in range(0, info.shape[0], rows):
        count = min(rows, info.shape[0] - first)
        window = files.window(dtype, count * width)
        files.read(info, info.offset + first * width * dtype.itemsize, _bytes_of(window))
        columns = window.view(count, width)[:, part.start : part.stop]
        place[first : first + count].copy_(columns)
    return info.num_bytes


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous host tensor."""
    view: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
    return view


class _Files:
    """Open files by path, and one window for what can't be read in place."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}
        self._stack = ExitStack()
        self._window = torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def window(self, dtype: torch.dtype, count: int) -> Tensor:
        """Return memory for count elements, valid until the next call."""
        if self._window.nbytes < count * dtype.itemsize:
            self._window = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
        return self._window[: count * dtype.itemsize].view(dtype)

    def read(self, info: TensorInfo, offset: int, memory: memoryview) -> None:
        """Fill memory from offset on."""
        descriptor = self._descriptor(info.file)
        while memory:
            count = os.preadv(descriptor, [memory], offset)
            if count == 0:
                raise ConfigError(f"{info.file} ended at byte {offset}, inside {info.name}")
            memory, offset = memory[count:], offset + count

    def _descriptor(self, file: Path) -> int:
        if file not in self._open:
            self._open[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, self._open[file])
        return self._open[file]


@contextmanager
def _progress_bar(plan: ShardingPlan, checkpoint: Checkpoint, show: bool) -> Iterator[Any]:
    """Give a function that moves a bar on by bytes; nothing is drawn where stderr is a file."""
    from tqdm import tqdm

    total = sum(
        checkpoint.tensors[part.source].num_bytes
        * (part.stop - part.start)
        // max(1, checkpoint.tensors[part.source].shape[part.dim])
        for param in plan.params
        for part in param.slices
    )
    hidden = not (show and sys.stderr.isatty())
    with tqdm(total=total, unit="B", unit_scale=True, desc="weights", disable=hidden) as bar:
        yield bar.update
