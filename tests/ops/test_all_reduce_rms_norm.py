"""all_reduce_rms_norm: every implementation gives the bits of its three steps, on every rank."""

from __future__ import annotations

import pytest
import torch
from op_cases import noise
from torch import Tensor

from atb_dist import ops
from atb_dist.comm.base import Communicator, TensorParallel
from atb_dist.device import CpuStream
from atb_dist.errors import PeerFailure
from atb_dist.testing import Ranks

# One shot, an odd piece of rows, many pieces, rows wider than a piece, nothing.
SHAPES = [(0, 8), (1, 1), (3, 37), (1, 4096), (65, 300), (70, 4096), (3, 70_001)]


def fused(comm: Communicator, implementation: str) -> list[tuple[Tensor, Tensor]]:
    tp = TensorParallel(comm, comm, CpuStream())
    found = next(i for i in ops.implementations("all_reduce_rms_norm") if i.name == implementation)
    results = []
    for rows, width in SHAPES:
        for dtype in (torch.float32, torch.bfloat16) if width < 4096 else (torch.float32,):
            x, residual = noise(rows, width, seed=comm.rank), noise(rows, width, seed=99)
            weight = noise(width, dtype=dtype)
            total, normed = found.run(x, residual, weight, tp, eps=1e-5)
            assert total is x
            results.append((total, normed))
    tp.stream.close()
    return results


@pytest.mark.ranks(1, 2, 3, 4)
def test_one_pass_gives_the_bits_of_the_steps(ranks: Ranks) -> None:
    steps = ranks.run(fused, "reference")
    found = ranks.run(fused, "lcal")
    for by_rank in (steps, found):
        for (total, normed), (wanted, wanted_normed) in zip(
            [pair for each in by_rank for pair in each], steps[0] * len(by_rank), strict=True
        ):
            assert torch.equal(total, wanted)
            assert torch.equal(normed, wanted_normed)
    for (rows, width), (total, normed) in zip([(70, 4096)], found[0][-2:-1], strict=True):
        exact = sum(noise(rows, width, seed=r).double() for r in range(len(found)))
        exact = exact + noise(rows, width, seed=99).double()
        torch.testing.assert_close(total.double(), exact, rtol=1e-5, atol=1e-5)
        wanted = torch.nn.functional.rms_norm(exact, (width,), noise(width).double(), 1e-5)
        torch.testing.assert_close(normed.double(), wanted, rtol=1e-4, atol=1e-4)


def through_the_registry(comm: Communicator) -> str:
    tp = TensorParallel(comm, comm, CpuStream())
    arguments = (torch.ones(2, 4), torch.ones(2, 4), torch.ones(4))
    _, normed = ops.all_reduce_rms_norm(*arguments, tp, eps=0.0)
    assert torch.equal(normed, torch.ones(2, 4))
    comm.barrier()
    said = ""
    if comm.rank == 0:
        comm.abort("no more")
    else:
        try:
            ops.all_reduce_rms_norm(*arguments, tp, eps=0.0)
        except PeerFailure as error:
            said = str(error)
    tp.stream.close()
    return said


@pytest.mark.ranks(2)
@pytest.mark.parametrize("backend", ["lcal", "gloo"])
def test_any_back_end_serves_it_and_failures_keep_their_type(ranks: Ranks, backend: str) -> None:
    assert "no more" in ranks.run(through_the_registry, backend=backend)[1]


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (((3,), (3,), (3,)), r"x \[3\] must be"),
        (((2, 3), (3, 2), (3,)), r"residual \[3, 2\] doesn't fit"),
        (((2, 3), (2, 3), (2,)), r"weight \[2\] doesn't fit"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...], told: str) -> None:
    from atb_dist.comm.local import LocalComm

    tp = TensorParallel(LocalComm(), LocalComm(), CpuStream())
    x, residual, weight = (torch.ones(shape) for shape in shapes)
    with pytest.raises(ValueError, match=told):
        ops.all_reduce_rms_norm(x, residual, weight, tp, eps=1e-5)
    tp.stream.close()
