"""The balanced binary tree over rank numbers, for tensors that one rank has of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul,
}  # fmt: skip


def combine_in_tree(values: Sequence[Tensor], op: str = "sum") -> Tensor:
    """Combine tensors: value(lo, hi) = value(lo, mid) op value(mid, hi), mid = (lo + hi) // 2."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    low, high = combine_in_tree(values[:middle], op), combine_in_tree(values[middle:], op)
    return COMBINE[op](low, high)


def follows_tree(borders: Sequence[int]) -> bool:
    """Whether a tree over groups of neighbours, then over the groups, is the tree over all.

    borders: where each group begins, and the end of the last.
    """
    if len(borders) == 2:
        return True
    middle = (len(borders) - 1) // 2
    if borders[middle] != (borders[0] + borders[-1]) // 2:
        return False
    return follows_tree(borders[: middle + 1]) and follows_tree(borders[middle:])
