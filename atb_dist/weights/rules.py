"""How a family's checkpoint becomes parameters: the one declarative table. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atb_dist.config import ModelConfig


class Cut(StrEnum):
    """How a parameter is divided over ranks."""

    COLUMN = "column"  # output features (dimension 0), each piece cut by its units, then joined
    ROW = "row"  # input features (dimension 1)
    VOCAB = "vocab"  # dimension 0, padded to one size on every rank
    COPY = "copy"  # whole on every rank


class Unit(StrEnum):
    """Which of the model's cuts a piece follows: what must stay whole on one rank."""

    QUERY_HEAD = "query_head"  # follows the KV group of the head
    KV_HEAD = "kv_head"  # replicated when there are fewer than ranks
    MLP = "mlp"
    VOCAB = "vocab"
    NONE = "none"


@dataclass(frozen=True)
class Piece:
    """A logical block of a checkpoint tensor along the cut dimension.

    source  tensor name; "{i}" stands for the layer
    length  whole extent along the cut dimension, in elements
    unit    which cut it follows; width elements make one unit
    start   where the block begins in the source (fused tensors hold several)
    """

    source: str
    length: int
    unit: Unit = Unit.NONE
    width: int = 1
    start: int = 0


@dataclass(frozen=True)
class Row:
    """One runtime parameter: its name, the pieces that make it, how it is cut.

    other is the extent along the dimension that is not cut; None for vectors.
    """

    param: str
    pieces: tuple[Piece, ...]
    cut: Cut
    other: int | None = None


@dataclass(frozen=True)
class Family:
    """A model family: how to read its config and cut its weights. What `register_family` takes."""

    name: str
    architectures: tuple[str, ...]
    config_from_hf: Callable[[dict[str, Any]], ModelConfig]
    rows: Callable[[ModelConfig], list[Row]]
