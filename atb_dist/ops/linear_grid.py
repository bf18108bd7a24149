"""linear_parallel on a 2-D grid of ranks: gather rows, multiply, add up and deal out rows.

Rank (g, s) of G x S holds the rows of g and the features of s, and the weights of both. All that is
gathered and added up stays in its row or column of the grid: with G · S ranks a rank exchanges
with G + S of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from atb_dist.comm.grid import Grid
from atb_dist.device import Event
from atb_dist.ops.calls import linear
from atb_dist.quant import QuantTensor


def multiply_on_grid(
    x: Tensor,
    weight: Tensor | QuantTensor,
    grid: Grid,
    rows: Sequence[int],
    *,
    leaves: Sequence[int] | None,
    chunks: int,
) -> Tensor:
    """Return this rank's rows of the sum; with chunks all three parts of the work overlap.

    rows: of each gathering rank.
    """
    if chunks == 1:
        gathered = grid.gather.stream.run(grid.gather.data.all_gather, x.contiguous(), rows)
        product = linear(gathered, weight, leaves=leaves)
        return grid.scatter.stream.run(grid.scatter.data.reduce_scatter, product)
    plan = [Chunk(rows, grid, c, chunks) for c in range(chunks)]
    stream = grid.gather.stream
    sums: list[Event] = []
    ahead = plan[0].start_gathering(x, grid)
    for number, chunk in enumerate(plan):
        event = ahead
        if number + 1 < chunks:
            ahead = plan[number + 1].start_gathering(x, grid)
        product = linear(event.wait(), weight, leaves=leaves)
        sums.append(stream.submit(chunk.add_up, product, grid))
    return _in_order(plan, [event.wait() for event in sums])


class Chunk:
    """One slice of every gathering rank's rows.

    mine    this rank's rows of it, by their number in x
    joined  rows of each gathering rank
    owned   rows of each scattering rank
    kept    where this rank's rows of the sum stand among all it keeps
    """

    def __init__(self, rows: Sequence[int], grid: Grid, number: int, chunks: int):
        firsts = [0, *itertools.accumulate(rows)]
        spans = [(n * number // chunks, n * (number + 1) // chunks) for n in rows]
        self.mine = slice(*spans[grid.gather.rank])
        self.joined = [stop - start for start, stop in spans]
        absolute = torch.cat([
            torch.arange(first + start, first + stop)
            for first, (start, stop) in zip(firsts, spans, strict=False)
        ])  # fmt: skip
        size, rank, total = grid.scatter.size, grid.scatter.rank, firsts[-1]
        borders = torch.tensor([s * total // size for s in range(size + 1)])
        places = torch.searchsorted(absolute, borders).tolist()
        self.owned = [after - before for before, after in itertools.pairwise(places)]
        self.kept = absolute[places[rank] : places[rank + 1]] - borders[rank]

    def start_gathering(self, x: Tensor, grid: Grid) -> Event:
        """Begin to join the rows of the chunk."""
        mine = x[self.mine].contiguous()
        return grid.gather.stream.submit(grid.gather.data.all_gather, mine, self.joined)

    def add_up(self, product: Tensor, grid: Grid) -> Tensor:
        """Return this rank's rows of the chunk, added up."""
        return grid.scatter.data.reduce_scatter(product, "sum", self.owned)


def _in_order(plan: Sequence[Chunk], parts: Sequence[Tensor]) -> Tensor:
    total = sum(part.shape[0] for part in parts)
    whole = parts[0].new_empty((total, parts[0].shape[1]))
    for chunk, part in zip(plan, parts, strict=True):
        whole[chunk.kept] = part
    return whole
