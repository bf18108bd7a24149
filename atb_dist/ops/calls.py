"""The operators as callers see them. Each call goes to the best implementation registered.

Shapes: T tokens of a step, S sequences, H/K query/KV heads on this rank, E head size, F MLP width
on this rank, I/O input/output features, B blocks of P positions, W blocks a table row has,
N ranks. On CPUs activations are fp32 whatever the weights' type. All bits of a row are
independent of the other rows of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, overload

from torch import Tensor

from atb_dist.ops import registry
from atb_dist.quant import QuantTensor

if TYPE_CHECKING:
    from atb_dist.comm.base import TensorParallel
    from atb_dist.comm.grid import Grid

_embedding = registry.op("embedding")
_linear = registry.op("linear")
_rms_norm = registry.op("rms_norm")
_rope = registry.op("rope")
_swiglu = registry.op("swiglu")
_reshape_and_cache = registry.op("reshape_and_cache")
_paged_attention = registry.op("paged_attention")
_moe_route = registry.op("moe_route")
_grouped_matmul = registry.op("grouped_matmul")
_combine_experts = registry.op("combine_experts")
_linear_parallel = registry.op("linear_parallel")
_all_reduce_rms_norm = registry.op("all_reduce_rms_norm")


class Kind(StrEnum):
    """What linear_parallel does with its product over ranks."""

    PURE_LINEAR = "pure_linear"  # nothing
    LINEAR_ALL_REDUCE = "linear_all_reduce"  # sum it
    LINEAR_REDUCE_SCATTER = "linear_reduce_scatter"  # sum it, keep this rank's rows
    ALL_GATHER_LINEAR = "all_gather_linear"  # first join the rows of all ranks
    ALL_GATHER_LINEAR_REDUCE_SCATTER = "all_gather_linear_reduce_scatter"  # both, on a 2-D grid


def embedding(ids: Tensor, weight: Tensor, *, first_id: int = 0) -> Tensor:
    """Look up ids [T] in weight [V/N, D], whose first row is first_id → [T, D].

    Rows of ids that other ranks hold are zero: the sum over ranks is the embedding.
    """
    result: Tensor = _embedding(ids, weight, first_id=first_id)
    return result


def linear(
    x: Tensor,
    weight: Tensor | QuantTensor,
    bias: Tensor | None = None,
    *,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """Multiply x [T, I] by weight [O, I] transposed, plus bias [O] → [T, O].

    leaves: borders, from 0 to I, of the parts of I that are summed alone and then joined in a
    balanced tree: sum(lo, hi) = sum(lo, mid) + sum(mid, hi) with mid = (lo + hi) // 2. A rank that
    holds a subtree of a row-parallel weight's leaves adds the same numbers in the same order as
    one rank that holds all. With leaves the result is fp32.
    """
    result: Tensor = _linear(x, weight, bias, leaves=leaves)
    return result


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Scale each row of x [T, D] to a root mean square of one, times weight [D]."""
    result: Tensor = _rms_norm(x, weight, eps=eps)
    return result


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate the heads of q [T, H, E] and k [T, K, E] in place by positions [T].

    Pairs are half a head apart. cos_sin [max, E]: E/2 cosines, then E/2 sines, by position.
    """
    _rope(q, k, positions, cos_sin)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) · up for gate_up [T, 2F], gate first → [T, F]."""
    result: Tensor = _swiglu(gate_up)
    return result


def reshape_and_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> None:
    """Write k and v [T, K, E] into the slots [T] of the caches [B, P, K, E], rounding once.

    Slot = block · P + offset. A slot outside the cache is refused before anything is written.
    """
    _reshape_and_cache(k, v, k_cache, v_cache, slots)


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
    """Attend from q [T, H, E] to the cached keys and values [B, P, K, E] → [T, H, E].

    Rows query_starts[s] to query_starts[s+1] belong to sequence s; row t stands at position
    context_lens[s] - (query_starts[s+1] - t) and sees positions 0 to its own, found through
    block_tables [S, W]. H/K neighbouring query heads share a KV head. The bits of a row depend
    neither on the batch nor on how the prompt was cut into chunks.
    """
    result: Tensor = _paged_attention(
        q, k_cache, v_cache, block_tables, query_starts, context_lens, scale=scale
    )
    return result


