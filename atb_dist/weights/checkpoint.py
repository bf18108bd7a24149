"""A directory's checkpoint: which tensors it holds and where, checked before any read. No torch.

Reads Hugging Face safetensors and pytorch_model*.bin, one file or an index of several, and our own
per-rank files. Only headers are read, so that a loader can take byte ranges.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from atb_dist.errors import ConfigError, ShardingError
from atb_dist.weights.manifest import MANIFEST, Manifest, read_manifest
from atb_dist.weights.plan import ShardingPlan
from atb_dist.weights.safetensors_file import read_header
from atb_dist.weights.stored import FLOATS, Part, SourceTensor, TensorInfo
from atb_dist.weights.torch_file import read_torch_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SINGLE_BIN = "pytorch_model.bin"
INDEX_BIN = "pytorch_model.bin.index.json"
# Present in old checkpoints and recomputed by every runtime.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


class Checkpoint:
    """The tensors of a directory, whole and by their Hugging Face names.

    kind      "hf", "ranks", or "meta" (opened by models.open_checkpoint)
    manifest  atb_dist.json of a per-rank directory, else None
    """

    def __init__(
        self,
        directory: str | Path,
        tensors: dict[str, SourceTensor] | None = None,
        *,
        kind: str = "hf",
    ):
        """Read and check all headers; no weight is read. tensors: what a caller found instead.

        Raises ConfigError for absent, truncated or inconsistent files.
        """
        self.directory = Path(directory)
        self.kind = kind
        self.manifest: Manifest | None = None
        if tensors is not None:
            self.tensors = tensors
            return
        manifest = read_manifest(self.directory)
        if manifest is not None and manifest.kind == "ranks":
            self.kind, self.manifest = "ranks", manifest
            self.tensors = _tensors_of_ranks(self.directory, manifest)
        else:
            stored = self._stored()
            self.tensors = {name: SourceTensor.whole(info) for name, info in stored.items()}

    def _stored(self) -> dict[str, TensorInfo]:
        for index in (self.directory / INDEX, self.directory / INDEX_BIN):
            single = self.directory / (SINGLE if index.name == INDEX else SINGLE_BIN)
            if index.exists():
                return _read_indexed(index)
            if single.exists():
                return read_tensors(single)
        raise ConfigError(self._nothing_here())

    def _nothing_here(self) -> str:
        if not self.directory.is_dir():
            return f"{self.directory} is not a directory; give one that holds a checkpoint"
        others = [p.name for p in self.directory.glob("*") if p.suffix in {".bin", ".pth", ".gguf"}]
        found = f"it holds {others[0]}, which is not read" if others else "it holds no weights"
        return f"{self.directory} has neither {SINGLE} nor {INDEX} nor {SINGLE_BIN}; {found}"

    @property
    def files(self) -> list[Path]:
        """The files that its tensors lie in."""
        found = {part.stored.file for tensor in self.tensors.values() for part in tensor.parts}
        return sorted(found)

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
            places = [(part.stored.file.name, part.stored.offset) for part in info.parts]
            state.update(repr((name, info.dtype, info.shape, places)).encode())
        return state.hexdigest()


def read_tensors(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file, or of one that torch.save wrote."""
    return read_header(file) if file.suffix == ".safetensors" else read_torch_file(file)


def _read_indexed(index: Path) -> dict[str, TensorInfo]:
    weight_map = _read_index(index)
    found: dict[str, TensorInfo] = {}
    for name in sorted(set(weight_map.values())):
        file = index.parent / name
        if Path(name).name != name or not file.exists():
            raise ConfigError(f"{index} names {name}, which is not in {index.parent}")
        for tensor, info in read_tensors(file).items():
            if tensor not in weight_map:
                raise ConfigError(f"{file} holds {tensor}, which {index.name} does not list")
            if tensor in found:
                raise ConfigError(f"{tensor} is in {found[tensor].file} and in {file}; keep one")
            found[tensor] = info
    absent = sorted(t for t, name in weight_map.items()
                    if t not in found or found[t].file.name != name)  # fmt: skip
    if absent:
        raise ConfigError(
            f"{index} says that {absent[0]} is in {weight_map[absent[0]]}, but it is not there "
            f"({len(absent)} such tensors)"
        )
    return found


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{index} is not an index of weights: {error!r}"[:300]) from error


def _tensors_of_ranks(directory: Path, manifest: Manifest) -> dict[str, SourceTensor]:
    """Join the ranks' tensors to whole ones, by the slices that the manifest names."""
    parts: dict[str, list[Part]] = {name: [] for name in manifest.sources}
    for file, entries in manifest.files.items():
        stored = read_header(directory / file)
        surplus = sorted(set(stored) - {entry.name for entry in entries})
        if surplus:
            raise ConfigError(f"{directory / file} holds {surplus[0]}, unknown to {MANIFEST}")
        for entry in entries:
            info = stored.get(entry.name)
            if info is None or (info.dtype, info.shape) != (entry.dtype, entry.shape):
                found = "none" if info is None else f"{info.dtype} {list(info.shape)}"
                raise ConfigError(
                    f"{directory / file}: {MANIFEST} says {entry.name} is {entry.dtype} "
                    f"{list(entry.shape)}, the file has {found}; convert the original again"
                )
            for source, part in entry.parts(info):
                parts[source].append(part)
    return {
        name: SourceTensor.join(name, shape, parts[name])
        for name, (_dtype, shape) in manifest.sources.items()
    }
