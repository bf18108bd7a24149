"""Moving windows of rows from a source's files to every file that holds some of them. No torch."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from atb_dist.convert.encoding import Encoding
from atb_dist.errors import AtbDistError
from atb_dist.weights.reader import Bits, Reader, bits_dtype, pairs_from_halves
from atb_dist.weights.stored import Part, SourceTensor, TensorInfo, matrix_shape

WINDOW_BYTES = 8 << 20
PAGE_BYTES = 4096


class Writer:
    """Files that exist in full length, written at any place by any number of threads.

    keep_holes leaves pages of zeros unwritten, so that they take no disk.
    """

    def __init__(self, files: list[Path], *, keep_holes: bool):
        self._keep_holes = keep_holes
        self._stack = ExitStack()
        self._open = {file: self._opened(file) for file in files}

    def _opened(self, file: Path) -> int:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def write(self, info: TensorInfo, row: int, rows: Bits) -> int:
        """Write whole rows of a stored tensor, from its row `row` on; return the bytes."""
        width = matrix_shape(info.shape)[1]
        assert rows.shape[1] == width, "a stored row is written whole"
        flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        offset = info.offset + row * width * rows.itemsize
        for first, last in self._filled(flat, offset):
            self._write(info.file, flat.data[first:last], offset + first)
        return len(flat)

    def _filled(self, flat: Bits, offset: int) -> list[tuple[int, int]]:
        """Return the runs to write: all, or those pages of the file that are not zero."""
        if not self._keep_holes:
            return [(0, len(flat))]
        head = min(len(flat), -offset % PAGE_BYTES)
        whole = (len(flat) - head) // PAGE_BYTES
        body = flat[head : head + whole * PAGE_BYTES].reshape(whole, PAGE_BYTES)
        used = np.flatnonzero(body.view(np.uint64).any(axis=1))
        runs = [(head + int(p) * PAGE_BYTES, head + int(p + 1) * PAGE_BYTES) for p in used]
        ends = [(0, head), (head + whole * PAGE_BYTES, len(flat))]
        return runs + [(a, b) for a, b in ends if flat[a:b].any()]

    def _write(self, file: Path, memory: memoryview, offset: int) -> None:
        while memory:
            try:
                count = os.pwrite(self._open[file], memory, offset)
            except OSError as error:
                raise AtbDistError(
                    f"{file} can't be written at byte {offset}: {error.strerror}; the source is "
                    "untouched, make room and go on with --resume"
                ) from error
            memory, offset = memory[count:], offset + count

    def sync(self) -> None:
        """Wait until the disk has everything."""
        for file, descriptor in self._open.items():
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise AtbDistError(f"{file} can't be written: {error.strerror}") from error


class Copier:
    """Copies windows of source tensors into the stored ones that hold their elements."""

    def __init__(self, reader: Reader, writer: Writer, encoding: Encoding):
        self._reader = reader
        self._writer = writer
        self._encoding = encoding
        self._parts: dict[str, list[Part]] = defaultdict(list)

    def add(self, source: str, part: Part) -> None:
        """Make known that a stored tensor holds some elements of `source`."""
        self._parts[source].append(part)

    def windows(self, tensor: SourceTensor) -> Iterator[slice]:
        """Yield runs of whole rows that together are the tensor."""
        names = self._encoding.names(tensor.name)
        pairs = [part.pairs for name in names for part in self._parts[name]]
        return windows(tensor, math.lcm(tensor.row_unit, *(p or 1 for p in pairs)))

    def copy(self, tensor: SourceTensor, rows: slice) -> tuple[int, int]:
        """Move one window; return the bytes read and written."""
        width = tensor.matrix_shape[1]
        window = np.empty((rows.stop - rows.start, width), bits_dtype(tensor.dtype))
        count = self._reader.read(tensor, rows, slice(0, width), window)
        written = 0
        for name, encoded in self._encoding.encode(tensor, window).items():
            for part in self._parts[name]:
                written += self._write(part, rows, encoded)
        return count, written

    def _write(self, part: Part, rows: slice, encoded: Bits) -> int:
        block, row = cut(part, rows, encoded)
        return self._writer.write(part.stored, row, block) if block.size else 0


def cut(part: Part, rows: slice, encoded: Bits) -> tuple[Bits, int]:
    """Return what a part holds of a window of rows, as it stores them, and at which row."""
    if part.dim == 1:
        block, row = encoded[:, part.start : part.stop], rows.start
    else:
        first, last = max(rows.start, part.start), min(rows.stop, part.stop)
        block = encoded[max(0, first - rows.start) : max(0, last - rows.start)]
        row = part.offset + first - part.start
    if part.pairs and block.size:
        block = pairs_from_halves(np.ascontiguousarray(block), part.pairs)
    return block, row


def windows(tensor: SourceTensor, unit: int) -> Iterator[slice]:
    """Cut rows into windows of about 8 MiB, multiples of unit rows."""
    height, width = tensor.matrix_shape
    step = max(1, WINDOW_BYTES // max(1, width * bits_dtype(tensor.dtype).itemsize))
    step = -(-step // unit) * unit
    for first in range(0, height, step):
        yield slice(first, min(height, first + step))


def run_all(calls: Iterator[Callable[[], None]], jobs: int) -> None:
    """Run calls on `jobs` threads, few ahead; the first error ends all and is raised."""
    with ThreadPoolExecutor(jobs) as pool:
        pending: set[Future[None]] = set()
        try:
            for call in calls:
                if len(pending) >= 4 * jobs:
                    done, pending = wait(pending, return_when="FIRST_COMPLETED")
                    for future in done:
                        future.result()
                pending.add(pool.submit(call))
            done, pending = wait(pending, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            for future in pending:
                future.cancel()
