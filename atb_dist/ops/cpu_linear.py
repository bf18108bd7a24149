"""linear on CPUs: the C++ kernels for weights of every type."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atb_dist.ops import checks
from atb_dist.ops.cpu import DTYPES, is_rows, kernels
from atb_dist.ops.registry import register_op
from atb_dist.quant import QuantTensor

INT8, INT4 = 3, 4  # beside cpu.DTYPES
MAX_BORDERS = 129  # of leaves; kMaxLeaves + 1 in csrc/kernels/kernels.h


def _takes_quantized(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> bool:
    return (
        isinstance(weight, QuantTensor)
        and not weight.quantized_activations
        and weight.values.stride(-1) == 1
        and weight.scales.stride(-1) == 1
        and _takes_rest(x, bias, leaves)
    )


def _takes_w8a8(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> bool:
    return (
        isinstance(weight, QuantTensor)
        and weight.quantized_activations
        and weight.values.stride(-1) == 1
        and (bias is None or bias.dtype == torch.float32)
        and _takes_rest(x, bias, leaves)
    )


@register_op("linear", impl="simd_w8a8", device="cpu", when=_takes_w8a8)
def linear_w8a8(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """Weights and activations of eight bits. Rows may be strided views."""
    assert isinstance(weight, QuantTensor)
    checks.check_linear(x, weight, bias)
    (rows, features), columns = x.shape, weight.shape[0]
    y = torch.empty((rows, columns))
    borders, (added, _) = _leaves_and_bias(leaves, features, bias)
    kernels.linear_w8a8(
        x.data_ptr(), x.stride(0), weight.values.data_ptr(), weight.values.stride(0), added,
        y.data_ptr(), rows, columns, features, *borders, weight.scales.data_ptr(),
        weight.scales.stride(0),
    )  # fmt: skip
    return y


def _takes_rest(x: Tensor, bias: Tensor | None, leaves: Sequence[int] | None) -> bool:
    return (
        is_rows(x)
        and (leaves is None or len(leaves) <= MAX_BORDERS)
        and (bias is None or (bias.dtype in DTYPES and bias.is_contiguous()))
    )


def _leaves_and_bias(
    leaves: Sequence[int] | None, features: int, bias: Tensor | None, group: int = 0
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Address and number of the borders, address and type of the bias; zeros for None."""
    borders = (0, 0)
    if leaves is not None:
        kept = checks.leaf_borders(tuple(leaves), features, group)
        borders = (kept.data_ptr(), len(leaves))
    return borders, (0, 0) if bias is None else (bias.data_ptr(), DTYPES[bias.dtype])


@register_op("linear", impl="simd_quant", device="cpu", when=_takes_quantized)
def linear_quant(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """Weights of eight and four bits, fp32 activations. Rows may be strided views."""
    assert isinstance(weight, QuantTensor)
    checks.check_linear(x, weight, bias)
    (rows, features), columns = x.shape, weight.shape[0]
    y = torch.empty((rows, columns))
    borders, added = _leaves_and_bias(leaves, features, bias, weight.run)
    kernels.linear_quant(
        x.data_ptr(), x.stride(0), weight.values.data_ptr(), weight.values.stride(0),
        INT8 if weight.bits == 8 else INT4, *added, y.data_ptr(), rows, columns, features,
        *borders, weight.scales.data_ptr(), weight.scales.stride(0), weight.run,
    )  # fmt: skip
    return y


def _takes_linear(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> bool:
    return (  # written out: the most frequent call of a model
        isinstance(weight, Tensor)
        and weight.dtype in DTYPES
        and weight.stride(-1) == 1
        and x.dtype == torch.float32
        and x.stride(-1) == 1
        and (bias is None or (bias.dtype in DTYPES and bias.is_contiguous()))
        and (leaves is None or len(leaves) <= MAX_BORDERS)
    )


@register_op("linear", impl="simd", device="cpu", when=_takes_linear)
def linear(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """Rows of x and weight may be strided views."""
    assert isinstance(weight, Tensor)
    checks.check_linear(x, weight, bias)
    (rows, features), columns = x.shape, weight.shape[0]
    y = torch.empty((rows, columns))
    borders, added = _leaves_and_bias(leaves, features, bias)
    kernels.linear(
        x.data_ptr(), x.stride(0), weight.data_ptr(), weight.stride(0), DTYPES[weight.dtype],
        *added, y.data_ptr(), rows, columns, features, *borders,
    )  # fmt: skip
    return y
