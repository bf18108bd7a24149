"""linear_parallel over any communicator: one step after the other, or chunks that overlap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atb_dist.comm.base import TensorParallel
from atb_dist.ops.calls import Kind, linear
from atb_dist.ops.registry import register_op
from atb_dist.quant import QuantTensor

# Fewer rows to a chunk than this and reading the whole weight again costs more than it hides.
MIN_ROWS = 16
# Below this many results a collective takes less time than handing it to another thread.
MIN_RESULTS = 1 << 18
KINDS = tuple(Kind)


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
) -> Tensor:
    """Multiply, then communicate."""
    _check(x, weight, kind, (bias, residual), chunks)
    return _finish(_in_one_piece(x, weight, tp, kind, leaves), tp, kind, bias, residual)


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
) -> Tensor:
    """Cut the product into chunks that communicate on tp.stream while later ones are multiplied."""
    _check(x, weight, kind, (bias, residual), chunks)
    if chunks is None:
        chunks = 2 if x.shape[0] * weight.shape[0] >= MIN_RESULTS and tp.size > 1 else 1
    if chunks == 1 or kind == Kind.PURE_LINEAR:
        y = _in_one_piece(x, weight, tp, kind, leaves)
    elif kind == Kind.ALL_GATHER_LINEAR:
        y = _gather_and_multiply(x, weight, tp, leaves=leaves, chunks=chunks)
    else:
        y = _multiply_and_sum(x, weight, tp, kind, leaves=leaves, chunks=chunks)
    return _finish(y, tp, kind, bias, residual)


def _in_one_piece(
    x: Tensor, weight: Tensor | QuantTensor, tp: TensorParallel, kind: Kind,
    leaves: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    if tp.size == 1:
        return linear(x, weight, leaves=leaves)
    if kind == Kind.ALL_GATHER_LINEAR:
        x = tp.stream.run(tp.data.all_gather, x.contiguous(), _row_counts(x, tp))
    y = linear(x, weight, leaves=leaves)
    if kind == Kind.LINEAR_ALL_REDUCE:
        y = tp.stream.run(tp.data.all_reduce, y)
    elif kind == Kind.LINEAR_REDUCE_SCATTER:
        y = tp.stream.run(tp.data.reduce_scatter, y)
    return y


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
    x: Tensor, weight: Tensor | QuantTensor, tp: TensorParallel, *,
    leaves: Sequence[int] | None, chunks: int,
) -> Tensor:  # fmt: skip
    counts = _row_counts(x, tp)
    borders = [[c * count // chunks for c in range(chunks + 1)] for count in counts]
    gathered = []
    for c in range(chunks):
        rows = [each[c + 1] - each[c] for each in borders]
        mine = x[borders[tp.rank][c] : borders[tp.rank][c + 1]].contiguous()
        gathered.append((rows, tp.stream.submit(tp.data.all_gather, mine, rows)))
    by_rank: list[list[Tensor]] = [[] for _ in counts]
    for rows, event in gathered:
        product = linear(event.wait(), weight, leaves=leaves)
        for parts, part in zip(by_rank, torch.split(product, rows), strict=True):
            parts.append(part)
    return torch.cat([part for parts in by_rank for part in parts])


def _row_counts(x: Tensor, tp: TensorParallel) -> list[int]:
    """Return how many rows each rank has. They may differ, and no rank knows the others'."""
    mine = torch.tensor([x.shape[0]], dtype=torch.int64)
    return [int(n) for n in tp.stream.run(tp.data.all_gather, mine)]


def _finish(
    y: Tensor, tp: TensorParallel, kind: Kind, bias: Tensor | None, residual: Tensor | None
) -> Tensor:
    """Add what is added once, in fp32: bias, then residual."""
    if bias is not None:
        y += bias
    if residual is not None:
        if kind == Kind.LINEAR_REDUCE_SCATTER:
            total, rank, size = residual.shape[0], tp.rank, tp.size
            residual = residual[rank * total // size : (rank + 1) * total // size]
        y += residual
    return y


def _check(
    x: Tensor,
    weight: Tensor | QuantTensor,
    kind: Kind,
    added: tuple[Tensor | None, ...],
    chunks: int | None,
) -> None:
    """Refuse before communication starts what cannot work. added: bias and residual."""
    op, (bias, residual) = "linear_parallel", added
    shape, weight_shape = x.shape, weight.shape
    if len(shape) != 2 or len(weight_shape) != 2 or shape[1] != weight_shape[1]:
        raise ValueError(
            f"{op}: weight {list(weight_shape)} doesn't fit x {list(shape)}: "
            f"inner sizes {weight_shape[-1]} ≠ {shape[-1]}"
        )
    if kind not in KINDS:
        raise ValueError(f"{op}: kind {kind!r} is none of {', '.join(KINDS)}")
    if chunks is not None and chunks < 1:
        raise ValueError(f"{op}: chunks={chunks} must be at least 1")
    features = weight_shape[0]
    if bias is not None and bias.shape != (features,):
        raise ValueError(f"{op}: bias {list(bias.shape)} doesn't fit: it needs [{features}]")
    if residual is not None:
        # After an all-gather the rows are known to the communicator only.
        rows = residual.shape[0] if kind == Kind.ALL_GATHER_LINEAR else shape[0]
        if residual.shape != (rows, features):
            raise ValueError(
                f"{op}: residual {list(residual.shape)} doesn't fit: it needs [{rows}, {features}]"
            )
