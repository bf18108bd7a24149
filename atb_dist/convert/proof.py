"""Proof that files hold what the source says: both are read again and compared by hash. No torch.

The expected hash of a stored tensor comes from the source, cut by the slices of the manifest; the
found one from the file, at the place that its own header names.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from atb_dist.convert.copying import cut, run_all, windows
from atb_dist.convert.encoding import Encoding
from atb_dist.convert.layouts import num_bytes
from atb_dist.errors import ConfigError
from atb_dist.weights.checkpoint import read_tensors
from atb_dist.weights.manifest import Entry, Manifest
from atb_dist.weights.reader import Bits, Reader, bits_dtype
from atb_dist.weights.stored import Part, SourceTensor, TensorInfo

READ_BYTES = 8 << 20
Key = tuple[str, str]  # file, stored tensor
Advance = Callable[[int], None]


@dataclass
class _Stream:
    """The hash of a stored tensor, fed in the order of its elements."""

    entry: Entry
    state: hashlib._Hash
    fed: int = 0

    def feed(self, block: Bits) -> None:
        """Add the next elements."""
        flat = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        self.state.update(flat.data)
        self.fed += len(flat)

    def digest(self) -> str:
        """Return the hash, with zeros for what no slice covers."""
        rest = num_bytes(self.entry) - self.fed
        while rest > 0:
            zeros = bytes(min(rest, READ_BYTES))
            self.state.update(zeros)
            rest -= len(zeros)
        return self.state.hexdigest()


def expected_hashes(
    sources: dict[str, SourceTensor],
    manifest: Manifest,
    encoding: Encoding,
    *,
    jobs: int,
    advance: Advance,
) -> dict[Key, str]:
    """Return the hash of every stored tensor, from the source. Each source byte is read once."""
    found: dict[Key, str] = {}
    with Reader() as reader:

        def run(group: _Group) -> Callable[[], None]:
            return lambda: found.update(group.hashes(reader, encoding, advance))

        run_all((run(group) for group in _groups(sources, manifest, encoding)), jobs)
    return found


@dataclass
class _Group:
    """Sources that stored tensors join, in their order, and those stored tensors."""

    sources: list[SourceTensor]
    entries: dict[Key, Entry]

    def hashes(self, reader: Reader, encoding: Encoding, advance: Advance) -> dict[Key, str]:
        """Read the sources window by window; return the hashes."""
        streams = {key: _Stream(entry, hashlib.sha256()) for key, entry in self.entries.items()}
        users: dict[str, list[tuple[_Stream, Part]]] = defaultdict(list)
        for (file, _name), stream in streams.items():
            info = TensorInfo(stream.entry.name, stream.entry.dtype, stream.entry.shape,
                              Path(file), 0)  # fmt: skip
            for stored, part in stream.entry.parts(info):
                users[stored].append((stream, part))
        for source in self.sources:
            pairs = [p.pairs or 1 for n in encoding.names(source.name) for _s, p in users[n]]
            width = source.matrix_shape[1]
            for rows in windows(source, int(np.lcm.reduce([source.row_unit, *pairs]))):
                window = np.empty((rows.stop - rows.start, width), bits_dtype(source.dtype))
                advance(reader.read(source, rows, slice(0, width), window))
                for name, encoded in encoding.encode(source, window).items():
                    for stream, part in users[name]:
                        stream.feed(cut(part, rows, encoded)[0])
        return {key: stream.digest() for key, stream in streams.items()}


def _groups(
    sources: dict[str, SourceTensor], manifest: Manifest, encoding: Encoding
) -> Iterator[_Group]:
    """Split the work: sources that some stored tensor joins go together, in its order."""
    origin = {name: source for source in sources for name in encoding.names(source)}
    leader: dict[str, str] = {}

    def find(source: str) -> str:
        while leader.setdefault(source, source) != source:
            source = leader[source]
        return source

    members: dict[str, list[str]] = defaultdict(list)
    entries: dict[str, dict[Key, Entry]] = defaultdict(dict)
    everything = [(file, entry) for file, held in manifest.files.items() for entry in held]
    for _file, entry in everything:
        joined = [origin[part.source] for part in entry.slices]
        for other in joined[1:]:
            leader[find(other)] = find(joined[0])
    for file, entry in everything:
        joined = [origin[part.source] for part in entry.slices]
        group = find(joined[0])
        members[group] += [source for source in joined if source not in members[group]]
        entries[group][file, entry.name] = entry
    for group, names in members.items():
        yield _Group([sources[name] for name in names], entries[group])


def found_hashes(
    directory: Path, manifest: Manifest, *, jobs: int, advance: Advance
) -> dict[Key, str]:
    """Read every stored tensor of a directory again and return their hashes.

    Raises ConfigError when a file lacks a tensor of the manifest or holds another one.
    """
    found: dict[Key, str] = {}
    with Reader() as reader:

        def run(key: Key, info: TensorInfo) -> Callable[[], None]:
            return lambda: found.update({key: _hash_of(reader, info, advance)})

        stored = [pair for file in manifest.files for pair in _stored(directory, file, manifest)]
        run_all((run(key, info) for key, info in stored), jobs)
    return found


def _stored(directory: Path, file: str, manifest: Manifest) -> Iterator[tuple[Key, TensorInfo]]:
    headers = read_tensors(directory / file)
    for entry in manifest.files[file]:
        info = headers.pop(entry.name, None)
        if info is None or (info.dtype, info.shape) != (entry.dtype, entry.shape):
            raise ConfigError(
                f"{directory / file} does not hold {entry.name} as {entry.dtype} "
                f"{list(entry.shape)}; convert the original again"
            )
        yield (file, entry.name), info
    if headers:
        raise ConfigError(f"{directory / file} holds {next(iter(headers))}, which is not expected")


def _hash_of(reader: Reader, info: TensorInfo, advance: Advance) -> str:
    state = hashlib.sha256()
    window = np.empty(min(READ_BYTES, info.num_bytes), np.uint8)
    for first in range(0, info.num_bytes, READ_BYTES):
        part = window[: min(READ_BYTES, info.num_bytes - first)]
        reader.fill(info, info.offset + first, part)
        state.update(part.data)
        advance(len(part))
    return state.hexdigest()


def compare(expected: dict[Key, str], found: dict[Key, str], *, against: str) -> None:
    """Refuse files whose hashes differ from the expected ones.

    Raises ConfigError that names the first such tensor.
    """
    wrong = sorted(key for key in expected if found.get(key) != expected[key])
    if wrong:
        file, name = wrong[0]
        raise ConfigError(
            f"{name} in {file} is not what {against} says: sha256 {found.get(wrong[0], 'none')}, "
            f"expected {expected[wrong[0]]} ({len(wrong)} such tensors); convert again"
        )


def with_hashes(manifest: Manifest, hashes: dict[Key, str]) -> Manifest:
    """Return the manifest with the hash of every stored tensor."""
    files = {
        file: tuple(replace(e, sha256=hashes[file, e.name]) for e in entries)
        for file, entries in manifest.files.items()
    }
    return replace(manifest, files=files)
