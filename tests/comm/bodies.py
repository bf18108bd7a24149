"""What every back end must do, as functions that each rank runs with its communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from atb_dist.comm.base import Communicator
from atb_dist.errors import AtbDistError

# Elements: nothing, one, odd, a few lines, beyond one buffer of any back end and odd again.
COUNTS = [0, 1, 3, 63, 1000, 40_001]
LARGE = 3 * (1 << 18) + 1
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64,
          torch.int8, torch.uint8]  # fmt: skip
OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul,
}  # fmt: skip


def noise(rank: int, count: int, dtype: torch.dtype, salt: int = 0) -> Tensor:
    """What a rank brings: small numbers, the same for whoever asks."""
    generator = torch.Generator().manual_seed(1000 * salt + 31 * rank + count)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 5, (count,), generator=generator).to(dtype)


def tree(values: Sequence[Tensor], op: str) -> Tensor:
    """The order that `deterministic` promises; half types are added in fp32 and rounded once."""
    half = values[0].dtype in (torch.float16, torch.bfloat16)

    def combine(low: int, high: int) -> Tensor:
        if high - low == 1:
            return values[low].float() if half else values[low]
        middle = (low + high) // 2
        return OPS[op](combine(low, middle), combine(middle, high))

    return combine(0, len(values)).to(values[0].dtype)


def same(comm: Communicator, found: Tensor, wanted: Tensor) -> bool:
    """Bits where they are promised, else closeness."""
    if comm.deterministic or not found.dtype.is_floating_point:
        return torch.equal(found, wanted)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(found.dtype, 0.05)
    return torch.allclose(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def check(holds: bool, *what: Any) -> None:
    assert holds, " ".join(map(str, what))


def reductions(comm: Communicator) -> None:
    """all_reduce, reduce, reduce_scatter over every type, operation and size."""
    for dtype in DTYPES:
        counts = [*COUNTS, LARGE] if dtype in (torch.float32, torch.bfloat16) else COUNTS
        for op in OPS if dtype in (torch.float32, torch.int32, torch.bfloat16) else ["sum"]:
            for count in counts if op == "sum" else [1, 1000]:
                reduce_once(comm, dtype, op, count)


def reduce_once(comm: Communicator, dtype: torch.dtype, op: Any, count: int) -> None:
    everyone = [noise(r, count, dtype) for r in range(comm.size)]
    mine, wanted = everyone[comm.rank], tree(everyone, op)
    x = mine.clone()
    assert comm.all_reduce(x, op) is x
    check(same(comm, x, wanted), "all_reduce", dtype, op, count)
    root = count % comm.size
    x = mine.clone()
    comm.reduce(x, root, op)
    check(same(comm, x, wanted if comm.rank == root else mine), "reduce", dtype, op, count)
    low, high = (r * count // comm.size for r in (comm.rank, comm.rank + 1))
    found = comm.reduce_scatter(mine, op)
    check(same(comm, found, wanted[low:high]), "reduce_scatter", dtype, op, count)
    check(torch.equal(mine, everyone[comm.rank]), "input was changed")


def moves(comm: Communicator) -> None:
    """all_gather, gather, broadcast, scatter, all_to_all, equal and ragged."""
    for dtype in DTYPES:
        for count in [*COUNTS, LARGE] if dtype == torch.float32 else COUNTS:
            move_once(comm, dtype, count)
    for width in (1, 3, 5000):
        ragged(comm, width)


def move_once(comm: Communicator, dtype: torch.dtype, count: int) -> None:
    n, rank, root = comm.size, comm.rank, count % comm.size
    everyone = [noise(r, count, dtype) for r in range(n)]
    joined = torch.cat(everyone)
    check(torch.equal(comm.all_gather(everyone[rank]), joined), "all_gather", dtype, count)
    found = comm.gather(everyone[rank], root)
    check((found is None) == (rank != root), "gather", dtype, count)
    check(found is None or torch.equal(found, joined), "gather", dtype, count)
    x = everyone[rank].clone()
    assert comm.broadcast(x, root) is x
    check(torch.equal(x, everyone[root]), "broadcast", dtype, count)
    out = torch.zeros_like(x)
    comm.scatter(out, joined if rank == root else None, root)
    check(torch.equal(out, everyone[rank]), "scatter", dtype, count)


def ragged(comm: Communicator, width: int) -> None:
    n, rank = comm.size, comm.rank
    rows = [(7 * r + 2) % 5 for r in range(n)]
    everyone = [noise(r, rows[r] * width, torch.float32).view(rows[r], width) for r in range(n)]
    joined = torch.cat(everyone)
    check(torch.equal(comm.all_gather(everyone[rank], rows), joined), "all_gather", rows)
    found = comm.gather(everyone[rank], n - 1, rows)
    check(found is None or torch.equal(found, joined), "gather", rows)
    total = sum(rows)
    brought = [noise(r, total * width, torch.float32, 1).view(total, width) for r in range(n)]
    wanted = tree(brought, "sum")[sum(rows[:rank]) : sum(rows[: rank + 1])]
    check(same(comm, comm.reduce_scatter(brought[rank], "sum", rows), wanted), "reduce_scatter")
    send = [[(r * 3 + j) % 4 for j in range(n)] for r in range(n)]
    sent = [noise(r, sum(send[r]) * width, torch.float32, 2).view(-1, width) for r in range(n)]
    parts = [sent[r][sum(send[r][:rank]) : sum(send[r][: rank + 1])] for r in range(n)]
    found = comm.all_to_all(sent[rank], send[rank], [send[r][rank] for r in range(n)])
    check(torch.equal(found, torch.cat(parts)), "all_to_all", send)


def messages(comm: Communicator) -> None:
    """send and recv around a ring, objects, barriers, memory, several communicators."""
    n, rank = comm.size, comm.rank
    for count in (0, 1, 1001, LARGE) if n > 1 else ():
        x, y = noise(rank, count, torch.float32), torch.empty(count)
        after, before = (rank + 1) % n, (rank - 1) % n
        if rank % 2 == 0:
            comm.send(x, after)
        assert comm.recv(y, before) is y
        if rank % 2 == 1:
            comm.send(x, after)
        check(torch.equal(y, noise(before, count, torch.float32)), "send, recv", count)
    if n > 2 and rank < 2:  # the others take no part in it
        if rank == 0:
            comm.send(torch.ones(7), 1)
        else:
            check(bool((comm.recv(torch.zeros(7), 0) == 1).all()), "send, recv of two")
    comm.barrier()
    for size in (0, 1, 3_000_000):
        value = {"from": n - 1, "text": "x" * size}
        found = comm.broadcast_object(value if rank == n - 1 else None, n - 1)
        check(found == value, "broadcast_object", size)
        everyone = [("x" * (size // (r + 1)), r) for r in range(n)]
        check(comm.all_gather_object(everyone[rank]) == everyone, "all_gather_object", size)
    check(comm.broadcast_object("idle" if rank == 0 else None, idle=True) == "idle", "idle")
    comm.barrier()
    shared = comm.empty([3, 5], torch.float32)
    check(shared.shape == (3, 5) and shared.dtype == torch.float32, "empty")
    shared.fill_(rank + 1)
    check(bool((comm.all_reduce(shared) == n * (n + 1) / 2).all()), "empty, all_reduce")


def splits(comm: Communicator) -> None:
    """Sub-groups work beside their parent, interleaved with it."""
    n, rank = comm.size, comm.rank
    colors = [0 if r < (n + 1) // 2 else 7 for r in range(n)]
    members = [r for r in range(n) if colors[r] == colors[rank]]
    part = comm.split(colors[rank])
    check((part.rank, part.size) == (members.index(rank), len(members)), "split")
    twin = comm.split(0)
    check((twin.rank, twin.size) == (rank, n), "split of all")
    for i in range(5):
        whole = comm.all_reduce(torch.tensor([float(rank + i)]))
        check(whole.item() == sum(r + i for r in range(n)), "parent")
        mine = part.all_reduce(torch.tensor([float(rank)]))
        check(mine.item() == sum(members), "part")
        check(twin.all_gather_object(rank) == list(range(n)), "twin")
    part.close()
    twin.close()
    twin.close()
    try:
        twin.barrier()
    except AtbDistError as error:
        check("closed" in str(error), error)
    else:
        raise AssertionError("a closed communicator took a call")
    comm.barrier()


def mistakes(comm: Communicator) -> None:
    """What is refused before anything is sent, with the same words everywhere."""
    n = comm.size
    plane = torch.zeros(4, 6)
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("is not contiguous", lambda: comm.all_reduce(plane.t())),
        ("is not contiguous", lambda: comm.all_gather(plane[:, 1:3])),
        ("op 'mean' is unknown", lambda: comm.all_reduce(plane, "mean")),  # type: ignore[arg-type]
        (f"rank {n} does not exist", lambda: comm.broadcast(plane, n)),
        ("rank -1 does not exist", lambda: comm.gather(plane, -1)),
        ("add up to", lambda: comm.reduce_scatter(plane, "sum", [5] * n)),
        ("numbers >= 0, one a rank", lambda: comm.all_gather(plane, [4] * (n + 1))),
        ("has no rows", lambda: comm.all_gather(torch.tensor(1.0))),
    ]
    if comm.rank == 0:
        cases.append(("the source rank must pass x", lambda: comm.scatter(plane)))
    for told, call in cases:
        try:
            call()
        except ValueError as error:
            check(told in str(error), error)
        else:
            raise AssertionError(f"took what it should refuse: {told}")
    comm.barrier()


BODIES = [reductions, moves, messages, splits, mistakes]
