"""Refusals that all implementations share: shapes that don't fit, in one line."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from atb_dist.quant import QuantTensor


def check_linear(x: Tensor, weight: Tensor | QuantTensor, bias: Tensor | None) -> None:
    """x [T, I], weight [O, I], bias [O]."""
    shape, weight_shape = x.shape, weight.shape
    if len(shape) != 2 or len(weight_shape) != 2 or shape[1] != weight_shape[1]:
        raise ValueError(
            f"linear: weight {list(weight_shape)} doesn't fit x {list(shape)}: "
            f"inner sizes {weight_shape[-1]} ≠ {shape[-1]}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"linear: bias {list(bias.shape)} doesn't fit weight {list(weight.shape)}: "
            f"it needs [{weight.shape[0]}]"
        )


@lru_cache(maxsize=1024)
def leaf_borders(leaves: tuple[int, ...], features: int, run: int = 0) -> Tensor:
    """Return the borders as int64, once they are known to rise from 0 to the features.

    run: neighbouring features that quantized weights keep together, or 0; see QuantTensor.run.
    """
    rising = len(leaves) >= 2 and all(a <= b for a, b in itertools.pairwise(leaves))
    if not rising or leaves[0] != 0 or leaves[-1] != features:
        raise ValueError(
            f"linear: leaves {list(leaves)} must rise from 0 to {features}, the features of x"
        )
    cut = [border for border in leaves[1:-1] if run and border % run]
    if cut:
        raise ValueError(
            f"linear: leaves {list(leaves)} cut a group of {run} quantized weights at {cut[0]}; "
            "cut at multiples of it"
        )
    return torch.tensor(leaves, dtype=torch.int64)


def check_rms_norm(x: Tensor, weight: Tensor) -> None:
    """x [T, D], weight [D]."""
    if x.dim() != 2 or weight.shape != x.shape[1:]:
        raise ValueError(f"rms_norm: weight {list(weight.shape)} doesn't fit x {list(x.shape)}")


def check_rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """q [T, H, E], k [T, K, E], positions [T], cos_sin [max, E], E even."""
    fits = q.dim() == 3 and k.dim() == 3 and q.shape[0] == k.shape[0] == positions.numel()
    if not fits or q.shape[2] != k.shape[2] or q.shape[2] % 2:
        raise ValueError(
            f"rope: q {list(q.shape)}, k {list(k.shape)} and {positions.numel()} positions "
            "don't fit: they need one row count and one even head size"
        )
    if cos_sin.dim() != 2 or cos_sin.shape[1] != q.shape[2]:
        raise ValueError(
            f"rope: cos_sin {list(cos_sin.shape)} doesn't fit heads of {q.shape[2]}: "
            f"it needs [positions, {q.shape[2]}]"
        )


def check_swiglu(gate_up: Tensor) -> None:
    """gate_up [T, 2F]."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"swiglu: {list(gate_up.shape)} is not [rows, gate and up features]")


def check_cache_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> None:
    """k, v [T, K, E], caches [B, P, K, E], slots [T]."""
    fits = k.dim() == 3 and k.shape == v.shape and k_cache.dim() == 4
    if not fits or k_cache.shape != v_cache.shape or k_cache.shape[2:] != k.shape[1:]:
        raise ValueError(
            f"reshape_and_cache: k {list(k.shape)} and v {list(v.shape)} don't fit caches "
            f"{list(k_cache.shape)} and {list(v_cache.shape)}"
        )
    if slots.shape != k.shape[:1]:
        raise ValueError(f"reshape_and_cache: {slots.numel()} slots for {k.shape[0]} rows")


def check_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, query_starts: Tensor
) -> None:
    """q [T, H, E], caches [B, P, K, E], block_tables [S, W], query_starts [S+1]."""
    fits = q.dim() == 3 and k_cache.dim() == 4 and k_cache.shape == v_cache.shape
    if not fits or k_cache.shape[3] != q.shape[2] or q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"paged_attention: q {list(q.shape)} doesn't fit caches {list(k_cache.shape)} and "
            f"{list(v_cache.shape)}: head sizes must agree and KV heads divide the heads"
        )
    if block_tables.dim() != 2 or query_starts.numel() != block_tables.shape[0] + 1:
        raise ValueError(
            f"paged_attention: {query_starts.numel()} query_starts for block_tables "
            f"{list(block_tables.shape)}: S sequences need S + 1"
        )


def check_ids(ids: Tensor, weight: Tensor) -> None:
    """ids [T] of integers, weight [V, D]."""
    if ids.dim() != 1 or weight.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"embedding: ids {list(ids.shape)} of {ids.dtype} don't fit weight "
            f"{list(weight.shape)}: ids must be [T] of int64"
        )


def check_groups(
    x: Tensor,
    weights: Tensor | Sequence[Tensor | QuantTensor],
    group_starts: Tensor,
    rows: Tensor | None,
    out: Tensor | None,
) -> None:
    """x [T, I], weights G of [O, I], group_starts [G+1] from 0 to R, rows [R], out [R, O]."""
    op, groups = "grouped_matmul", len(weights)
    shapes = {tuple(weight.shape) for weight in weights}
    if x.dim() != 2 or len(shapes) != 1 or {len(s) for s in shapes} != {2}:
        raise ValueError(
            f"{op}: x {list(x.shape)} and {groups} weights of shapes {sorted(shapes)}: it needs "
            "[T, I] and weights of one shape [O, I]"
        )
    outputs, features = shapes.pop()
    if features != x.shape[1]:
        raise ValueError(
            f"{op}: weights [{outputs}, {features}] don't fit x {list(x.shape)}: "
            f"inner sizes {features} ≠ {x.shape[1]}"
        )
    total = x.shape[0] if rows is None else rows.numel()
    starts = group_starts.tolist()
    rising = all(a <= b for a, b in itertools.pairwise(starts))
    if len(starts) != groups + 1 or starts[0] != 0 or starts[-1] != total or not rising:
        raise ValueError(
            f"{op}: group_starts {starts} must be {groups + 1} numbers rising from 0 to {total}"
        )
    if rows is not None and total and not 0 <= int(rows.min()) <= int(rows.max()) < x.shape[0]:
        raise ValueError(
            f"{op}: rows {int(rows.min())} to {int(rows.max())} reach outside the {x.shape[0]} of x"
        )
    if out is not None and out.shape != (total, outputs):
        raise ValueError(f"{op}: out {list(out.shape)} must be [{total}, {outputs}]")


def check_combine(x: Tensor, rows: Tensor, scales: Tensor, num_tokens: int) -> None:
    """x [R, D], rows [R] below num_tokens, scales [R]."""
    if x.dim() != 2 or rows.shape != x.shape[:1] or scales.shape != x.shape[:1]:
        raise ValueError(
            f"combine_experts: rows {list(rows.shape)} and scales {list(scales.shape)} don't fit "
            f"x {list(x.shape)}"
        )
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < num_tokens:
        raise ValueError(
            f"combine_experts: rows {int(rows.min())} to {int(rows.max())} reach outside the "
            f"{num_tokens} tokens"
        )
