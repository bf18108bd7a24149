"""The C++ kernels as implementations for CPU tensors. The only module that loads `_kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from atb_dist import _kernels
from atb_dist.errors import ConfigError
from atb_dist.ops import checks
from atb_dist.ops.registry import register_op

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
kernels = _kernels  # for cpu_linear.py: this is the only module that loads them

try:
    simd_level: str = kernels.simd_level()
except ValueError as error:  # ATB_DIST_SIMD names what this CPU does not have
    raise ConfigError(str(error)) from None


def num_threads() -> int:
    """How many threads share a kernel call."""
    return kernels.num_threads()


def set_num_threads(count: int) -> None:
    """Let count threads share each kernel call, the calling one included."""
    kernels.set_num_threads(count)


def is_rows(x: Tensor) -> bool:
    """Whether x is fp32 with contiguous rows."""
    return x.dtype == torch.float32 and x.stride(-1) == 1


def _is_heads(x: Tensor) -> bool:
    return x.dim() == 3 and is_rows(x)


def _takes_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> bool:  # noqa: ARG001
    return is_rows(x) and weight.dtype in DTYPES and weight.is_contiguous()


@register_op("rms_norm", impl="simd", device="cpu", when=_takes_rms_norm)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Rows of x may be a strided view."""
    checks.check_rms_norm(x, weight)
    rows, width = x.shape
    y = torch.empty((rows, width))
    kernels.rms_norm(
        x.data_ptr(), x.stride(0), weight.data_ptr(), DTYPES[weight.dtype], y.data_ptr(),
        rows, width, eps,
    )  # fmt: skip
    return y


def _takes_rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> bool:
    return (
        _is_heads(q)
        and _is_heads(k)
        and positions.dtype == torch.int64
        and positions.is_contiguous()
        and cos_sin.dtype == torch.float32
        and cos_sin.is_contiguous()
    )


@register_op("rope", impl="simd", device="cpu", when=_takes_rope)
def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Heads may be strided views, as cut from one qkv tensor."""
    checks.check_rope(q, k, positions, cos_sin)
    for heads in (q, k):
        kernels.rope(
            heads.data_ptr(), heads.stride(0), heads.stride(1), positions.data_ptr(),
            cos_sin.data_ptr(), cos_sin.shape[0], *heads.shape,
        )  # fmt: skip


@register_op("swiglu", impl="simd", device="cpu", when=is_rows)
def swiglu(gate_up: Tensor) -> Tensor:
    """Rows may be a strided view."""
    checks.check_swiglu(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty((rows, width))
    kernels.swiglu(gate_up.data_ptr(), gate_up.stride(0), y.data_ptr(), rows, width)
    return y


def _takes_embedding(ids: Tensor, weight: Tensor, *, first_id: int = 0) -> bool:  # noqa: ARG001
    return (
        ids.dtype == torch.int64
        and ids.is_contiguous()
        and weight.dtype in DTYPES
        and weight.stride(-1) == 1
    )


@register_op("embedding", impl="simd", device="cpu", when=_takes_embedding)
def embedding(ids: Tensor, weight: Tensor, *, first_id: int = 0) -> Tensor:
    """Rows of weight may be a strided view."""
    checks.check_ids(ids, weight)
    rows, width = ids.shape[0], weight.shape[1]
    y = torch.empty((rows, width))
    kernels.embedding(
        ids.data_ptr(), weight.data_ptr(), weight.stride(0), DTYPES[weight.dtype], y.data_ptr(),
        rows, width, first_id, weight.shape[0],
    )  # fmt: skip
    return y


def _is_cache(cache: Tensor) -> bool:
    return cache.dtype in DTYPES and cache.is_contiguous()


def _takes_cache_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> bool:
    return (
        _is_heads(k)
        and _is_heads(v)
        and _is_cache(k_cache)
        and _is_cache(v_cache)
        and slots.dtype == torch.int32
        and slots.is_contiguous()
    )


@register_op("reshape_and_cache", impl="simd", device="cpu", when=_takes_cache_write)
def reshape_and_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> None:
    """Heads may be strided views; the caches are contiguous."""
    checks.check_cache_write(k, v, k_cache, v_cache, slots)
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    for heads, cache in ((k, k_cache), (v, v_cache)):
        kernels.cache_write(
            heads.data_ptr(), heads.stride(0), heads.stride(1), cache.data_ptr(),
            DTYPES[cache.dtype], num_slots, slots.data_ptr(), *heads.shape,
        )  # fmt: skip


def _takes_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    *sequences: Tensor,
    scale: float,  # noqa: ARG001
) -> bool:
    return (
        _is_heads(q)
        and _is_cache(k_cache)
        and _is_cache(v_cache)
        and k_cache.dtype == v_cache.dtype
        and block_tables.dtype == torch.int32
        and block_tables.stride(-1) == 1
        and all(x.dtype == torch.int32 and x.is_contiguous() for x in sequences)
    )


@register_op("paged_attention", impl="simd", device="cpu", when=_takes_attention)
def paged_attention(  # noqa: PLR0917
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Heads of q may be a strided view; the caches are contiguous."""
    checks.check_attention(q, k_cache, v_cache, block_tables, query_starts)
    (rows, heads, size), (blocks, block_size, kv_heads, _) = q.shape, k_cache.shape
    out = torch.empty((rows, heads, size))
    kernels.paged_attention(
        q.data_ptr(), q.stride(0), q.stride(1), k_cache.data_ptr(), v_cache.data_ptr(),
        DTYPES[k_cache.dtype], blocks, block_size, kv_heads, block_tables.data_ptr(),
        block_tables.stride(0), block_tables.shape[1], query_starts.data_ptr(),
        context_lens.data_ptr(), out.data_ptr(), rows, context_lens.numel(), heads, size, scale,
    )  # fmt: skip
    return out
