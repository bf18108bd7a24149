"""The header of a safetensors file: read and checked, or made. Imports no torch.

The file starts with the header's length, 8 bytes little-endian, then JSON, then the data
(format: github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from atb_dist.errors import ConfigError
from atb_dist.weights.stored import ITEM_BYTES, TensorInfo

MAX_HEADER_BYTES = 100 << 20  # the format's own limit
DATA_ALIGNMENT = 4096  # a page: files are mapped, and holes of copies stay holes


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors of one safetensors file.

    Raises ConfigError when anything lies outside the file, overlaps, or disagrees with its shape.
    """
    raw, size = _raw_header(file)
    try:
        entries: dict[str, Any] = json.loads(raw, object_pairs_hook=_without_duplicates)
        entries.pop("__metadata__", None)
        data = 8 + len(raw)
        found = {name: _entry(name, entry, file, data) for name, entry in entries.items()}
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file} has a broken safetensors header: {error!r}"[:300]) from error
    _check_places(file, size, found)
    return found


def _raw_header(file: Path) -> tuple[bytes, int]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ConfigError(
                    f"{file} is truncated or not a safetensors file: {size} bytes, header of "
                    f"{length}"
                )
            return stream.read(length), size
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _value in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the header names {twice} twice; the file is broken")
    return found


def _entry(name: str, entry: dict[str, Any], file: Path, data: int) -> TensorInfo:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ConfigError(f"{name} has sizes or offsets that are no whole numbers >= 0")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in ITEM_BYTES:
        raise ConfigError(f"{name} has the unknown type {entry['dtype']!r}")
    info = TensorInfo(name, entry["dtype"], shape, file, data + begin)
    if end - begin != info.num_bytes:
        raise ConfigError(
            f"{name} takes {end - begin} bytes, but {info.dtype} {list(shape)} needs "
            f"{info.num_bytes}"
        )
    return info


def _check_places(file: Path, size: int, tensors: dict[str, TensorInfo]) -> None:
    before: TensorInfo | None = None
    for info in sorted(tensors.values(), key=lambda t: (t.offset, t.num_bytes)):
        if info.offset + info.num_bytes > size:
            raise ConfigError(
                f"{file} is truncated: {info.name} ends at byte {info.offset + info.num_bytes}, "
                f"the file at {size}; fetch it again"
            )
        if before is not None and info.offset < before.offset + before.num_bytes:
            raise ConfigError(f"{file}: {before.name} and {info.name} overlap; the file is broken")
        before = info


def place(file: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[TensorInfo]:
    """Lay (name, dtype, shape) out one after the other; wide types first, so that all align.

    The offsets count from the start of the data: `header` says where that is.
    """
    placed: list[TensorInfo] = []
    end = 0
    for name, dtype, shape in sorted(tensors, key=lambda t: -ITEM_BYTES[t[1]]):
        placed.append(TensorInfo(name, dtype, shape, file, end))
        end += placed[-1].num_bytes
    return placed


def header(placed: Iterable[TensorInfo], metadata: dict[str, str]) -> bytes:
    """Return the bytes before the data, filled with spaces to whole pages."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    for info in placed:
        offsets = [info.offset, info.offset + info.num_bytes]
        entries[info.name] = {"dtype": info.dtype, "shape": info.shape, "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
