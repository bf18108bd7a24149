"""linear_parallel on a 2-D grid of ranks: any shape of grid, ragged rows, bits that chunks keep."""

from __future__ import annotations

import pytest
import torch
from op_cases import noise
from thread_ranks import ThreadComm, run_ranks
from torch import Tensor

from atb_dist import ops
from atb_dist.comm.base import TensorParallel
from atb_dist.comm.grid import Grid, cut_into_grid
from atb_dist.errors import ConfigError
from atb_dist.ops import Kind

INNER, OUT = 120, 29
KIND = Kind.ALL_GATHER_LINEAR_REDUCE_SCATTER
IMPLEMENTATIONS = [i.name for i in ops.implementations("linear_parallel") if i.device is None]


def cut(total: int, rank: int, size: int) -> slice:
    return slice(rank * total // size, (rank + 1) * total // size)


def ragged(rows: int, rank: int, size: int) -> slice:
    """Rank 0 has most rows."""
    return slice(0 if rank == 0 else rows - size + rank, rows - size + rank + 1) if rows > size \
        else cut(rows, rank, size)  # fmt: skip


def body(
    tp: TensorParallel, name: str, shape: tuple[int, int, bool], rows: int, extras: bool
) -> tuple[Grid, list[Tensor]]:
    grid = cut_into_grid(tp, gather=shape[0], scatter=shape[1], gather_is_inner=shape[2])
    g, s = grid.gather, grid.scatter
    inner, outer = cut(INNER, s.rank, s.size), cut(OUT, g.rank, g.size)
    x = noise(rows, INNER)[ragged(rows, g.rank, g.size), inner]
    weight = noise(OUT, INNER)[outer, inner]
    added = {"bias": noise(OUT)[outer], "residual": noise(rows, OUT)[:, outer]} if extras else {}
    run = next(i.run for i in ops.implementations("linear_parallel") if i.name == name)
    return grid, [run(x, weight, tp, kind=KIND, grid=grid, chunks=c, **added) for c in (1, 2, 5)]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("gather_is_inner", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2), (4, 2), (2, 4), (8, 1)]
)
def test_the_parts_join_to_the_whole(
    name: str, shape: tuple[int, int], gather_is_inner: bool
) -> None:
    for rows in (0, 1, 7, 64):
        for extras in (True, False):
            results = run_ranks(
                shape[0] * shape[1], body, name, (*shape, gather_is_inner), rows, extras
            )
            parts = {(g.gather.rank, g.scatter.rank): found for g, found in results}
            assert len(parts) == shape[0] * shape[1]
            joined = torch.cat([
                torch.cat([parts[g, s][0] for s in range(shape[1])]) for g in range(shape[0])
            ], dim=1)  # fmt: skip
            whole = noise(rows, INNER).double() @ noise(OUT, INNER).double().t()
            whole = whole + noise(OUT) + noise(rows, OUT) if extras else whole
            torch.testing.assert_close(joined, whole.float(), rtol=1e-4, atol=1e-4)
            for found in parts.values():
                assert all(torch.equal(each, found[0]) for each in found)


def test_neighbours_gather_or_scatter() -> None:
    def places(tp: TensorParallel, inner: bool) -> tuple[int, int]:
        grid = cut_into_grid(tp, gather=2, scatter=3, gather_is_inner=inner)
        return grid.gather.rank, grid.scatter.rank

    assert run_ranks(6, places, True) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert run_ranks(6, places, False) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_grid_must_multiply_up() -> None:
    def refused(tp: TensorParallel, gather: int, scatter: int) -> str:
        with pytest.raises(ConfigError) as error:
            cut_into_grid(tp, gather=gather, scatter=scatter)
        assert isinstance(tp.data, ThreadComm)
        assert not tp.data.calls
        return str(error.value)

    for gather, scatter in ((2, 2), (0, 3), (-1, -3), (3, 3)):
        for text in run_ranks(3, refused, gather, scatter):
            assert text == (
                f"a grid of {gather} x {scatter} ranks can't be cut from 3; gather times scatter "
                "must be 3"
            )


def wrong(tp: TensorParallel, what: str) -> tuple[str, list[str]]:
    grid = cut_into_grid(tp, gather=2, scatter=2)
    x, weight, options = torch.ones(3, 8), torch.ones(5, 8), {"grid": grid}
    if what == "features" and tp.rank == 1:
        x, weight = torch.ones(3, 9), torch.ones(5, 9)
    elif what == "type" and tp.rank == 1:
        x = x.half()
    elif what == "residual" and tp.rank == 1:
        options["residual"] = torch.ones(5, 5)
    elif what == "rows" and grid.scatter.rank == 1:
        x = torch.ones(4, 8)
    elif what == "outputs" and tp.rank == 2:
        weight = torch.ones(6, 8)
    elif what == "grid":
        options["grid"] = Grid(grid.gather, tp)
    with pytest.raises(ValueError, match="linear_parallel") as error:
        ops.linear_parallel(x, weight, tp, kind=KIND, **options)
    return str(error.value), [*tp.data.calls, *grid.gather.data.calls, *grid.scatter.data.calls]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("features", "rank 1 gathers rows of 9 features"),
        ("type", "rank 1 gathers rows of 8 features of torch.float16"),
        ("residual", "residual of rank 1 has 5 rows; the ranks gather 6"),
        ("rows", "rank 2 has a product [8, 5], another [6, 5]"),
        ("outputs", "rank 2 has a product [6, 6], another [6, 5]"),
        ("grid", "a grid of 2 x 4 ranks doesn't fit the 4 ranks of tp"),
    ],
)
def test_what_ranks_disagree_on_is_refused_on_all_of_them(what: str, text: str) -> None:
    for message, calls in run_ranks(4, wrong, what):
        assert text in message
        assert "\n" not in message
        assert calls == ([] if what == "grid" else ["all_gather"])  # of shapes, not of data
