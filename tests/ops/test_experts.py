"""A mixture of experts against its definition, and what it must not depend on."""

from __future__ import annotations

import pytest
import torch
from op_cases import noise
from torch import Tensor

from atb_dist import ops


def mixture(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    rows, starts, scales = ops.moe_route(ops.linear(x, gate), top_k=2)
    hidden = ops.swiglu(ops.grouped_matmul(x, up, starts, rows=rows))
    return ops.combine_experts(
        ops.grouped_matmul(hidden, down, starts), rows, scales, num_tokens=x.shape[0]
    )


@pytest.fixture
def layer() -> tuple[Tensor, Tensor, Tensor]:
    return noise(6, 64), noise(6, 80, 64) / 8, noise(6, 64, 40) / 6


def test_a_mixture_is_the_scaled_sum_of_its_experts(layer: tuple[Tensor, Tensor, Tensor]) -> None:
    gate, up, down = layer
    x = noise(25, 64)
    found = mixture(x, gate, up, down)
    for token in range(25):
        chances = (x[token] @ gate.t()).softmax(dim=0)
        best = chances.topk(2)
        wanted = torch.zeros(64)
        for chance, expert in zip(best.values, best.indices, strict=True):
            first, second = (x[token] @ up[expert].t()).chunk(2)
            hidden = torch.nn.functional.silu(first) * second
            wanted += chance / best.values.sum() * (hidden @ down[expert].t())
        torch.testing.assert_close(found[token], wanted, rtol=1e-4, atol=1e-4)


def test_a_token_is_the_same_in_any_batch(layer: tuple[Tensor, Tensor, Tensor]) -> None:
    x = noise(25, 64)
    whole = mixture(x, *layer)
    for rows in (slice(0, 1), slice(3, 5), slice(7, 24)):
        assert torch.equal(mixture(x[rows], *layer), whole[rows])


def test_routing_sorts_by_expert_and_breaks_ties_downwards() -> None:
    rows, starts, scales = ops.moe_route(torch.zeros(3, 4), top_k=2)
    assert rows.tolist() == [0, 1, 2, 0, 1, 2]
    assert starts.tolist() == [0, 3, 6, 6, 6]
    assert scales.tolist() == [0.5] * 6
    assert ops.moe_route(torch.zeros(1, 4), top_k=2, renormalize=False)[2].tolist() == [0.25] * 2


def test_parts_of_the_features_add_up_in_place() -> None:
    x, weights, starts = noise(20, 96), noise(3, 30, 96), torch.tensor([0, 4, 4, 20])
    out = torch.zeros(20, 30)
    for low in (0, 32, 64):
        part = slice(low, low + 32)
        found = ops.grouped_matmul(x[:, part], weights[:, :, part], starts, out=out)
        assert found is out
    torch.testing.assert_close(out, ops.grouped_matmul(x, weights, starts), rtol=1e-5, atol=1e-5)
