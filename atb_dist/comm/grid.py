"""Grid: the ranks of a tensor-parallel group as rows and columns of a rectangle."""

from __future__ import annotations

from dataclasses import dataclass

from atb_dist.comm.base import TensorParallel
from atb_dist.errors import ConfigError


@dataclass(frozen=True)
class Grid:
    """Two groups that cross in this rank. Both use the stream of the group that was cut.

    gather   the ranks that join their rows before the product
    scatter  the ranks that add up their products and deal out the rows of the sum
    """

    gather: TensorParallel
    scatter: TensorParallel

    def close(self) -> None:
        """Release the communicators; the stream belongs to the group that was cut."""
        for part in (self.gather, self.scatter):
            part.data.close()
            part.control.close()


def cut_into_grid(
    tp: TensorParallel, *, gather: int, scatter: int, gather_is_inner: bool = True
) -> Grid:
    """Cut gather · scatter ranks into a Grid. Collective.

    gather_is_inner: neighbouring ranks gather, so that rank = scatter index · gather + gather
    index; else they scatter, and rank = gather index · scatter + scatter index.

    Raises ConfigError, before ranks meet, unless gather · scatter is the number of ranks.
    """
    if gather < 1 or scatter < 1 or gather * scatter != tp.size:
        raise ConfigError(
            f"a grid of {gather} x {scatter} ranks can't be cut from {tp.size}; gather times "
            f"scatter must be {tp.size}"
        )
    inner = gather if gather_is_inner else scatter
    neighbours = _part(tp, tp.rank // inner)
    distant = _part(tp, tp.rank % inner)
    return Grid(neighbours, distant) if gather_is_inner else Grid(distant, neighbours)


def _part(tp: TensorParallel, color: int) -> TensorParallel:
    return TensorParallel(tp.data.split(color), tp.control.split(color), tp.stream)
