"""all_reduce_rms_norm: the sum over ranks, the residual and the norm, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from atb_dist.comm.base import TensorParallel
from atb_dist.comm.lcal import LcalComm
from atb_dist.ops import cpu
from atb_dist.ops.calls import rms_norm
from atb_dist.ops.registry import register_op


@register_op("all_reduce_rms_norm", impl="reference")
def in_steps(
    x: Tensor, residual: Tensor, weight: Tensor, tp: TensorParallel, *, eps: float
) -> tuple[Tensor, Tensor]:
    """All-reduce, add, norm."""
    _check(x, residual, weight)
    total = tp.stream.run(tp.data.all_reduce, x)
    total += residual
    return total, rms_norm(total, weight, eps=eps)


def _takes(
    x: Tensor, residual: Tensor, weight: Tensor, tp: TensorParallel, *,
    eps: float,  # noqa: ARG001
) -> bool:  # fmt: skip
    return (
        isinstance(tp.data, LcalComm)
        and x.dtype == residual.dtype == torch.float32
        and x.is_contiguous()
        and residual.is_contiguous()
        and weight.is_contiguous()
        and weight.dtype in cpu.DTYPES
    )


@register_op("all_reduce_rms_norm", impl="lcal", device="cpu", when=_takes)
def in_one_pass(
    x: Tensor, residual: Tensor, weight: Tensor, tp: TensorParallel, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Finish each piece of the sum while it is in the cache. The same bits as in steps."""
    _check(x, residual, weight)
    assert isinstance(tp.data, LcalComm)
    normed = torch.empty_like(x)
    tp.stream.run(
        cpu.kernels.all_reduce_rms_norm,
        tp.data.native, x.data_ptr(), residual.data_ptr(), weight.data_ptr(),
        cpu.DTYPES[weight.dtype], normed.data_ptr(), x.shape[0], x.shape[1], eps,
    )  # fmt: skip
    return x, normed


def _check(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Refuse before communication starts what cannot work."""
    op = "all_reduce_rms_norm"
    if x.dim() != 2:
        raise ValueError(f"{op}: x {list(x.shape)} must be [T, D]")
    if residual.shape != x.shape:
        raise ValueError(f"{op}: residual {list(residual.shape)} doesn't fit x {list(x.shape)}")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"{op}: weight {list(weight.shape)} doesn't fit x {list(x.shape)}")
