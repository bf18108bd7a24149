"""The directory a conversion writes: checked before, beside until the end, renamed then."""

from __future__ import annotations

import os
from pathlib import Path

from atb_dist.errors import AtbDistError, ConfigError

SPARE_BYTES = 64 << 20  # for headers, the manifest, and what the file system needs itself


def partial_of(target: Path) -> Path:
    """Return where the files are until they are proven."""
    return target.with_name(target.name + ".partial")


def check_target(source: Path, target: Path, *, resume: bool) -> None:
    """Refuse a target that is there already, overlaps the source, or can't be written.

    Raises ConfigError.
    """
    real, origin = target.resolve(), source.resolve()
    if real == origin or origin in real.parents or real in origin.parents:
        raise ConfigError(f"{target} and {source} overlap; give a directory beside the source")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not empty; delete it or give another directory")
    parent = real.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        found = "is read-only" if parent.is_dir() else "does not exist"
        raise ConfigError(f"{target} can't be made: {parent} {found}")
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        raise ConfigError(f"{target} can't be made: {parent} is on a read-only file system")
    beside = partial_of(target)
    if beside.exists() and not resume:
        raise ConfigError(
            f"{beside} is left from a conversion that did not end; go on with --resume, or delete "
            "it"
        )


def check_room(target: Path, needed_bytes: int, sources: list[Path]) -> None:
    """Refuse to begin when the disk is too full.

    Of sparse sources only the part that has data is counted. Raises ConfigError.
    """
    statuses = [file.stat() for file in sources]
    whole = sum(s.st_size for s in statuses)
    filled = sum(min(s.st_size, s.st_blocks * 512) for s in statuses)
    needed = needed_bytes * filled // max(1, whole) + SPARE_BYTES
    beside = partial_of(target)
    there = sum(f.stat().st_blocks * 512 for f in beside.iterdir()) if beside.is_dir() else 0
    disk = os.statvfs(target.resolve().parent)
    free = disk.f_bavail * disk.f_frsize
    if needed - there > free:
        raise ConfigError(
            f"{target} needs {(needed - there) / 1e9:.2f} GB, its disk has {free / 1e9:.2f} GB "
            "free; make room or give a directory on another disk"
        )


def sync_directory(directory: Path) -> None:
    """Wait until the disk has all files of a directory and their names.

    Raises AtbDistError.
    """
    for place in (*directory.iterdir(), directory):
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AtbDistError(f"{place} can't be written to disk: {error.strerror}") from error


def finish(beside: Path, target: Path) -> None:
    """Give the finished directory its name, for good.

    Raises AtbDistError when another has taken the name meanwhile.
    """
    try:
        beside.rename(target)
    except OSError as error:
        raise AtbDistError(
            f"{beside} is whole and proven, but can't be renamed to {target}: {error.strerror}"
        ) from error
    parent = os.open(target.resolve().parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
