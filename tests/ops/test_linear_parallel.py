"""linear_parallel: every kind, any rank count, ragged rows, and chunks that change no bit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from op_cases import noise
from thread_ranks import ThreadComm, run_ranks
from torch import Tensor

from atb_dist import ops
from atb_dist.comm.base import TensorParallel
from atb_dist.ops import Kind
from atb_dist.quant import quantize

UNITS, WIDTH, OUT = 21, 8, 37
INNER = UNITS * WIDTH
KINDS = [kind for kind in Kind if kind != Kind.ALL_GATHER_LINEAR_REDUCE_SCATTER]
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
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
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
    for kind in KINDS:
        results = run_ranks(2, body, kind, 6, 2, False)
        dim = 1 if kind in (Kind.ALL_GATHER_LINEAR, Kind.PURE_LINEAR) else 0
        joined = results[0] if kind == Kind.LINEAR_ALL_REDUCE else torch.cat(results, dim=dim)
        wanted = noise(6, INNER) @ noise(OUT, INNER).t()
        torch.testing.assert_close(joined, wanted, rtol=1e-4, atol=1e-4)


def refusal(tp: TensorParallel, options: dict[str, Any]) -> tuple[str, int]:
    arguments = {"x": torch.ones(7, 256), "weight": torch.ones(1024, 256), **options}
    x, weight = arguments.pop("x"), arguments.pop("weight")
    with pytest.raises(ValueError, match="linear") as error:
        ops.linear_parallel(x, weight, tp, **arguments)
    assert isinstance(tp.data, ThreadComm)
    return str(error.value), len(tp.data.calls)


GROUPED = quantize(torch.ones(1024, 256), group=128)
INT8_SHORT = replace(GROUPED, scales=GROUPED.scales[:, :1])
INT8_HALF = replace(GROUPED, scales=GROUPED.scales.half())
INT4_SHORT = replace(GROUPED, bits=4, values=torch.zeros(1024, 64, dtype=torch.uint8))


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
        ({"residual": torch.ones(7)}, "residual [7] doesn't fit: it needs [7, 1024]"),
        ({"kind": Kind.ALL_GATHER_LINEAR, "residual": torch.ones(7, 3)}, "it needs [T, 1024]"),
        ({"x": torch.ones(7, 256, dtype=torch.int64)}, "x is torch.int64; use torch.float32"),
        ({"weight": torch.ones(1024, 256, dtype=torch.int8)}, "weight is torch.int8; use torch."),
        ({"bias": torch.ones(1024, dtype=torch.float64)}, "bias is torch.float64"),
        ({"weight": torch.ones(1024, 256, device="meta")}, "weight is on meta, x on cpu"),
        ({"x": torch.ones(256)}, "doesn't fit x [256]"),
        ({"weight": INT8_SHORT}, "scales [1024, 1] of torch.float32 don't fit weight [1024, 256]"),
        ({"weight": INT8_HALF}, "scales [1024, 2] of torch.float16 don't fit"),
        ({"weight": INT4_SHORT}, "values [1024, 64] of torch.uint8 don't fit 256 features of 4"),
        (
            {"weight": GROUPED, "leaves": (0, 96, 256), "kind": Kind.ALL_GATHER_LINEAR},
            "cut a group of 128 quantized weights at 96",
        ),
        ({"leaves": (0, 255)}, "rise from 0 to 256"),
        ({"kind": Kind.ALL_GATHER_LINEAR_REDUCE_SCATTER}, "needs grid"),
        ({"return_gathered": True}, "return_gathered goes with all_gather_linear, not with linear"),
        ({"kind": "matmul"}, "kind 'matmul' is none of pure_linear"),
        ({"chunks": 0}, "chunks=0 must be at least 1"),
    ],
)
def test_every_rank_refuses_before_it_communicates(options: dict[str, Any], text: str) -> None:
    for message, calls in run_ranks(2, refusal, options):
        assert text in message
        assert "\n" not in message
        assert calls == 0


def with_strangers(tp: TensorParallel, kind: Kind) -> Tensor:
    """Every argument as a view: strided rows, strided columns, memory off by a byte."""
    given = arguments(tp, kind, 40)
    x = torch.cat((given["x"], given["x"]), dim=1)[:, : given["x"].shape[1]]
    raw = given["weight"].contiguous().numpy().tobytes()
    unaligned = torch.frombuffer(bytearray(b"-" + raw), dtype=torch.float32, offset=1)
    weight = unaligned.view(given["weight"].shape)
    residual = given["residual"].t().contiguous().t()
    bias = torch.stack((given["bias"], given["bias"]), dim=1)[:, 0]
    return ops.linear_parallel(x, weight, tp, kind=kind, chunks=2, bias=bias, residual=residual)


@pytest.mark.parametrize("kind", KINDS)
def test_strided_and_unaligned_tensors_change_no_bit(kind: Kind) -> None:
    for found, wanted in zip(
        run_ranks(2, with_strangers, kind), run_ranks(2, body, kind, 40, 2, True), strict=True
    ):
        assert torch.equal(found, wanted)


def ragged_gather(tp: TensorParallel, implementation: str, rows: list[int]) -> tuple[Tensor, ...]:
    first = sum(rows[: tp.rank])
    x = noise(sum(rows), INNER)[first : first + rows[tp.rank]]
    run = next(i.run for i in ops.implementations("linear_parallel") if i.name == implementation)
    options = {"kind": Kind.ALL_GATHER_LINEAR, "return_gathered": True, "chunks": 3}
    return run(x, noise(OUT, INNER)[cut(OUT, tp)], tp, **options)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rows", [[5], [0, 9], [7, 0, 30], [1, 2, 3, 40]])
def test_the_gathered_rows_can_be_kept(implementation: str, rows: list[int]) -> None:
    results = run_ranks(len(rows), ragged_gather, implementation, rows)
    x = noise(sum(rows), INNER)
    joined = torch.cat([product for product, _ in results], dim=1)
    torch.testing.assert_close(joined, x @ noise(OUT, INNER).t(), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(gathered, x) for _, gathered in results)


def disagreeing(tp: TensorParallel, what: str) -> tuple[str, list[str]]:
    x, weight, residual = torch.ones(3, 8), torch.ones(5, 8), torch.ones(6, 5)
    if tp.rank == 1:
        x = {"rows": torch.ones(4, 8), "type": x.half()}.get(what, x)
    with pytest.raises(ValueError, match="linear_parallel") as error:
        ops.linear_parallel(x, weight, tp, kind=Kind.ALL_GATHER_LINEAR, chunks=2, residual=residual)
    assert isinstance(tp.data, ThreadComm)
    return str(error.value), tp.data.calls


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("rows", "the residual of rank 0 has 6 rows; the ranks gather 7"),
        ("type", "rank 1 gathers rows of 8 features of torch.float16"),
    ],
)
def test_ranks_that_gather_what_does_not_fit_all_learn_it(what: str, text: str) -> None:
    for message, calls in run_ranks(2, disagreeing, what):
        assert text in message
        assert calls == ["all_gather"]  # of shapes, not of data
