"""Which tensor goes into which file: Hugging Face and per-rank layouts. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from atb_dist.config import ModelConfig
from atb_dist.errors import ConfigError
from atb_dist.weights.checkpoint import SINGLE
from atb_dist.weights.manifest import Entry, Manifest
from atb_dist.weights.plan import ShardingPlan, Slice
from atb_dist.weights.rules import Family
from atb_dist.weights.stored import FILE_DTYPES, ITEM_BYTES

Shapes = dict[str, tuple[str, tuple[int, ...]]]  # (dtype, shape) of whole tensors by name


@dataclass(frozen=True)
class Model:
    """What a layout needs to know. tensors: the whole tensors that are to be written."""

    family: Family
    config: ModelConfig
    tensors: Shapes

    def dtype_name(self) -> str:
        """Return "fp32", "bf16" or "fp16" when all tensors are of one type, else "mixed"."""
        found = {dtype for dtype, _shape in self.tensors.values()}
        names = [name for name, dtype in FILE_DTYPES.items() if {dtype} == found]
        return names[0] if names else "mixed"

    def manifest(
        self, kind: str, tp: int, files: dict[str, tuple[Entry, ...]], *, rotary: str = "half"
    ) -> Manifest:
        """Describe files of this model."""
        rows = self.family.rows(self.config)
        fused = {row.param: tuple(p.source for p in row.pieces) for row in rows
                 if len(row.pieces) > 1 and kind == "ranks"}  # fmt: skip
        return Manifest(
            kind=kind,
            family=self.family.name,
            tp=tp,
            dtype=self.dtype_name(),
            rotary=rotary,
            tied=self.config.tie_word_embeddings,
            fused=fused,
            sources=self.tensors,
            files=files,
        )


def ranks_layout(model: Model, tp: int) -> Manifest:
    """Give each rank one file with its parameters, as ShardingPlan cuts and joins them.

    Raises ShardingError when the model can't be cut over tp.
    """
    files = {}
    for rank in range(tp):
        plan = ShardingPlan.build(model.family, model.config, tp, rank)
        files[rank_file(rank, tp)] = tuple(
            Entry(p.name, joined_dtype(p.name, p.slices, model.tensors), p.shape, p.slices)
            for p in plan.params
        )
    return model.manifest("ranks", tp, files)


def rank_file(rank: int, tp: int) -> str:
    """Return the name of a rank's file: rank-03-of-08.safetensors."""
    digits = max(2, len(str(tp)))
    return f"rank-{rank:0{digits}}-of-{tp:0{digits}}.safetensors"


def joined_dtype(name: str, slices: Iterable[Slice], tensors: Shapes) -> str:
    """Return the one type of what a parameter joins.

    Raises ConfigError when there are several.
    """
    found = {tensors[s.source][0]: s.source for s in slices}
    if len(found) > 1:
        pairs = ", ".join(f"{source} is {dtype}" for dtype, source in found.items())
        raise ConfigError(f"{name} joins tensors of different types ({pairs}); give --dtype")
    return next(iter(found))


def hf_layout(model: Model, max_file_bytes: int) -> Manifest:
    """Store whole tensors, in files of at most max_file_bytes where tensors allow it."""

    def entry(name: str) -> Entry:
        dtype, shape = model.tensors[name]
        length = shape[0] if shape else 1
        return Entry(name, dtype, shape, (Slice(name, 0, 0, length, 0),))

    entries = [entry(name) for name in model.tensors]
    groups = _pack(entries, max_file_bytes, num_bytes)
    if len(groups) <= 1:
        return model.manifest("hf", 1, {SINGLE: tuple(entries)})
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    files = {name: tuple(group) for name, group in zip(names, groups, strict=True)}
    return model.manifest("hf", 1, files)


def num_bytes(entry: Entry) -> int:
    """Return the size of a stored tensor."""
    return math.prod(entry.shape) * ITEM_BYTES[entry.dtype]


def _pack(entries: list[Entry], limit: int, size: Callable[[Entry], int]) -> list[list[Entry]]:
    groups: list[list[Entry]] = []
    filled = limit
    for entry in entries:
        if filled + size(entry) > limit or not groups:
            groups.append([])
            filled = 0
        groups[-1].append(entry)
        filled += size(entry)
    return groups
