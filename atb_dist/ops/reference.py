"""The operators in plain torch, for any device: what every implementation is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from atb_dist.comm.tree import combine_in_tree
from atb_dist.ops import checks
from atb_dist.ops.registry import register_op
from atb_dist.quant import QuantTensor, dequantize, quantize_rows


@register_op("embedding", impl="reference")
def embedding(ids: Tensor, weight: Tensor, *, first_id: int = 0) -> Tensor:
    """Look up ids; rows of ids outside [first_id, first_id + V/N) are zero."""
    checks.check_ids(ids, weight)
    local = ids - first_id
    mine = (local >= 0) & (local < weight.shape[0])
    if weight.shape[0] == 0:
        rows = weight.new_zeros(ids.shape[0], weight.shape[1])
    else:
        rows = functional.embedding(local.where(mine, 0), weight)
    rows = rows.float() if weight.device.type == "cpu" else rows
    return rows.masked_fill(~mine[:, None], 0.0)


@register_op("linear", impl="reference")
def linear(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """Multiply leaf by leaf and add the leaves in a balanced tree; without leaves there is one."""
    checks.check_linear(x, weight, bias)
    run = weight.run if isinstance(weight, QuantTensor) else 0
    if leaves is not None:
        checks.leaf_borders(tuple(leaves), x.shape[1], run)
    if isinstance(weight, QuantTensor):
        if weight.quantized_activations:
            total = _multiply_integers(x, weight, leaves or (0, x.shape[1]))
            return total if bias is None else total + bias.float()
        weight = dequantize(weight)
    if leaves is None:
        return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    parts = [
        functional.linear(x[:, low:high].float(), weight[:, low:high].float())
        for low, high in itertools.pairwise(leaves)
    ]
    total = combine_in_tree(parts)
    return total if bias is None else total + bias.float()


def _multiply_integers(x: Tensor, weight: QuantTensor, leaves: Sequence[int]) -> Tensor:
    """Round each leaf of each row to int8 by its own scale; products are exact in float64."""
    parts = []
    for low, high in itertools.pairwise(leaves):
        integers, scales = quantize_rows(x[:, low:high].float())
        exact = integers.double() @ weight.values[:, low:high].double().t()
        parts.append(exact.float() * (scales[:, None] * weight.scales[:, 0]))
    return combine_in_tree(parts)


@register_op("rms_norm", impl="reference")
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Compute in fp32 and return x's type."""
    checks.check_rms_norm(x, weight)
    wide = x.float()
    scale = 1.0 / (wide.square().mean(dim=1, keepdim=True) + eps).sqrt()
    return (wide * scale * weight.float()).to(x.dtype)


@register_op("rope", impl="reference")
def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate both halves of every head in fp32."""
    checks.check_rope(q, k, positions, cos_sin)
    _refuse_outside("rope: position", positions, cos_sin.shape[0])
    half = q.shape[2] // 2
    cos, sin = cos_sin[positions, None, :half], cos_sin[positions, None, half:]
    for heads in (q, k):
        first, second = heads[..., :half].float(), heads[..., half:].float()
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)
        heads.copy_(rotated)


@register_op("swiglu", impl="reference")
def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(first half) · second half."""
    checks.check_swiglu(gate_up)
    gate, up = gate_up.chunk(2, dim=1)
    return functional.silu(gate) * up


@register_op("reshape_and_cache", impl="reference")
def reshape_and_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> None:
    """Write rows into their slots."""
    checks.check_cache_write(k, v, k_cache, v_cache, slots)
    _refuse_outside("reshape_and_cache: slot", slots, k_cache.shape[0] * k_cache.shape[1])
    for rows, cache in ((k, k_cache), (v, v_cache)):
        cache.view(-1, *cache.shape[2:])[slots.long()] = rows.to(cache.dtype)


@register_op("paged_attention", impl="reference")
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
    """Gather each sequence's pages, then plain attention in fp32."""
    checks.check_attention(q, k_cache, v_cache, block_tables, query_starts)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    starts, contexts = query_starts.tolist(), context_lens.tolist()
    if starts[0] != 0 or starts[-1] != q.shape[0]:
        raise ValueError(
            f"paged_attention: query_starts must run from 0 to {q.shape[0]}, the rows of q; "
            f"they run {starts[0]} to {starts[-1]}"
        )
    group = q.shape[1] // k_cache.shape[2]
    for s, context in enumerate(contexts):
        begin, end = starts[s], starts[s + 1]
        if end == begin:
            continue
        pages = _pages(s, end - begin, context, block_tables, k_cache)
        k, v = (cache[pages].flatten(0, 1)[:context].float() for cache in (k_cache, v_cache))
        k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
        scores = torch.einsum("the,jhe->htj", q[begin:end].float(), k) * scale
        positions = torch.arange(context - (end - begin), context, device=q.device)
        hidden = torch.arange(context, device=q.device) > positions[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[begin:end] = torch.einsum("htj,jhe->the", weights, v).to(q.dtype)
    return out


def _pages(s: int, rows: int, context: int, block_tables: Tensor, k_cache: Tensor) -> Tensor:
    """Return the block ids that hold a sequence's context, checked."""
    if rows < 0 or context < rows:
        raise ValueError(
            f"paged_attention: sequence {s} has {rows} rows but a context of {context}"
        )
    needed = -(-context // k_cache.shape[1])
    if needed > block_tables.shape[1]:
        raise ValueError(
            f"paged_attention: sequence {s} needs {needed} blocks for a context of {context}, "
            f"its block table has {block_tables.shape[1]}"
        )
    pages = block_tables[s, :needed].long()
    _refuse_outside("paged_attention: block", pages, k_cache.shape[0])
    return pages


def _refuse_outside(what: str, values: Tensor, limit: int) -> None:
    if values.numel() and (int(values.min()) < 0 or int(values.max()) >= limit):
        low, high = int(values.min()), int(values.max())
        raise ValueError(f"{what}s {low} to {high} reach outside the {limit} there are")
