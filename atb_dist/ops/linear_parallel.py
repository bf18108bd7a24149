"""linear_parallel over any communicator: one step after the other, or chunks that overlap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atb_dist.comm.base import TensorParallel
from atb_dist.comm.grid import Grid
from atb_dist.ops.calls import Kind, linear
from atb_dist.ops.linear_grid import multiply_on_grid
from atb_dist.ops.parallel_checks import agree_on_rows, check_linear_parallel
from atb_dist.ops.registry import register_op
from atb_dist.quant import QuantTensor

# Fewer rows to a chunk than this and reading the whole weight again costs more than it hides.
MIN_ROWS = 16
# Below this many results a collective takes less time than handing it to another thread.
MIN_RESULTS = 1 << 18


@register_op("linear_parallel", impl="reference")
def sequential(
    x: Tensor,
    weight: Tensor | QuantTensor,
    tp: TensorParallel,
    *,
    kind: Kind = Kind.LINEAR_ALL_REDUCE,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    leaves: Sequence[int] | None = None,
    chunks: int | None = None,
    grid: Grid | None = None,
    return_gathered: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Multiply, then communicate."""
    check_linear_parallel(
        x, weight, tp, kind, (bias, residual), leaves=leaves, chunks=chunks, grid=grid,
        return_gathered=return_gathered,
    )  # fmt: skip
    y, gathered = _combine(
        x, weight, tp, kind, residual, leaves=leaves, chunks=1, grid=grid, keep=return_gathered
    )
    y = finish(y, tp if grid is None else grid.scatter, kind, bias, residual)
    return (y, gathered) if return_gathered else y


@register_op("linear_parallel", impl="chunked")
def chunked(
    x: Tensor,
    weight: Tensor | QuantTensor,
    tp: TensorParallel,
    *,
    kind: Kind = Kind.LINEAR_ALL_REDUCE,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    leaves: Sequence[int] | None = None,
    chunks: int | None = None,
    grid: Grid | None = None,
    return_gathered: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Cut the product into chunks that communicate on tp.stream while later ones are multiplied."""
    check_linear_parallel(
        x, weight, tp, kind, (bias, residual), leaves=leaves, chunks=chunks, grid=grid,
        return_gathered=return_gathered,
    )  # fmt: skip
    if chunks is None:
        chunks = 2 if x.shape[0] * weight.shape[0] >= MIN_RESULTS and tp.size > 1 else 1
    y, gathered = _combine(
        x, weight, tp, kind, residual, leaves=leaves, chunks=chunks, grid=grid, keep=return_gathered
    )
    y = finish(y, tp if grid is None else grid.scatter, kind, bias, residual)
    return (y, gathered) if return_gathered else y


def _combine(
    x: Tensor, weight: Tensor | QuantTensor, tp: TensorParallel, kind: Kind,
    residual: Tensor | None, *, leaves: Sequence[int] | None, chunks: int, grid: Grid | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the product, combined over ranks, and, if kept, the rows that were multiplied."""
    if grid is not None:
        rows = agree_on_rows(x, weight, residual, tp, grid)
        return multiply_on_grid(x, weight, grid, rows, leaves=leaves, chunks=chunks), x
    if kind == Kind.ALL_GATHER_LINEAR:
        rows = agree_on_rows(x, weight, residual, tp)
        if chunks > 1 and tp.size > 1:
            return _gather_and_multiply(
                x, weight, tp, rows, leaves=leaves, chunks=chunks, keep=keep
            )
        x = tp.stream.run(tp.data.all_gather, x.contiguous(), rows)
    if tp.size == 1 or kind in (Kind.PURE_LINEAR, Kind.ALL_GATHER_LINEAR):
        return linear(x, weight, leaves=leaves), x
    if chunks > 1:
        return _multiply_and_sum(x, weight, tp, kind, leaves=leaves, chunks=chunks), x
    y = linear(x, weight, leaves=leaves)
    sums = kind == Kind.LINEAR_ALL_REDUCE
    return tp.stream.run(tp.data.all_reduce if sums else tp.data.reduce_scatter, y), x


def _multiply_and_sum(
    x: Tensor, weight: Tensor | QuantTensor, tp: TensorParallel, kind: Kind, *,
    leaves: Sequence[int] | None, chunks: int,
) -> Tensor:  # fmt: skip
    # Many rows (prefill): cut rows, each chunk reuses the whole weight. Few (decode): cut output
    # features. Reduce-scatter deals out rows itself, so there only features can be cut.
    collective = tp.data.all_reduce
    dim = 0 if x.shape[0] >= chunks * MIN_ROWS else 1
    if kind == Kind.LINEAR_REDUCE_SCATTER:
        collective, dim = tp.data.reduce_scatter, 1
    if dim == 0:
        pieces = [(rows, weight) for rows in x.chunk(chunks)]
    else:
        pieces = [(x, features) for features in weight.chunk(chunks)]
    sums = [
        tp.stream.submit(collective, linear(rows, features, leaves=leaves))
        for rows, features in pieces
    ]
    return torch.cat([event.wait() for event in sums], dim=dim)


def _gather_and_multiply(
    x: Tensor, weight: Tensor | QuantTensor, tp: TensorParallel, counts: Sequence[int], *,
    leaves: Sequence[int] | None, chunks: int, keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    borders = [[c * count // chunks for c in range(chunks + 1)] for count in counts]
    rows = [[each[c + 1] - each[c] for each in borders] for c in range(chunks)]
    events = []
    for c in range(chunks):
        mine = x[borders[tp.rank][c] : borders[tp.rank][c + 1]].contiguous()
        events.append(tp.stream.submit(tp.data.all_gather, mine, rows[c]))
    gathered: list[Tensor] = []
    products: list[Tensor] = []
    for event in events:
        gathered.append(event.wait())
        products.append(linear(gathered[-1], weight, leaves=leaves))
    return _by_rank(products, rows), _by_rank(gathered, rows) if keep else x


def _by_rank(chunks: Sequence[Tensor], rows: Sequence[Sequence[int]]) -> Tensor:
    """Join chunks that hold some rows of every rank so that each rank's stand together."""
    parts = [torch.split(chunk, list(counts)) for chunk, counts in zip(chunks, rows, strict=True)]
    return torch.cat([part for of_rank in zip(*parts, strict=True) for part in of_rank])


def finish(
    y: Tensor, group: TensorParallel, kind: Kind, bias: Tensor | None, residual: Tensor | None
) -> Tensor:
    """Add what is added once, in fp32: bias, then residual [T, O], of which y may have a part."""
    if bias is not None:
        y += bias
    if residual is not None:
        if kind in (Kind.LINEAR_REDUCE_SCATTER, Kind.ALL_GATHER_LINEAR_REDUCE_SCATTER):
            total, rank, size = residual.shape[0], group.rank, group.size
            residual = residual[rank * total // size : (rank + 1) * total // size]
        y += residual
    return y
