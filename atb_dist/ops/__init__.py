"""Operators: `ops.rms_norm(...)` goes to the best implementation for its arguments and device."""

from __future__ import annotations

import importlib

# First of all, in order of preference from last to first: reference fixes the signatures. A
# submodule that shares its name with an operator must be loaded before the name is bound below.
for _module in (
    "reference", "experts", "cpu", "cpu_linear", "cpu_experts", "linear_parallel",
    "all_reduce_rms_norm",
):  # fmt: skip
    importlib.import_module(f"atb_dist.ops.{_module}")

from atb_dist.ops.calls import (  # noqa: E402
    Kind,
    all_reduce_rms_norm,
    combine_experts,
    embedding,
    grouped_matmul,
    linear,
    linear_parallel,
    moe_route,
    paged_attention,
    reshape_and_cache,
    rms_norm,
    rope,
    swiglu,
)
from atb_dist.ops.cpu import num_threads, set_num_threads, simd_level  # noqa: E402
from atb_dist.ops.registry import (  # noqa: E402
    apply_overrides,
    implementations,
    override,
    register_op,
    table,
)

__all__ = [
    "Kind",
    "all_reduce_rms_norm",
    "combine_experts",
    "embedding",
    "grouped_matmul",
    "implementations",
    "linear",
    "linear_parallel",
    "moe_route",
    "num_threads",
    "override",
    "paged_attention",
    "register_op",
    "reshape_and_cache",
    "rms_norm",
    "rope",
    "set_num_threads",
    "simd_level",
    "swiglu",
    "table",
]

apply_overrides()
