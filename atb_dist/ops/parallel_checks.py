"""Refusals of the operators with ranks: one line each, on every rank, before they communicate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atb_dist.comm.base import TensorParallel
from atb_dist.comm.grid import Grid
from atb_dist.ops import checks
from atb_dist.ops.calls import Kind
from atb_dist.quant import INT4_RUN, QuantTensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
KINDS = tuple(Kind)
GATHERING = (Kind.ALL_GATHER_LINEAR, Kind.ALL_GATHER_LINEAR_REDUCE_SCATTER)


def check_linear_parallel(
    x: Tensor,
    weight: Tensor | QuantTensor,
    tp: TensorParallel,
    kind: Kind,
    added: tuple[Tensor | None, Tensor | None],
    *,
    leaves: Sequence[int] | None,
    chunks: int | None,
    grid: Grid | None,
    return_gathered: bool,
) -> None:
    """Refuse what can't work. added: bias and residual."""
    op, (bias, residual) = "linear_parallel", added
    if kind not in KINDS:
        raise ValueError(f"{op}: kind {kind!r} is none of {', '.join(KINDS)}")
    if chunks is not None and chunks < 1:
        raise ValueError(f"{op}: chunks={chunks} must be at least 1")
    if return_gathered and kind != Kind.ALL_GATHER_LINEAR:
        raise ValueError(f"{op}: return_gathered goes with all_gather_linear, not with {kind}")
    _check_grid(op, tp, kind, grid)
    _check_product(op, x, weight, leaves)
    features = weight.shape[0]
    if bias is not None:
        _check_float(op, "bias", bias, x)
        if bias.shape != (features,):
            raise ValueError(f"{op}: bias {list(bias.shape)} doesn't fit: it needs [{features}]")
    if residual is not None:
        _check_float(op, "residual", residual, x)
        # After an all-gather the number of rows is known to the communicator only.
        rows: int | str = "T" if kind in GATHERING else x.shape[0]
        fits = residual.dim() == 2 and residual.shape[1] == features
        if not fits or rows not in ("T", residual.shape[0]):
            raise ValueError(
                f"{op}: residual {list(residual.shape)} doesn't fit: it needs [{rows}, {features}]"
            )


def _check_grid(op: str, tp: TensorParallel, kind: Kind, grid: Grid | None) -> None:
    if (grid is not None) != (kind == Kind.ALL_GATHER_LINEAR_REDUCE_SCATTER):
        wants = "needs" if grid is None else "takes no"
        raise ValueError(f"{op}: {kind} {wants} grid; see atb_dist.comm.grid.cut_into_grid")
    if grid is not None and grid.gather.size * grid.scatter.size != tp.size:
        raise ValueError(
            f"{op}: a grid of {grid.gather.size} x {grid.scatter.size} ranks doesn't fit the "
            f"{tp.size} ranks of tp"
        )


def _check_product(
    op: str, x: Tensor, weight: Tensor | QuantTensor, leaves: Sequence[int] | None
) -> None:
    shape, weight_shape = x.shape, weight.shape
    if len(shape) != 2 or len(weight_shape) != 2 or shape[1] != weight_shape[1]:
        raise ValueError(
            f"{op}: weight {list(weight_shape)} doesn't fit x {list(shape)}: "
            f"inner sizes {weight_shape[-1]} ≠ {shape[-1]}"
        )
    _check_float(op, "x", x, x)
    run = 0
    if isinstance(weight, QuantTensor):
        check_scales(op, weight)
        run = weight.run
    else:
        _check_float(op, "weight", weight, x)
    if weight.device != x.device:
        raise ValueError(f"{op}: weight is on {weight.device}, x on {x.device}; move one of them")
    if leaves is not None:
        checks.leaf_borders(tuple(leaves), shape[1], run)


