"""Mixture of experts on CPUs: grouped matmul and combining by the C++ kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atb_dist.ops import checks
from atb_dist.ops.cpu import DTYPES, is_rows, kernels
from atb_dist.ops.cpu_linear import INT4, INT8, MAX_BORDERS
from atb_dist.ops.registry import register_op
from atb_dist.quant import QuantTensor


def _kind(weight: Tensor | QuantTensor) -> tuple[object, ...] | None:
    """What the weights of one call must have in common; None: not for this kernel."""
    if isinstance(weight, Tensor):
        fits = weight.dim() == 2 and weight.dtype in DTYPES and weight.stride(1) == 1
        return (weight.dtype, weight.shape, weight.stride(0)) if fits else None
    values, scales = weight.values, weight.scales
    if weight.quantized_activations or values.stride(1) != 1 or scales.stride(1) != 1:
        return None
    return (weight.bits, weight.run, weight.shape, values.stride(0), scales.stride(0))


def _takes_grouped(
    x: Tensor,
    weights: Tensor | Sequence[Tensor | QuantTensor],
    group_starts: Tensor,
    *,
    rows: Tensor | None = None,
    out: Tensor | None = None,
    leaves: Sequence[int] | None = None,
) -> bool:
    kinds = {_kind(weight) for weight in weights}
    integers = (group_starts,) if rows is None else (group_starts, rows)
    return (
        len(kinds) == 1
        and None not in kinds
        and is_rows(x)
        and all(i.dtype == torch.int64 and i.is_contiguous() for i in integers)
        and (out is None or (is_rows(out) and out.is_contiguous()))
        and (leaves is None or len(leaves) <= MAX_BORDERS)
    )


@register_op("grouped_matmul", impl="simd", device="cpu", when=_takes_grouped)
def grouped_matmul(
    x: Tensor,
    weights: Tensor | Sequence[Tensor | QuantTensor],
    group_starts: Tensor,
    *,
    rows: Tensor | None = None,
    out: Tensor | None = None,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """All groups share the threads. Weights have one type, shape and stride."""
    checks.check_groups(x, weights, group_starts, rows, out)
    first = weights[0]
    columns, features = first.shape
    kept: list[Tensor] = []  # addresses, until the call is over
    if isinstance(first, Tensor):
        stride, kind, scales, scale_stride, run = first.stride(0), DTYPES[first.dtype], 0, 0, 0
        kept.append(_addresses(weights))
    else:
        quantized = [weight for weight in weights if isinstance(weight, QuantTensor)]
        kept.append(_addresses([weight.values for weight in quantized]))
        kept.append(_addresses([weight.scales for weight in quantized]))
        stride, kind, run = first.values.stride(0), INT8 if first.bits == 8 else INT4, first.run
        scales, scale_stride = kept[1].data_ptr(), first.scales.stride(0)
    borders, count = 0, 0
    if leaves is not None:
        kept.append(checks.leaf_borders(tuple(leaves), features, run))
        borders, count = kept[-1].data_ptr(), len(leaves)
    y = torch.empty((int(group_starts[-1]), columns)) if out is None else out
    kernels.grouped_matmul(
        x.data_ptr(), x.stride(0), x.shape[0], kept[0].data_ptr(), stride, kind, scales,
        scale_stride, run, group_starts.data_ptr(), len(weights),
        0 if rows is None else rows.data_ptr(), y.data_ptr(), columns, features, out is not None,
        borders, count,
    )  # fmt: skip
    return y


def _addresses(tensors: Tensor | Sequence[Tensor | QuantTensor]) -> Tensor:
    addresses = [t.data_ptr() for t in tensors if isinstance(t, Tensor)]
    return torch.tensor(addresses, dtype=torch.int64)


def _takes_combine(x: Tensor, rows: Tensor, scales: Tensor, *, num_tokens: int) -> bool:  # noqa: ARG001
    return (
        is_rows(x)
        and rows.dtype == torch.int64
        and scales.dtype == torch.float32
        and scales.is_contiguous()
    )


@register_op("combine_experts", impl="simd", device="cpu", when=_takes_combine)
def combine_experts(x: Tensor, rows: Tensor, scales: Tensor, *, num_tokens: int) -> Tensor:
    """Each token's rows are read once, in order."""
    checks.check_combine(x, rows, scales, num_tokens)
    order = rows.argsort(stable=True)
    counts = torch.bincount(rows, minlength=num_tokens)
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    y = torch.empty((num_tokens, x.shape[1]))
    kernels.combine(
        x.data_ptr(), x.stride(0), scales.data_ptr(), starts.data_ptr(), order.data_ptr(),
        y.data_ptr(), num_tokens, x.shape[1],
    )  # fmt: skip
    return y
