"""Reading boxes, rows × columns, of a checkpoint's tensors as raw bits. Imports no torch."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atb_dist.errors import ConfigError
from atb_dist.weights.stored import ITEM_BYTES, Part, SourceTensor, TensorInfo, matrix_shape

Bits = NDArray[np.unsignedinteger[Any]]
WINDOW_BYTES = 4 << 20
# A row's part shorter than a page costs a system call for what the kernel reads anyway.
MIN_RUN_BYTES = 4096


def bits_dtype(dtype: str) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the unsigned integer as wide as a file's type."""
    return np.dtype(f"u{ITEM_BYTES[dtype]}")


class Reader:
    """Open files by path, for any number of threads. Holes of sparse files are not read."""

    def __init__(self) -> None:
        self._open: dict[Path, tuple[int, bool]] = {}
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def read(self, tensor: SourceTensor, rows: slice, columns: slice, out: Bits) -> int:
        """Fill out [rows, columns] with bits of the tensor; return the bytes read from files.

        rows and columns have start and stop; rows are multiples of tensor.row_unit. Raises
        ConfigError when a file is shorter than its header said.
        """
        count = 0
        for part in tensor.parts:
            wanted = rows if part.dim == 0 else columns
            first, last = max(wanted.start, part.start), min(wanted.stop, part.stop)
            if first >= last:
                continue
            inside = slice(first - wanted.start, last - wanted.start)
            stored = first - part.start + part.offset
            if part.dim == 0:
                count += self._read_box(part, (stored, columns.start), out[inside])
            else:
                count += self._read_box(part, (rows.start, stored), out[:, inside])
        return count

    def _read_box(self, part: Part, corner: tuple[int, int], place: Bits) -> int:
        """Fill place from the stored tensor's element `corner` on."""
        if place.size == 0:
            return 0
        if part.pairs:
            scratch = np.empty(place.shape, place.dtype)
            count = self._read_stored(part.stored, corner, scratch)
            halves_from_pairs(scratch, place, part.pairs)
            return count
        return self._read_stored(part.stored, corner, place)

    def _read_stored(self, info: TensorInfo, corner: tuple[int, int], place: Bits) -> int:
        width = matrix_shape(info.shape)[1]
        item = place.dtype.itemsize
        first = info.offset + (corner[0] * width + corner[1]) * item
        count, run = place.shape
        if run == width:
            if place.flags.c_contiguous:
                self.fill(info, first, place)
                return place.nbytes
            return self._read_whole_rows(info, (corner[0], 0), place)
        if run * item >= MIN_RUN_BYTES and place.strides[1] == item:
            for i in range(count):
                self.fill(info, first + i * width * item, place[i])
            return place.nbytes
        return self._read_whole_rows(info, corner, place)

    def _read_whole_rows(self, info: TensorInfo, corner: tuple[int, int], place: Bits) -> int:
        """Read rows whole, as many as a window holds, and copy the columns out of them."""
        width, item = matrix_shape(info.shape)[1], place.dtype.itemsize
        step = max(1, WINDOW_BYTES // (width * item))
        window = np.empty((min(step, len(place)), width), place.dtype)
        for row in range(0, len(place), step):
            part = window[: min(step, len(place) - row)]
            self.fill(info, info.offset + (corner[0] + row) * width * item, part)
            place[row : row + len(part)] = part[:, corner[1] : corner[1] + place.shape[1]]
        return len(place) * width * item

    def fill(self, info: TensorInfo, offset: int, out: Bits) -> None:
        """Fill contiguous memory with the bytes of info's file that follow offset."""
        descriptor, sparse = self._descriptor(info.file)
        flat = out.reshape(-1).view(np.uint8)
        if sparse:
            flat.fill(0)
            _fill_from_extents(descriptor, info, offset, flat.data)
        else:
            _fill(descriptor, info, offset, flat.data)

    def is_sparse(self, file: Path) -> bool:
        """Whether the file has holes."""
        return self._descriptor(file)[1]

    def _descriptor(self, file: Path) -> tuple[int, bool]:
        found = self._open.get(file)
        if found is not None:
            return found
        with self._lock:
            if file not in self._open:
                try:
                    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise ConfigError(f"{file} can't be read: {error.strerror}") from error
                self._stack.callback(os.close, descriptor)
                status = os.fstat(descriptor)
                self._open[file] = descriptor, status.st_blocks * 512 < status.st_size * 3 // 4
            return self._open[file]


def _fill(descriptor: int, info: TensorInfo, offset: int, memory: memoryview) -> None:
    while memory:
        try:
            count = os.preadv(descriptor, [memory], offset)
        except OSError as error:
            raise ConfigError(f"{info.file} can't be read at {offset}: {error.strerror}") from error
        if count == 0:
            raise ConfigError(f"{info.file} ended at byte {offset}, inside {info.name}")
        memory, offset = memory[count:], offset + count


def _fill_from_extents(descriptor: int, info: TensorInfo, offset: int, memory: memoryview) -> None:
    """Read only what is not a hole; memory is zero already."""
    end, position = offset + len(memory), offset
    if os.fstat(descriptor).st_size < end:
        raise ConfigError(f"{info.file} ended before byte {end}, inside {info.name}")
    while position < end:
        try:
            data = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the file's end
                return
            raise
        hole = min(end, os.lseek(descriptor, data, os.SEEK_HOLE))
        if data < hole:
            _fill(descriptor, info, data, memory[data - offset : hole - offset])
        position = max(hole, data)


def halves_from_pairs(stored: Bits, out: Bits, head_rows: int) -> None:
    """Copy whole heads [H·E, C] from pair order into half order."""
    columns = stored.shape[1]
    pairs = stored.reshape(-1, head_rows // 2, 2, columns)
    out.reshape(-1, 2, head_rows // 2, columns)[:] = pairs.swapaxes(1, 2)


def pairs_from_halves(rows: Bits, head_rows: int) -> Bits:
    """Return whole heads [H·E, C] of half order in pair order."""
    halves = rows.reshape(-1, 2, head_rows // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)
