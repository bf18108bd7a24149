"""Hugging Face safetensors checkpoints: what is in them and where, checked before any read.

Reads the headers itself, so that a loader can take byte ranges. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atb_dist.errors import ConfigError, ShardingError
from atb_dist.weights.plan import ShardingPlan

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100 << 20  # the format's own limit
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
              "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")
# Present in old checkpoints and recomputed by every runtime.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. dtype as safetensors spells it; offset in bytes into the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Checkpoint:
    """The tensors of a directory with model.safetensors or an index of several files."""

    def __init__(self, directory: str | Path):
        """Read and check all headers; no weight is read.

        Raises ConfigError for absent, truncated or inconsistent files.
        """
        self.directory = Path(directory)
        self.tensors: dict[str, TensorInfo] = {}
        index = self.directory / INDEX
        if index.exists():
            self._add_indexed(index)
        elif (self.directory / SINGLE).exists():
            self.tensors = read_header(self.directory / SINGLE)
        else:
            raise ConfigError(self._nothing_here())

    def _add_indexed(self, index: Path) -> None:
        weight_map = _read_index(index)
        for name in sorted(set(weight_map.values())):
            file = self.directory / name
            if Path(name).name != name or not file.exists():
                raise ConfigError(f"{index} names {name}, which is not in {self.directory}")
            self.tensors.update(
                {t: info for t, info in read_header(file).items() if weight_map.get(t) == name}
            )
        absent = sorted(set(weight_map) - set(self.tensors))
        if absent:
            raise ConfigError(
                f"{index} says that {absent[0]} is in {weight_map[absent[0]]}, but it is not there "
                f"({len(absent)} such tensors)"
            )

    def _nothing_here(self) -> str:
        if not self.directory.is_dir():
            return f"{self.directory} is not a directory; give one that holds a checkpoint"
        others = [p.name for p in self.directory.glob("*") if p.suffix in {".bin", ".pth", ".gguf"}]
        found = f"it holds {others[0]}, which is not read" if others else "it holds no weights"
        return f"{self.directory} has neither {SINGLE} nor {INDEX}; {found}"

    def check(self, plan: ShardingPlan, *, model_type: str = "llama") -> None:
        """Refuse a checkpoint that does not hold exactly what the plan's model needs.

        Raises ShardingError that names the first tensor that is missing, mis-shaped, or unused.
        """
        for name, shape in plan.sources.items():
            info = self.tensors.get(name)
            if info is None:
                raise ShardingError(
                    f"{name} is not in {self.directory} (found {len(self.tensors)} tensors, e.g. "
                    f"{next(iter(self.tensors), 'none')}); is this a '{model_type}' checkpoint?"
                )
            if info.shape != shape:
                raise ShardingError(
                    f"{name} in {info.file.name} is {list(info.shape)}, but config.json makes it "
                    f"{list(shape)}; the config belongs to another model"
                )
            if info.dtype not in FLOATS:
                raise ShardingError(f"{name} is {info.dtype}; use one of {', '.join(FLOATS)}")
        self._refuse_unused(plan, model_type)

    def _refuse_unused(self, plan: ShardingPlan, model_type: str) -> None:
        tied = not any(param.name == "head" for param in plan.params)
        for name in self.tensors:
            harmless = name.endswith(IGNORED_SUFFIXES) or (tied and name == "lm_head.weight")
            if name not in plan.sources and not harmless:
                raise ShardingError(
                    f"{name} in {self.directory} is not used by a {model_type} model of this "
                    "config.json; results would be wrong without it"
                )

    def digest(self) -> str:
        """Return a hash of names, types, shapes and places: equal for ranks that see one model."""
        state = hashlib.sha256()
        for name in sorted(self.tensors):
            info = self.tensors[name]
            place = (name, info.dtype, info.shape, info.file.name, info.offset)
            state.update(repr(place).encode())
        return state.hexdigest()


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} is not a safetensors index: {error!r}") from error


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors of one safetensors file.

    The file starts with the header's length, 8 bytes little-endian, then JSON, then the data
    (format: github.com/huggingface/safetensors). Raises ConfigError when anything lies outside
    the file, overlaps, or disagrees with its shape.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise ConfigError(
                f"{file} is truncated or not a safetensors file: {size} bytes, header of {length}"
            )
        raw = stream.read(length)
    try:
        entries: dict[str, Any] = json.loads(raw)
        entries.pop("__metadata__", None)
        found = {name: _entry(name, entry, file, 8 + length) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} has a broken safetensors header: {error!r}") from error
    _check_places(file, size, found)
    return found


def _entry(name: str, entry: dict[str, Any], file: Path, data: int) -> TensorInfo:
    begin, end = entry["data_offsets"]
    shape = tuple(int(extent) for extent in entry["shape"])
    if entry["dtype"] not in ITEM_BYTES:
        raise ConfigError(f"{file}: {name} has the unknown type {entry['dtype']}")
    info = TensorInfo(name, entry["dtype"], shape, file, data + begin)
    if begin < 0 or min(shape, default=0) < 0 or end - begin != info.num_bytes:
        raise ConfigError(
            f"{file}: {name} takes {end - begin} bytes, but {info.dtype} {list(shape)} needs "
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
