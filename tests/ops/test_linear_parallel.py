"""linear_parallel: every kind, any rank count, ragged rows, and chunks that change no bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from op_cases import noise
from thread_ranks import ThreadComm, run_ranks
from torch import Tensor

from atb_dist import ops
from atb_dist.comm.base import TensorParallel
from atb_dist.ops import Kind

UNITS, WIDTH, OUT = 21, 8, 37
INNER = UNITS * WIDTH
IMPLEMENTATIONS = [i.name for i in ops.implementations("linear_parallel")]


def cut(total: int, tp: TensorParallel) -> slice:
    return slice(tp.rank * total // tp.size, (tp.rank + 1) * total // tp.size)


def arguments(tp: TensorParallel, kind: Kind, rows: int) -> dict[str, Any]:
    """This rank's part of one global problem."""
    x, weight = noise(rows, INNER), noise(OUT, INNER)
    bias, residual = noise(OUT), noise(rows, OUT)
    if kind in (Kind.LINEAR_ALL_REDUCE, Kind.LINEAR_REDUCE_SCATTER):
        units = cut(UNITS, tp)
        mine = slice(units.start * WIDTH, units.stop * WIDTH)
        return {"x": x[:, mine], "weight": weight[:, mine], "bias": bias, "residual": residual}
    features = cut(OUT, tp)
    part = {"weight": weight[features], "bias": bias[features], "residual": residual[:, features]}
    return {"x": x[cut(rows, tp)] if kind == Kind.ALL_GATHER_LINEAR else x, **part}


def whole(rows: int) -> Tensor:
    product = noise(rows, INNER).double() @ noise(OUT, INNER).double().t()
    return (product + noise(OUT) + noise(rows, OUT)).float()


def body(tp: TensorParallel, kind: Kind, rows: int, chunks: int | None, extras: bool) -> Tensor:
    given = arguments(tp, kind, rows)
    x, weight = given.pop("x"), given.pop("weight")
    return ops.linear_parallel(x, weight, tp, kind=kind, chunks=chunks, **(given if extras else {}))


def body_with(tp: TensorParallel, implementation: str, kind: Kind, rows: int) -> list[Tensor]:
    found = next(i for i in ops.implementations("linear_parallel") if i.name == implementation)
    given = arguments(tp, kind, rows)
    x, weight = given.pop("x"), given.pop("weight")
    return [
        found.run(x, weight, tp, kind=kind, chunks=chunks, **given) for chunks in (None, 1, 2, 5)
    ]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", list(Kind))
def test_the_result_is_the_whole_products_part(implementation: str, size: int, kind: Kind) -> None:
    for rows in (0, 1, 3, 64, 90):
        results = run_ranks(size, body_with, implementation, kind, rows)
        for chunked in zip(*results, strict=True):
            dim = 1 if kind in (Kind.ALL_GATHER_LINEAR, Kind.PURE_LINEAR) else 0
            joined = chunked[0] if kind == Kind.LINEAR_ALL_REDUCE else torch.cat(chunked, dim=dim)
            torch.testing.assert_close(joined, whole(rows), rtol=1e-4, atol=1e-4)
        for mine in results:  # chunks change no bit
            assert all(torch.equal(each, mine[0]) for each in mine)
        if kind == Kind.LINEAR_ALL_REDUCE:
            assert all(torch.equal(mine[0], results[0][0]) for mine in results)


def test_chunks_communicate_piece_by_piece() -> None:
    def calls(tp: TensorParallel, rows: int, chunks: int | None) -> list[str]:
        body(tp, Kind.LINEAR_ALL_REDUCE, rows, chunks, extras=True)
        assert isinstance(tp.data, ThreadComm)
        return tp.data.calls

    assert run_ranks(2, calls, 1, None)[0] == ["all_reduce"]  # decode: not worth a thread
    assert run_ranks(2, calls, 80, 4)[1] == ["all_reduce"] * 4
    assert run_ranks(2, calls, 1, 3)[1] == ["all_reduce"] * 3


def leafy(tp: TensorParallel, rows: int, chunks: int) -> Tensor:
    borders = [i * UNITS // 8 * WIDTH for i in range(9)]
    mine = borders[tp.rank * 8 // tp.size : (tp.rank + 1) * 8 // tp.size + 1]
    part = slice(mine[0], mine[-1])
    x, weight = noise(rows, INNER)[:, part], noise(OUT, INNER)[:, part]
    return ops.linear_parallel(
        x, weight, tp, leaves=[b - mine[0] for b in mine], chunks=chunks,
        bias=noise(OUT), residual=noise(rows, OUT),
    )  # fmt: skip


@pytest.mark.parametrize("rows", [1, 70])
def test_leaves_give_the_same_bits_over_1_2_4_and_8_ranks(rows: int) -> None:
    results = [run_ranks(n, leafy, rows, c) for n, c in itertools.product((1, 2, 4, 8), (1, 3))]
    for by_rank in results:
        assert all(torch.equal(each, results[0][0]) for each in by_rank)


def test_bias_and_residual_are_optional() -> None:
    for kind in Kind:
        results = run_ranks(2, body, kind, 6, 2, False)
        dim = 1 if kind in (Kind.ALL_GATHER_LINEAR, Kind.PURE_LINEAR) else 0
        joined = results[0] if kind == Kind.LINEAR_ALL_REDUCE else torch.cat(results, dim=dim)
        wanted = noise(6, INNER) @ noise(OUT, INNER).t()
        torch.testing.assert_close(joined, wanted, rtol=1e-4, atol=1e-4)


def refusal(tp: TensorParallel, options: dict[str, Any]) -> tuple[str, int]:
    arguments = {"x": torch.ones(7, 256), "weight": torch.ones(1024, 256), **options}
    x, weight = arguments.pop("x"), arguments.pop("weight")
    with pytest.raises(ValueError, match="linear_parallel") as error:
        ops.linear_parallel(x, weight, tp, **arguments)
    assert isinstance(tp.data, ThreadComm)
    return str(error.value), len(tp.data.calls)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"weight": torch.ones(1024, 512)},
            "weight [1024, 512] doesn't fit x [7, 256]: inner sizes 512 ≠ 256",
        ),
        ({"bias": torch.ones(3)}, "bias [3] doesn't fit"),
        ({"residual": torch.ones(7, 3)}, "residual [7, 3] doesn't fit"),
        ({"residual": torch.ones(7, 3), "kind": Kind.LINEAR_REDUCE_SCATTER}, "residual [7, 3]"),
        ({"kind": "matmul"}, "kind 'matmul' is none of pure_linear"),
        ({"chunks": 0}, "chunks=0 must be at least 1"),
    ],
)
def test_every_rank_refuses_before_it_communicates(options: dict[str, Any], text: str) -> None:
    for message, calls in run_ranks(2, refusal, options):
        assert text in message
        assert "\n" not in message
        assert calls == 0
