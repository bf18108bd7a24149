"""Checks that every back end makes before it communicates, with one text for one mistake."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from atb_dist.errors import AtbDistError

REDUCE_OPS = ("sum", "max", "min", "prod")


def check_tensor(verb: str, x: Tensor) -> None:
    """Refuse what has no plain run of memory."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{verb}: {type(x).__name__} is not a tensor; pass torch.tensor(...)")
    if not x.is_contiguous():
        raise ValueError(
            f"{verb}: tensor {list(x.shape)} with strides {list(x.stride())} is not contiguous; "
            "pass x.contiguous()"
        )


def check_on_host(verb: str, x: Tensor) -> None:
    """Refuse a tensor that lies elsewhere than in this host's memory."""
    if isinstance(x, Tensor) and x.device.type != "cpu":
        raise ValueError(f"{verb}: lcal moves tensors of the CPU, this one is on {x.device}")


def check_rows(verb: str, x: Tensor) -> None:
    """Refuse a tensor without a first dimension, for verbs that join or deal out rows."""
    check_tensor(verb, x)
    if x.dim() == 0:
        raise ValueError(f"{verb}: a tensor without dimensions has no rows; pass x.view(1)")


def check_op(verb: str, op: str) -> None:
    """Refuse an unknown reduction."""
    if op not in REDUCE_OPS:
        raise ValueError(f"{verb}: op {op!r} is unknown; use {', '.join(REDUCE_OPS)}")


def check_rank(verb: str, rank: int, size: int) -> None:
    """Refuse a rank that does not exist."""
    if not 0 <= rank < size:
        raise ValueError(f"{verb}: rank {rank} does not exist; there are ranks 0 to {size - 1}")


def check_not_self(verb: str, peer: int, rank: int) -> None:
    """Refuse a message to oneself."""
    if peer == rank:
        raise ValueError(f"{verb}: rank {peer} is this rank itself")


def row_counts(verb: str, counts: Sequence[int] | None, default: Sequence[int]) -> list[int]:
    """Return rows by rank: counts if given and right in number, else default."""
    if counts is None:
        return list(default)
    if len(counts) != len(default) or min(counts) < 0:
        raise ValueError(
            f"{verb}: counts {list(counts)} must be {len(default)} numbers >= 0, one a rank"
        )
    return list(counts)


def even_counts(total: int, size: int) -> list[int]:
    """Return the even cut of rows: rank r of N has ⌊r·T/N⌋ to ⌊(r+1)·T/N⌋."""
    return [(r + 1) * total // size - r * total // size for r in range(size)]


def row_bytes(x: Tensor, rows: Sequence[int]) -> list[int]:
    """Return the bytes of so many rows of a tensor like x, by rank."""
    width = math.prod(x.shape[1:]) * x.element_size()
    return [n * width for n in rows]


def check_sum(verb: str, rows: int, counts: Sequence[int]) -> None:
    """Refuse counts that do not add up to the rows of the tensor."""
    if sum(counts) != rows:
        raise ValueError(
            f"{verb}: counts {list(counts)} add up to {sum(counts)}, the tensor has {rows} rows"
        )


def check_own(verb: str, rows: int, counts: Sequence[int], rank: int) -> None:
    """Refuse a tensor whose rows are not this rank's count."""
    if counts[rank] != rows:
        raise ValueError(
            f"{verb}: counts say {counts[rank]} rows for rank {rank}, its tensor has {rows}"
        )


def check_scatter(out: Tensor, x: Tensor | None, size: int) -> None:
    """Refuse a source whose rows are not what the ranks take, or that is missing."""
    check_rows("scatter", out)
    if x is None:
        raise ValueError("scatter: the source rank must pass x")
    check_rows("scatter", x)
    if x.dtype != out.dtype or x.shape != (size * out.shape[0], *out.shape[1:]):
        raise ValueError(
            f"scatter: x {list(x.shape)} {x.dtype} does not fit {size} times out "
            f"{list(out.shape)} {out.dtype}"
        )


def check_open(name: str, closed: bool) -> None:
    """Refuse a call after close.

    Raises AtbDistError.
    """
    if closed:
        raise AtbDistError(f"this {name} communicator is closed; connect again")
