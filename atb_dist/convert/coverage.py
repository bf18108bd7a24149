"""Whether a layout holds every element of every source exactly once. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from atb_dist.errors import ConfigError
from atb_dist.weights.manifest import Manifest
from atb_dist.weights.plan import Slice


@dataclass(frozen=True)
class Coverage:
    """What was counted: whole tensors, stored tensors, and slices that repeat another file's."""

    sources: int
    stored: int
    replicas: int


def check_coverage(manifest: Manifest) -> Coverage:
    """Compare element ranges of all stored tensors of one name with the sources they hold.

    Replicas, the same range in several files, are allowed (norms, KV heads fewer than ranks).
    Raises ConfigError that names the tensor for a gap, a partial overlap, or nothing at all.
    """
    held: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    stored = 0
    for file, entries in manifest.files.items():
        names = [entry.name for entry in entries]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{file} would hold {twice} twice")
        stored += len(entries)
        for entry in entries:
            for part in entry.slices:
                held[entry.name, part.source].append(part)
    replicas = sum(
        _check_one(name, source, slices, manifest) for (name, source), slices in held.items()
    )
    lost = set(manifest.sources) - {source for _name, source in held}
    if lost:
        raise ConfigError(f"{min(lost)} is in no file ({len(lost)} such tensors)")
    return Coverage(len(manifest.sources), stored, replicas)


def _check_one(name: str, source: str, slices: list[Slice], manifest: Manifest) -> int:
    """Return how many slices repeat another."""
    dims = {part.dim for part in slices}
    shape = manifest.sources[source][1]
    length = shape[slices[0].dim] if shape else 1
    ranges = sorted({(part.start, part.stop) for part in slices})
    end = 0
    for start, stop in ranges:
        if start != end or len(dims) > 1:
            raise ConfigError(
                f"{name} holds {source} from {start} on, after {end} of {length}: elements are "
                f"{'lost' if start > end else 'held twice'}"
            )
        end = stop
    if end != length:
        raise ConfigError(f"{name} holds {source} up to {end} of {length}: elements are lost")
    return len(slices) - len(ranges)