def moe_route(
    logits: Tensor, *, top_k: int, renormalize: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Send each token to its top_k of G experts, by logits [T, G] → (rows, group_starts, scales).

    rows [T·k]: the tokens of expert 0, then of expert 1, ..., each expert's in order.
    group_starts [G+1]: where each expert's begin. scales [T·k]: softmax of the expert over all G,
    divided by the sum over the chosen ones if renormalize. Ties go to the lowest expert.
    """
    routing: tuple[Tensor, Tensor, Tensor] = _moe_route(
        logits, top_k=top_k, renormalize=renormalize
    )
    return routing


def grouped_matmul(
    x: Tensor,
    weights: Tensor | Sequence[Tensor | QuantTensor],
    group_starts: Tensor,
    *,
    rows: Tensor | None = None,
    out: Tensor | None = None,
    leaves: Sequence[int] | None = None,
) -> Tensor:
    """Multiply each group of rows by the group's own weight → [R, O].

    x             [T, I]
    weights       G of [O, I], or one tensor [G, O, I]
    group_starts  [G+1] int64 on the host, from 0 to R: group g has rows group_starts[g] on
    rows          [R] int64: row r of the result is from x[rows[r]]; None: from x[r], R = T
    out           [R, O] fp32: the product is added to it, and it is returned
    leaves        as in linear
    """
    options = {"rows": rows, "out": out, "leaves": leaves}
    result: Tensor = _grouped_matmul(x, weights, group_starts, **options)
    return result


def combine_experts(x: Tensor, rows: Tensor, scales: Tensor, *, num_tokens: int) -> Tensor:
    """Sum what experts made of each token: y[t] = Σ scales[r] · x[r] over rows[r] = t → [T, D].

    x [R, D], rows [R] int64, scales [R] fp32; terms are added in order of r.
    """
    result: Tensor = _combine_experts(x, rows, scales, num_tokens=num_tokens)
    return result


@overload
def linear_parallel(
    x: Tensor, weight: Tensor | QuantTensor, tp: TensorParallel, *, kind: Kind = ...,
    bias: Tensor | None = ..., residual: Tensor | None = ..., leaves: Sequence[int] | None = ...,
    chunks: int | None = ..., grid: Grid | None = ..., return_gathered: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip


@overload
def linear_parallel(
    x: Tensor, weight: Tensor | QuantTensor, tp: TensorParallel, *, kind: Kind = ...,
    bias: Tensor | None = ..., residual: Tensor | None = ..., leaves: Sequence[int] | None = ...,
    chunks: int | None = ..., grid: Grid | None = ..., return_gathered: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def linear_parallel(
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
    """Multiply by this rank's weights and combine over ranks, overlapping the two.

    x         [T, I/N]   (ALL_GATHER_LINEAR: this rank's rows of [T, I])
    weight    [O, I/N]   (ALL_GATHER_LINEAR, PURE_LINEAR: [O/N, I])
    returns   [T, O]     (LINEAR_REDUCE_SCATTER: rows ⌊r·T/N⌋ to ⌊(r+1)·T/N⌋;
                          ALL_GATHER_LINEAR, PURE_LINEAR: [T, O/N])

    ALL_GATHER_LINEAR_REDUCE_SCATTER needs a grid (`comm.grid.cut_into_grid`) of G gathering times
    S scattering ranks: x is this rank's rows of [T, I/S], weight [O/G, I/S], the result [T/S, O/G].

    bias and residual are added once, after the sum. residual has the shape of the result, but all
    T rows where rows are dealt out. chunks: None chooses by size, 1 switches overlap off. It does
    not change the bits. return_gathered (ALL_GATHER_LINEAR): return the joined x [T, I] as well.
    """
    result: Tensor | tuple[Tensor, Tensor] = _linear_parallel(
        x, weight, tp, kind=kind, bias=bias, residual=residual, leaves=leaves, chunks=chunks,
        grid=grid, return_gathered=return_gathered,
    )  # fmt: skip
    return result


def all_reduce_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, tp: TensorParallel, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Sum x [T, D] over ranks, add residual [T, D] once, norm by weight [D] → (sum, normed).

    x is overwritten: it becomes the sum with the residual, in which the next layer's residual is.
    """
    result: tuple[Tensor, Tensor] = _all_reduce_rms_norm(x, residual, weight, tp, eps=eps)
    return result