def _check_float(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{op}: {name} is {tensor.dtype}; use torch.float32, bfloat16 or float16, and a "
            "QuantTensor for integers with scales"
        )
    if tensor.device != x.device:
        raise ValueError(f"{op}: {name} is on {tensor.device}, x on {x.device}; move one of them")


def check_scales(op: str, weight: QuantTensor) -> None:
    """Refuse integers and scales that don't belong together, as a wrong cut leaves them."""
    outputs, features = weight.values.shape[0], weight.features
    if weight.bits not in (8, 4) or (weight.group < 1 and features):
        raise ValueError(
            f"{op}: a weight of {weight.bits} bits in groups of {weight.group} features is not "
            "known; use 8 or 4 bits and groups of 1 or more"
        )
    width = features if weight.bits == 8 else -(-features // INT4_RUN) * (INT4_RUN // 2)
    groups = -(-features // weight.group) if weight.is_grouped else 1
    integers = torch.int8 if weight.bits == 8 else torch.uint8
    if weight.values.shape != (outputs, width) or weight.values.dtype != integers:
        raise ValueError(
            f"{op}: values {list(weight.values.shape)} of {weight.values.dtype} don't fit "
            f"{features} features of {weight.bits} bits: they must be [{outputs}, {width}] of "
            f"{integers}"
        )
    if weight.scales.shape != (outputs, groups) or weight.scales.dtype != torch.float32:
        raise ValueError(
            f"{op}: scales {list(weight.scales.shape)} of {weight.scales.dtype} don't fit weight "
            f"{list(weight.shape)} in groups of {weight.group}: they must be [{outputs}, {groups}] "
            "of torch.float32; cut at multiples of a group (QuantTensor.columns)"
        )


@dataclass(frozen=True)
class Brought:
    """What a rank brings to an all-gather. dtype: number in FLOATS; added: rows of residual."""

    rows: int
    features: int
    dtype: int
    added: int
    outputs: int
    gather: int
    scatter: int


def agree_on_rows(
    x: Tensor,
    weight: Tensor | QuantTensor,
    residual: Tensor | None,
    tp: TensorParallel,
    grid: Grid | None = None,
) -> list[int]:
    """Return how many rows each rank gathers. They may differ, and no rank knows the others'.

    Raises ValueError, the same on every rank, when what ranks bring doesn't fit together.
    """
    place = (tp.rank, 0) if grid is None else (grid.gather.rank, grid.scatter.rank)
    rows_added = -1 if residual is None else residual.shape[0]
    mine = (*x.shape, FLOATS.index(x.dtype), rows_added, weight.shape[0], *place)
    numbers = tp.stream.run(tp.data.all_gather, torch.tensor([mine])).tolist()
    everyone = [Brought(*row) for row in numbers]
    rows = _rows_of(everyone, 0)
    for rank, each in enumerate(everyone):
        beside = next(other for other in everyone if other.scatter == each.scatter)
        if (each.features, each.dtype) != (beside.features, beside.dtype):
            raise ValueError(
                f"linear_parallel: rank {rank} gathers rows of {each.features} features of "
                f"{FLOATS[each.dtype]}, another of {beside.features} of {FLOATS[beside.dtype]}"
            )
        if each.added not in (-1, sum(rows)):
            raise ValueError(
                f"linear_parallel: the residual of rank {rank} has {each.added} rows; the ranks "
                f"gather {sum(rows)}"
            )
        across = next(other for other in everyone if other.gather == each.gather)
        total = sum(_rows_of(everyone, each.scatter))
        if (total, each.outputs) != (sum(rows), across.outputs):
            raise ValueError(
                f"linear_parallel: rank {rank} has a product [{total}, {each.outputs}], another "
                f"[{sum(rows)}, {across.outputs}]; they can't be added up"
            )
    return _rows_of(everyone, place[1])


def _rows_of(everyone: Sequence[Brought], scatter: int) -> list[int]:
    group = sorted((e for e in everyone if e.scatter == scatter), key=lambda e: e.gather)
    return [each.rows for each in group]
