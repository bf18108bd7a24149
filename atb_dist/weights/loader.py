"""Loading: a plan's byte ranges of a checkpoint, straight into this rank's parameters."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atb_dist.device import Device
from atb_dist.weights.checkpoint import Checkpoint
from atb_dist.weights.mapping import SOURCE_DTYPES, TORCH_DTYPES, map_rank
from atb_dist.weights.plan import Param, ShardingPlan, Slice
from atb_dist.weights.reader import WINDOW_BYTES, Bits, Reader
from atb_dist.weights.stored import SourceTensor


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
    does. A rank's own file is mapped, not read. Else, where types agree and memory is the host's,
    bytes go from the files into the parameter, or through a window of 4 MiB. Raises ShardingError
    or ConfigError as Checkpoint.check does, and when a file shrinks meanwhile.
    """
    checkpoint.check(plan)
    begin = time.perf_counter()
    mapped = map_rank(plan, checkpoint, dtype) if device.kind == "cpu" else None
    if mapped is not None:
        return Loaded(mapped, 0, time.perf_counter() - begin)
    loaded = Loaded({})
    with Reader() as reader, _progress_bar(plan, checkpoint, progress) as advance:
        for param in plan.params:
            target = _allocate(param, TORCH_DTYPES[dtype], device)
            for part in param.slices:
                count = _read(reader, checkpoint.tensors[part.source], part, target)
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


def _read(reader: Reader, tensor: SourceTensor, part: Slice, target: Tensor) -> int:
    """Copy one slice from its files; return the bytes that were read."""
    whole = tensor.matrix_shape
    rows, columns = slice(0, whole[0]), slice(0, whole[1])
    if part.dim == 0:
        rows = slice(part.start, part.stop)
    else:
        columns = slice(part.start, part.stop)
    place = target.narrow(part.dim, part.offset, part.stop - part.start)
    place = place if place.dim() == 2 else place.unsqueeze(-1)
    dtype = SOURCE_DTYPES[tensor.dtype]
    if target.device.type == "cpu" and target.dtype == dtype:
        return reader.read(tensor, rows, columns, _bits(place))
    step = max(1, WINDOW_BYTES // max(1, place.shape[1] * dtype.itemsize))
    step = -(-step // tensor.row_unit) * tensor.row_unit
    count = 0
    for first in range(0, len(place), step):
        chunk = place[first : first + step]
        window = torch.empty(chunk.shape, dtype=dtype)
        here = slice(rows.start + first, rows.start + first + len(chunk))
        count += reader.read(tensor, here, columns, _bits(window))
        chunk.copy_(window)
    return count


def _bits(tensor: Tensor) -> Bits:
    """Return the memory of a host tensor [rows, columns] as unsigned integers."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    memory = tensor.view(integers).numpy()
    bits: Bits = memory.view(f"u{tensor.itemsize}")
    return bits


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
