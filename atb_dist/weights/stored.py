"""Where tensors lie in files, and how stored ones make up a checkpoint's tensors. No torch.

A checkpoint's tensors go by their Hugging Face names, whole. A file may store one whole, or some
rows or columns of it, or several joined: a `Part` says which elements lie where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from atb_dist.errors import ConfigError

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
              "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")
FILE_DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor. dtype as safetensors spells it; offset in bytes into the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Part:
    """Elements start to stop of a tensor along dim, held by a stored one from offset on.

    pairs  0, or the head size E if the rows of each head are stored as rotary pairs: row 2i + j
           of a head holds its row j·E/2 + i (Meta's order against Hugging Face's)
    """

    stored: TensorInfo
    dim: int
    start: int
    stop: int
    offset: int = 0
    pairs: int = 0


@dataclass(frozen=True)
class SourceTensor:
    """A whole tensor of a checkpoint. parts cover it exactly once, in order along their dim."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @classmethod
    def whole(cls, info: TensorInfo) -> SourceTensor:
        """Return the tensor that one file stores as it is."""
        length = info.shape[0] if info.shape else 1
        return cls(info.name, info.dtype, info.shape, (Part(info, 0, 0, length),))

    @classmethod
    def join(cls, name: str, shape: tuple[int, ...], parts: Iterable[Part]) -> SourceTensor:
        """Make a tensor of parts; of replicas, parts with the same elements, the first is taken.

        Raises ConfigError for a gap, a partial overlap, or parts of different types.
        """
        ordered = sorted(parts, key=lambda part: (part.start, part.stop))
        taken: list[Part] = []
        end = 0
        for part in ordered:
            if taken and (part.start, part.stop) == (taken[-1].start, taken[-1].stop):
                continue
            if part.start != end or part.dim != ordered[0].dim:
                found = "overlaps what comes before" if part.start < end else "leaves a gap"
                raise ConfigError(
                    f"{name}: {part.stored.file} holds {part.start} to {part.stop} of dimension "
                    f"{part.dim}, which {found} at {end}; the files do not belong together"
                )
            taken.append(part)
            end = part.stop
        if not taken or end != shape[taken[0].dim]:
            raise ConfigError(f"{name} {list(shape)} is held by the files up to {end} only")
        odd = next((p for p in taken if p.stored.dtype != taken[0].stored.dtype), None)
        if odd is not None:
            raise ConfigError(
                f"{name} is {taken[0].stored.dtype} in {taken[0].stored.file} and "
                f"{odd.stored.dtype} in {odd.stored.file}; the files do not belong together"
            )
        return cls(name, taken[0].stored.dtype, shape, tuple(taken))

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor, each element once."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns; a vector is one column."""
        return matrix_shape(self.shape)

    @property
    def file(self) -> Path:
        """The file that holds its first elements."""
        return self.parts[0].stored.file

    @property
    def row_unit(self) -> int:
        """Rows that must be read together: a head, where heads are stored as pairs."""
        return max(1, *(part.pairs for part in self.parts))


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a shape; a vector is one column, a scalar one element."""
    return (shape[0] if shape else 1), math.prod(shape[1:])
