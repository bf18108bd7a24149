"""What happens to values on the way: nothing, or another type. Quantisation plugs in here.

An encoding turns windows of whole rows of a source tensor into rows of one or several tensors to
store. It sees all columns of a row, so a scale for each row or group of columns can be computed;
what it names, a layout can cut.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from atb_dist.convert.layouts import Shapes
from atb_dist.errors import ConfigError
from atb_dist.weights.reader import Bits
from atb_dist.weights.stored import SourceTensor


class Encoding(Protocol):
    """How source tensors become the tensors of the layout."""

    tensors: Shapes
    """What is stored, by name: every name that `encode` returns, with type and whole shape."""

    def names(self, source: str) -> tuple[str, ...]:
        """Return the stored tensors that come from a source; () when it is not stored."""

    def encode(self, tensor: SourceTensor, rows: Bits) -> dict[str, Bits]:
        """Turn rows [R, C] of the source into the same rows of each of names(tensor.name).

        Called from several threads, for any run of rows. Raises ConfigError, naming the tensor,
        for values that can't be stored.
        """


class Cast:
    """Keep every tensor, in its own type (the same bits) or rounded to another one."""

    def __init__(self, sources: dict[str, SourceTensor], dtype: str | None):
        """dtype: as safetensors spells it; None keeps each tensor's own."""
        self.tensors: Shapes = {
            name: (dtype or tensor.dtype, tensor.shape) for name, tensor in sources.items()
        }

    def names(self, source: str) -> tuple[str, ...]:
        """Return the source itself."""
        return (source,) if source in self.tensors else ()

    def encode(self, tensor: SourceTensor, rows: Bits) -> dict[str, Bits]:
        """Round to nearest even, as torch does.

        Raises ConfigError when a finite value is beyond fp16.
        """
        dtype = self.tensors[tensor.name][0]
        same = dtype == tensor.dtype
        return {tensor.name: rows if same else _cast(rows, tensor.dtype, dtype, tensor.name)}


def _cast(rows: Bits, source: str, target: str, name: str) -> Bits:
    import torch  # seconds to import, so only where a type changes

    from atb_dist.weights.mapping import SOURCE_DTYPES

    integers = {2: np.int16, 4: np.int32, 8: np.int64}[rows.itemsize]
    values = torch.from_numpy(rows.view(integers)).view(SOURCE_DTYPES[source])
    rounded = values.to(SOURCE_DTYPES[target])
    if target == "F16" and bool((rounded.isinf() & values.isfinite()).any()):
        largest = float(values[values.isfinite()].abs().max())
        raise ConfigError(f"{name} holds {largest:.4g}, fp16 ends at 65504; use --dtype bf16")
    as_integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[rounded.itemsize]
    bits: Bits = rounded.view(as_integers).numpy().view(f"u{rounded.itemsize}")
    return bits
