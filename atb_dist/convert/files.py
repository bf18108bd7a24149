"""Making the empty files of a layout, in full length, and finding them again. No torch."""

from __future__ import annotations

import os
from pathlib import Path

from atb_dist.errors import AtbDistError
from atb_dist.weights.manifest import Manifest
from atb_dist.weights.safetensors_file import header, place, read_header
from atb_dist.weights.stored import TensorInfo

Placed = dict[str, dict[str, TensorInfo]]  # by file, by stored tensor


def create_files(manifest: Manifest, directory: Path, *, again: bool) -> Placed:
    """Make the files of a layout, without data; again: keep those that an earlier run made.

    Returns where each stored tensor lies. Raises AtbDistError when the disk refuses.
    """
    found: Placed = {}
    for name, entries in manifest.files.items():
        file = directory / name
        if not (again and file.exists()):
            placed = place(file, [(e.name, e.dtype, e.shape) for e in entries])
            metadata = {"format": "pt"}
            if manifest.kind == "ranks":
                metadata["atb_dist"] = f"{manifest.family} {name}"
            _create(file, header(placed, metadata), sum(info.num_bytes for info in placed))
        found[name] = read_header(file)
    return found


def _create(file: Path, head: bytes, data_bytes: int) -> None:
    """Write the header last, so that a file with a header has its full length."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, len(head) + data_bytes)
            os.pwrite(descriptor, head, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise AtbDistError(f"{file} can't be made: {error.strerror}") from error
