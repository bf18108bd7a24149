"""Mixture of experts in plain torch: routing, grouped matmul, combining. The reference."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from atb_dist.ops import checks
from atb_dist.ops.calls import linear
from atb_dist.ops.registry import register_op
from atb_dist.quant import QuantTensor


@register_op("moe_route", impl="reference")
def moe_route(
    logits: Tensor, *, top_k: int, renormalize: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose by a stable sort, so that ties go to the lowest expert."""
    if logits.dim() != 2 or not 1 <= top_k <= logits.shape[1]:
        raise ValueError(f"moe_route: top_k={top_k} of logits {list(logits.shape)} is not possible")
    tokens, experts = logits.shape
    ordered, chosen = logits.float().softmax(dim=1).sort(dim=1, descending=True, stable=True)
    scales, chosen = ordered[:, :top_k], chosen[:, :top_k]
    if renormalize:
        scales = scales / scales.sum(dim=1, keepdim=True)
    by_expert = chosen.flatten().argsort(stable=True)
    rows = torch.arange(tokens, device=logits.device).repeat_interleave(top_k)[by_expert]
    counts = torch.bincount(chosen.flatten(), minlength=experts).cpu()
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    return rows, starts, scales.flatten()[by_expert]


@register_op("grouped_matmul", impl="reference")
def grouped_matmul(
    x: Tensor,
    weights: Tensor | Sequence[Tensor | QuantTensor],
    group_starts: Tensor,
    *,
    rows: Tensor | None = None,
    out: Tensor | None = None,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """One linear to each group."""
    checks.check_groups(x, weights, group_starts, rows, out)
    gathered = x if rows is None else x[rows]
    starts = group_starts.tolist()
    parts = [
        linear(gathered[low:high], weight, leaves=leaves)
        for (low, high), weight in zip(itertools.pairwise(starts), weights, strict=True)
    ]
    product = torch.cat(parts)
    return product if out is None else out.add_(product)


@register_op("combine_experts", impl="reference")
def combine_experts(x: Tensor, rows: Tensor, scales: Tensor, *, num_tokens: int) -> Tensor:
    """Scale and add rows to their tokens, in fp32."""
    checks.check_combine(x, rows, scales, num_tokens)
    out = torch.zeros(num_tokens, x.shape[1], dtype=torch.float32, device=x.device)
    return out.index_add_(0, rows, x.float() * scales[:, None]).to(x.dtype)
