"""Every registered implementation of every operator gives what the reference gives.

An implementation is tested as soon as it is registered; an operator needs cases in op_cases.py.
Operators with ranks have files of their own.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from op_cases import CASES, Case, noise
from torch import Tensor

from atb_dist import ops
from atb_dist.ops.registry import REFERENCE, Implementation
from atb_dist.quant import QuantTensor, quantize

WITH_RANKS = {"linear_parallel", "all_reduce_rms_norm"}


def outcome(implementation: Implementation, case: Case) -> list[Tensor]:
    """What a call returns, or what it leaves in the arguments that it changes."""
    args, options = deepcopy((case.args, case.options))
    result = implementation.run(*args, **options)
    return [args[i] for i in case.changed] if case.changed else [result]


def others() -> list[Implementation]:
    return [
        i
        for row in ops.table("cpu")
        if row.op not in WITH_RANKS
        for i in ops.implementations(row.op)
        if i.name != REFERENCE and i.device in (None, "cpu")
    ]


def name(implementation: Implementation) -> str:
    return f"{implementation.op}-{implementation.name}"


@pytest.mark.parametrize("implementation", others(), ids=name)
def test_implementation_agrees_with_the_reference(implementation: Implementation) -> None:
    reference = ops.implementations(implementation.op)[-1]
    assert reference.name == REFERENCE
    taken = 0
    for case in CASES[implementation.op]():
        if implementation.when and not implementation.when(*case.args, **case.options):
            continue
        taken += 1
        for found, wanted in zip(
            outcome(implementation, case), outcome(reference, case), strict=True
        ):
            assert found.dtype == wanted.dtype, case.name
            assert found.shape == wanted.shape, case.name
            torch.testing.assert_close(
                found.float(), wanted.float(), rtol=case.tolerance, atol=case.tolerance,
                msg=lambda text, case=case: f"{case.name}: {text}",
            )  # fmt: skip
    assert taken >= 3, "the cases hardly touch this implementation"


def test_every_operator_has_a_reference_and_cases() -> None:
    for row in ops.table("cpu"):
        assert row.implementations[-1] == REFERENCE, row
        assert row.op in CASES or row.op in WITH_RANKS, row


BAD: dict[str, list[tuple[tuple[Any, ...], dict[str, Any], str]]] = {
    "embedding": [((torch.zeros(2, 2).long(), torch.ones(3, 4)), {}, "ids")],
    "linear": [
        ((torch.ones(7, 256), torch.ones(1024, 512)), {}, "inner sizes 512 ≠ 256"),
        ((torch.ones(7, 8), torch.ones(4, 8), torch.ones(5)), {}, "it needs .4."),
        ((torch.ones(7, 8), torch.ones(4, 8)), {"leaves": (0, 9)}, "rise from 0 to 8"),
        ((torch.ones(7, 8), torch.ones(4, 8)), {"leaves": (0, 6, 4, 8)}, "rise from 0 to 8"),
        ((torch.ones(7, 8), torch.ones(4, 8)), {"leaves": (1, 8)}, "rise from 0 to 8"),
        ((torch.ones(7, 8), torch.ones(4, 8)), {"leaves": ()}, "rise from 0 to 8"),
        (
            (torch.ones(7, 96), quantize(torch.ones(4, 96), group=32)),
            {"leaves": (0, 48, 96)},
            "cut a group of 32 quantized weights at 48",
        ),
    ],
    "rms_norm": [((torch.ones(3, 8), torch.ones(9)), {"eps": 1e-5}, "doesn't fit")],
    "swiglu": [((torch.ones(2, 5),), {}, "gate and up")],
}


def rope_call(k_rows: int, size: int, table: int, position: int) -> tuple[Tensor, ...]:
    q, k = torch.ones(2, 1, size), torch.ones(k_rows, 1, size)
    return q, k, torch.tensor([0, position]), torch.ones(9, table)


BAD["rope"] = [
    (rope_call(3, 4, 4, 0), {}, "row count"),
    (rope_call(2, 4, 6, 0), {}, "cos_sin"),
    (rope_call(2, 3, 3, 0), {}, "even"),
    (rope_call(2, 4, 4, 9), {}, "9"),
    (rope_call(2, 4, 4, -1), {}, "-1"),
]


def cache_call(kv_heads: int, slots: list[int]) -> tuple[Tensor, ...]:
    rows, cache = torch.ones(2, 1, 4), torch.ones(3, 2, kv_heads, 4)
    return rows, rows, cache, cache, torch.tensor(slots, dtype=torch.int32)


BAD["reshape_and_cache"] = [
    (cache_call(2, [0, 1]), {}, "don't fit"),
    (cache_call(1, [0, 1, 2]), {}, "3 slots for 2"),
    (cache_call(1, [0, 6]), {}, "outside"),
    (cache_call(1, [-1, 0]), {}, "outside"),
]


def attention_call(
    *, q: tuple[int, ...] = (2, 4, 8), blocks: list[int], starts: list[int], contexts: list[int]
) -> tuple[Tensor, ...]:
    cache = torch.zeros(5, 4, 2, 8)
    integers = (torch.tensor(x, dtype=torch.int32) for x in ([blocks], starts, contexts))
    return (torch.zeros(q), cache, cache, *integers)


BAD["grouped_matmul"] = [
    ((torch.ones(4, 8), torch.ones(2, 3, 9), torch.tensor([0, 1, 4])), {}, "inner sizes 9 ≠ 8"),
    ((torch.ones(4, 8), torch.ones(2, 3, 8), torch.tensor([0, 4])), {}, "3 numbers rising"),
    ((torch.ones(4, 8), torch.ones(2, 3, 8), torch.tensor([0, 3, 2])), {}, "from 0 to 4"),
    (
        (torch.ones(4, 8), [torch.ones(3, 8), torch.ones(2, 8)], torch.tensor([0, 1, 4])),
        {},
        "one shape",
    ),
    (
        (torch.ones(4, 8), torch.ones(2, 3, 8), torch.tensor([0, 1, 2])),
        {"rows": torch.tensor([0, 4])},
        "rows 0 to 4 reach outside the 4",
    ),
    (
        (torch.ones(4, 8), torch.ones(2, 3, 8), torch.tensor([0, 1, 4])),
        {"out": torch.ones(4, 8)},
        "must be .4, 3.",
    ),
]  # fmt: skip
BAD["combine_experts"] = [
    ((torch.ones(4, 8), torch.zeros(3).long(), torch.ones(4)), {"num_tokens": 2}, "don't fit"),
    ((torch.ones(2, 8), torch.tensor([0, 2]), torch.ones(2)), {"num_tokens": 2}, "the 2 tokens"),
]
BAD["moe_route"] = [((torch.ones(4, 8),), {"top_k": k}, f"top_k={k}") for k in (0, 9)]
BAD["paged_attention"] = [
    (attention_call(**call), {"scale": 1.0}, text)
    for call, text in (
        ({"q": (2, 3, 8), "blocks": [0], "starts": [0, 2], "contexts": [2]}, "divide the heads"),
        ({"q": (2, 4, 9), "blocks": [0], "starts": [0, 2], "contexts": [2]}, "head sizes"),
        ({"blocks": [0], "starts": [0, 1], "contexts": [2]}, "from 0 to 2"),
        ({"blocks": [0], "starts": [0, 2], "contexts": [1]}, "2 rows but a context of 1"),
        ({"blocks": [0], "starts": [0, 2], "contexts": [5]}, "needs 2 blocks"),
        ({"blocks": [5], "starts": [0, 2], "contexts": [4]}, "outside"),
        ({"blocks": [-1], "starts": [0, 2], "contexts": [4]}, "outside"),
        ({"blocks": [0], "starts": [0, 1, 2], "contexts": [4]}, "need S . 1"),
    )
]


@pytest.mark.parametrize("op", sorted(BAD))
def test_implementations_refuse_the_same_calls_in_one_line(op: str) -> None:
    for implementation in ops.implementations(op):
        for args, options, text in BAD[op]:
            quantized = any(isinstance(arg, QuantTensor) for arg in args)
            if implementation.name not in ("simd_quant" if quantized else "simd", REFERENCE):
                continue
            with pytest.raises(ValueError, match=text) as refusal:
                implementation.run(*args, **options)
            assert "\n" not in str(refusal.value)
            assert str(refusal.value).startswith(op)


def test_activations_that_are_not_finite_do_not_become_numbers() -> None:
    weight = quantize(noise(6, 70), quantized_activations=True)
    x = noise(4, 70)
    wanted = ops.linear(x, weight)
    x[1, 3], x[2, 69] = float("nan"), float("inf")
    found = ops.linear(x, weight)
    assert bool(found[1:3].isnan().all())
    assert torch.equal(found[[0, 3]], wanted[[0, 3]])


def test_a_refused_cache_write_leaves_the_cache_alone() -> None:
    cache = torch.zeros(2, 2, 1, 4)
    rows = torch.ones(2, 1, 4)
    for implementation in ops.implementations("reshape_and_cache"):
        with pytest.raises(ValueError, match="outside"):
            implementation.run(rows, rows, cache, cache, torch.tensor([1, 4]).int())
        assert not cache.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cache_rounding_is_torchs_for_every_kind_of_float(dtype: torch.dtype) -> None:
    bits = torch.arange(0, 1 << 32, 65537, dtype=torch.int64)[: 16 * 4096]
    values = (bits - (1 << 31)).int().view(torch.float32).view(-1, 1, 16)
    cache = torch.zeros(len(values), 1, 1, 16, dtype=dtype)
    ops.reshape_and_cache(values, values, cache, cache.clone(), torch.arange(len(values)).int())
    torch.testing.assert_close(
        cache.view(-1, 1, 16), values.to(dtype), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_value_is_widened_exactly(dtype: torch.dtype) -> None:
    values = torch.arange(-(1 << 15), 1 << 15).short().view(dtype).view(-1, 64)
    found = ops.embedding(torch.arange(len(values)), values)
    torch.testing.assert_close(found, values.float(), rtol=0, atol=0, equal_nan=True)
