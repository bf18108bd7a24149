"""atb_dist.json: what the files of a converted checkpoint hold, and its reading. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atb_dist.errors import ConfigError
from atb_dist.weights.plan import Slice
from atb_dist.weights.stored import ITEM_BYTES, Part, TensorInfo

MANIFEST = "atb_dist.json"
FORMAT = 1
KINDS = ("hf", "meta", "ranks")
MAX_MANIFEST_BYTES = 256 << 20


@dataclass(frozen=True)
class Entry:
    """A tensor in a file of a layout: the slices of the checkpoint's tensors that it joins.

    dtype as safetensors spells it. pairs as in `Part`. sha256 of its bytes, "" while not known.
    What no slice covers (vocabulary padding) is zero.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]
    pairs: int = 0
    sha256: str = ""

    def parts(self, info: TensorInfo) -> list[tuple[str, Part]]:
        """Return what it holds of each source, given where it lies."""
        return [
            (s.source, Part(info, s.dim, s.start, s.stop, s.offset, self.pairs))
            for s in self.slices
        ]


@dataclass(frozen=True)
class Manifest:
    """A layout of a checkpoint over files, and what a reader must know to use it.

    kind      "hf", "meta" or "ranks"
    dtype     "fp32", "bf16", "fp16", or "mixed"
    rotary    "half" (Hugging Face's row order of q and k) or "pairs" (Meta's)
    tied      the head is the embedding
    fused     parameters that join several sources, and their order
    quant     how weights are quantised; None for floats
    sources   the checkpoint's whole tensors: (dtype, shape) by name
    """

    kind: str
    family: str
    tp: int
    dtype: str
    rotary: str
    tied: bool
    fused: dict[str, tuple[str, ...]]
    sources: dict[str, tuple[str, tuple[int, ...]]]
    files: dict[str, tuple[Entry, ...]]
    quant: dict[str, Any] | None = None
    format: int = field(default=FORMAT)

    def to_json(self) -> str:
        """Return the text of atb_dist.json, one tensor a line."""
        head = {
            "format": self.format, "kind": self.kind, "family": self.family, "tp": self.tp,
            "dtype": self.dtype, "rotary": self.rotary, "tied": self.tied, "quant": self.quant,
            "fused": {name: list(order) for name, order in self.fused.items()},
        }  # fmt: skip
        lines = [json.dumps(head, indent=1)[:-2] + ',\n "sources": {']
        lines.append(",\n".join(f"  {json.dumps(n)}: {json.dumps(s)}" for n, s in
                                self.sources.items()) + "},")  # fmt: skip
        files = [
            f"  {json.dumps(name)}: [\n"
            + ",\n".join(f"   {json.dumps(_entry_to_json(e))}" for e in entries)
            + "]"
            for name, entries in self.files.items()
        ]
        return "\n".join([*lines, ' "files": {', ",\n".join(files), " }", "}", ""])


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    slices = [[s.source, s.dim, s.start, s.stop, s.offset] for s in entry.slices]
    found: dict[str, Any] = {"name": entry.name, "dtype": entry.dtype, "shape": entry.shape}
    found["slices"] = slices
    if entry.pairs:
        found["pairs"] = entry.pairs
    if entry.sha256:
        found["sha256"] = entry.sha256
    return found


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a directory; None when it has none.

    Raises ConfigError when it is broken or of another format version.
    """
    file = directory / MANIFEST
    if not file.exists():
        return None
    try:
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            raise ConfigError(f"{file} has {file.stat().st_size} bytes; it is no manifest")
        raw = json.loads(file.read_text())
        version = raw["format"]
        if version != FORMAT:
            raise ConfigError(
                f"{file} has format {version!r}, this version reads {FORMAT}; convert the original "
                "checkpoint again: atb-dist convert SRC DIR"
            )
        return _from_json(raw)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file} is not a manifest of atb-dist: {error!r}"[:300]) from error


def refuse_other_run(manifest: Manifest, directory: Path, *, family: str, dtype: str) -> None:
    """Refuse to run a per-rank directory as something it was not converted for.

    Another tp is no reason: then the slices are taken out of all files. Raises ConfigError that
    says how to convert.
    """
    if manifest.family != family:
        raise ConfigError(
            f"{directory} was converted for family {manifest.family!r}, its config.json is of "
            f"{family!r}; convert the original again: atb-dist convert SRC DIR --tp {manifest.tp}"
        )
    if manifest.dtype not in (dtype, "mixed"):
        raise ConfigError(
            f"{directory} holds {manifest.dtype} weights, the run asks for {dtype}; use --dtype "
            f"{manifest.dtype}, or: atb-dist convert {directory} DIR --tp {manifest.tp} --dtype "
            f"{dtype}"
        )


def _from_json(raw: dict[str, Any]) -> Manifest:
    sources = {
        name: (_dtype(dtype), _shape(shape)) for name, (dtype, shape) in raw["sources"].items()
    }
    files = {
        _file_name(file): tuple(_entry(entry, sources) for entry in entries)
        for file, entries in raw["files"].items()
    }
    kind, tp = raw["kind"], _number(raw["tp"])
    if kind not in KINDS or tp < 1 or not isinstance(raw["tied"], bool):
        raise ValueError(f"kind={kind!r}, tp={tp}, tied={raw['tied']!r}")
    quant = raw["quant"]
    if quant is not None and not isinstance(quant, dict):
        raise ValueError(f"quant={quant!r}")
    return Manifest(
        kind=kind,
        family=str(raw["family"]),
        tp=tp,
        dtype=str(raw["dtype"]),
        rotary=str(raw["rotary"]),
        tied=raw["tied"],
        fused={name: tuple(map(str, order)) for name, order in raw["fused"].items()},
        sources=sources,
        files=files,
        quant=quant,
    )


def _entry(raw: dict[str, Any], sources: dict[str, tuple[str, tuple[int, ...]]]) -> Entry:
    shape = _shape(raw["shape"])
    slices = tuple(_slice(each, shape, sources) for each in raw["slices"])
    return Entry(
        str(raw["name"]), _dtype(raw["dtype"]), shape, slices, _number(raw.get("pairs", 0)),
        str(raw.get("sha256", "")),
    )  # fmt: skip


def _slice(
    raw: list[Any], shape: tuple[int, ...], sources: dict[str, tuple[str, tuple[int, ...]]]
) -> Slice:
    source, *numbers = raw
    dim, start, stop, offset = map(_number, numbers)
    whole = sources[source][1]
    other = [n for i, n in enumerate(whole) if i != dim]
    if (
        not 0 <= dim < len(whole)
        or not start <= stop <= whole[dim]
        or offset + stop - start > shape[dim]
        or other != [n for i, n in enumerate(shape) if i != dim]
    ):
        raise ValueError(f"slice {raw} of {list(whole)} does not fit {list(shape)}")
    return Slice(source, dim, start, stop, offset)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no size")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(_number(extent) for extent in value)


def _dtype(value: Any) -> str:
    if not isinstance(value, str) or value not in ITEM_BYTES:
        raise ValueError(f"{value!r} is no type")
    return value


def _file_name(name: str) -> str:
    if Path(name).name != name or name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is no file of this directory")
    return name
