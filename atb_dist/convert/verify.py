"""Checking a converted directory at any time, alone or against the checkpoint it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atb_dist.convert.coverage import Coverage, check_coverage
from atb_dist.convert.encoding import Cast
from atb_dist.convert.layouts import num_bytes
from atb_dist.convert.proof import Key, compare, expected_hashes, found_hashes
from atb_dist.errors import ConfigError
from atb_dist.models import open_model
from atb_dist.weights.manifest import MANIFEST, Manifest, read_manifest
from atb_dist.weights.plan import ShardingPlan


@dataclass(frozen=True)
class Verified:
    """What was looked at. read_bytes: of the directory itself."""

    files: int
    coverage: Coverage
    read_bytes: int
    against: str


def verify(
    directory: Path, against: Path | None, *, jobs: int, advance: Callable[[int], None]
) -> Verified:
    """Hash every tensor of a converted directory and compare; check that all elements are there.

    against: the original; None compares with the hashes that the conversion wrote down. Raises
    ConfigError that names what is wrong.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise ConfigError(f"{directory} has no {MANIFEST}; only what atb-dist converted has one")
    coverage = check_coverage(manifest)
    opened = open_model(directory)
    opened.checkpoint.check(
        ShardingPlan.build(opened.family, opened.config, 1, 0), model_type=opened.config.model_type
    )
    expected = _from_manifest(manifest)
    told = str(directory / MANIFEST)
    if against is not None:
        expected, told = _from_source(against, manifest, jobs), str(against)
    elif expected is None:
        raise ConfigError(f"{told} has no hashes (--no-proof); use --against SRC")
    found = found_hashes(directory, manifest, jobs=jobs, advance=advance)
    compare(expected, found, against=told)
    size = sum(num_bytes(e) for entries in manifest.files.values() for e in entries)
    return Verified(len(manifest.files), coverage, size, told)


def _from_manifest(manifest: Manifest) -> dict[Key, str] | None:
    hashes = {(f, e.name): e.sha256 for f, entries in manifest.files.items() for e in entries}
    return hashes if all(hashes.values()) else None


def _from_source(source: Path, manifest: Manifest, jobs: int) -> dict[Key, str]:
    """Compute the hashes that files of this layout have when they come from source."""
    if manifest.quant is not None:
        raise ConfigError("the directory is quantised: --against compares floats only")
    tensors = open_model(source).checkpoint.tensors
    for name, (_dtype, shape) in manifest.sources.items():
        if name not in tensors or tensors[name].shape != shape:
            found = list(tensors[name].shape) if name in tensors else "not there"
            raise ConfigError(
                f"{source}: {name} is {found}, the directory was made of {list(shape)}"
            )
    sources = {name: tensors[name] for name in manifest.sources}
    encoding = Cast(sources, None)
    encoding.tensors = manifest.sources
    return expected_hashes(sources, manifest, encoding, jobs=jobs, advance=lambda _count: None)
