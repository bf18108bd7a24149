"""lcal's own promises: the same bits everywhere, failures that are named, nothing left open."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from typing import Any

import bodies
import pytest
import torch

from atb_dist.comm.base import Communicator
from atb_dist.comm.lcal import LcalComm
from atb_dist.errors import ConfigError, PeerFailure

SOAK = bool(os.environ.get("ATB_DIST_SOAK"))


def failure(call: Any) -> str:
    try:
        call()
    except PeerFailure as error:
        return str(error)
    return ""


def random_collectives(comm: Communicator, seed: int, count: int) -> None:
    """Mixed collectives of random kinds, sizes and types, with delays, on three communicators."""
    shared, own = random.Random(seed), random.Random(seed * 100 + comm.rank)
    comms = [comm, comm.split(0), comm.split(0)]
    for _ in range(count):
        if own.random() < 0.02:
            time.sleep(own.random() * 0.003)
        chosen = shared.choice(comms)
        kind = shared.choice(["reduce", "move", "ragged", "object", "barrier"])
        size = shared.choice([0, 1, 7, 100, 5000, 9001, 300_000])
        dtype = shared.choice(bodies.DTYPES)
        if kind == "reduce":
            everyone = [bodies.noise(r, size, dtype) for r in range(comm.size)]
            x = chosen.all_reduce(everyone[comm.rank].clone())
            assert torch.equal(x, bodies.tree(everyone, "sum"))
        elif kind == "move":
            bodies.move_once(chosen, dtype, size)
        elif kind == "ragged":
            bodies.ragged(chosen, shared.choice([1, 13, 4000]))
        elif kind == "object":
            assert chosen.all_gather_object((comm.rank, size)) == [
                (r, size) for r in range(comm.size)
            ]
        else:
            chosen.barrier()


@pytest.mark.ranks(2, 3, 8)
def test_random_collectives_agree_with_torch(ranks: Any) -> None:
    rounds, count = (20, 500) if SOAK else (2, 120)
    for seed in range(rounds):
        ranks.run(random_collectives, seed, count, timeout_s=120)


def sum_of_leaves(comm: Communicator) -> bytes:
    """Add 8 leaves of noise: each rank its own subtree, then the ranks."""
    leaves = [bodies.noise(i, 5003, torch.float32, salt=4) for i in range(8)]
    each = 8 // comm.size
    mine = bodies.tree(leaves[comm.rank * each : (comm.rank + 1) * each], "sum")
    return comm.all_reduce(mine).numpy().tobytes()


_leaf_sums: list[bytes] = []


@pytest.mark.ranks(1, 2, 4, 8)
def test_eight_leaves_give_the_same_bits_at_1_2_4_and_8_ranks(ranks: Any) -> None:
    _leaf_sums.extend(ranks.run(sum_of_leaves))
    assert len(set(_leaf_sums)) == 1


def mismatch(comm: Communicator) -> str:
    x = torch.zeros(10)
    if comm.rank == 0:
        return failure(lambda: comm.all_reduce(x))
    return failure(lambda: comm.all_gather(x))


@pytest.mark.ranks(2)
def test_different_collectives_are_both_named(ranks: Any) -> None:
    for said in ranks.run(mismatch):
        assert "ranks issued different collectives" in said
        assert "all_reduce" in said
        assert "all_gather" in said


def other_dtype(comm: Communicator) -> str:
    dtype = torch.float32 if comm.rank else torch.int32
    return failure(lambda: comm.all_reduce(torch.zeros(10, dtype=dtype)))


@pytest.mark.ranks(3)
def test_another_type_is_named(ranks: Any) -> None:
    said = ranks.run(other_dtype)
    assert all("float32" in each and "int32" in each for each in said)


def wrong_size_message(comm: Communicator) -> str:
    if comm.rank == 0:
        comm.send(torch.zeros(4), 1)
        return failure(comm.barrier)
    return failure(lambda: comm.recv(torch.zeros(5), 0))


@pytest.mark.ranks(2)
def test_a_message_of_another_size_is_named(ranks: Any) -> None:
    assert "sent 16 bytes" in ranks.run(wrong_size_message)[1]


def late(comm: Communicator) -> str:
    if comm.rank == 1:
        time.sleep(1.5)
    return failure(comm.barrier)


def three_late(comm: Communicator) -> str:
    if comm.rank == 0:
        return failure(lambda: comm.all_reduce(torch.zeros(16)))
    time.sleep(1.2)
    return failure(comm.barrier)


@pytest.mark.ranks(4)
def test_a_deadline_names_all_who_are_missing(ranks: Any) -> None:
    said = ranks.run(three_late, comm_timeout_s=0.4)[0]
    assert "in all_reduce #" in said
    assert "(64 bytes float32, sum)" in said
    assert all(f"rank {r} (pid" in said for r in (1, 2, 3)), said


def failure_of_a_part(comm: Communicator) -> str:
    part = comm.split(int(comm.rank == 0))
    if comm.rank == 0:
        return ""
    if comm.rank == 2:
        time.sleep(1.2)
    return failure(part.barrier)


@pytest.mark.ranks(3)
def test_a_split_names_ranks_by_the_numbers_of_its_parent(ranks: Any) -> None:
    said = ranks.run(failure_of_a_part, comm_timeout_s=0.4)[1]
    assert "rank 1 (pid" in said
    assert "for rank 2 (pid" in said


def abort_of_a_receiver(comm: Communicator) -> tuple[str, float]:
    """Rank 2 aborts while rank 0 waits for a message of rank 1."""
    if comm.rank == 2:
        time.sleep(0.3)
        comm.abort("tea is out")
        return "", time.monotonic()
    if comm.rank == 1:
        time.sleep(1)
        return "", 0
    said = failure(lambda: comm.recv(torch.zeros(4), 1))
    return said, time.monotonic()


@pytest.mark.ranks(3)
def test_an_abort_wakes_who_waits_for_a_message(ranks: Any) -> None:
    (said, woken), _, (_, aborted) = ranks.run(abort_of_a_receiver)
    assert "rank 2 (pid" in said
    assert "tea is out" in said
    assert woken - aborted < 0.5  # of the second that rank 1 stays away


def in_place(comm: Communicator, seed: int) -> None:
    """Tensors in the segment and ordinary ones, whole or in part, through the same collectives."""
    shared, own = random.Random(seed), random.Random(seed * 100 + comm.rank)
    for _ in range(40):
        size = shared.choice([1, 7, 5000, 20_000, 300_001])
        dtype = shared.choice([torch.float32, torch.bfloat16, torch.int32])
        held = comm.empty([size + 5], dtype)
        shift = own.randrange(5)
        x = held[shift : shift + size] if own.random() < 0.8 else torch.empty(size, dtype=dtype)
        everyone = [bodies.noise(r, size, dtype) for r in range(comm.size)]
        x.copy_(everyone[comm.rank])
        assert torch.equal(comm.all_gather(x), torch.cat(everyone))
        assert torch.equal(comm.all_reduce(x), bodies.tree(everyone, "sum"))
        x.copy_(everyone[comm.rank])
        low, high = (r * size // comm.size for r in (comm.rank, comm.rank + 1))
        assert torch.equal(comm.reduce_scatter(x), bodies.tree(everyone, "sum")[low:high])
        x.zero_()  # peers have read it
    assert comm.empty([0, 3], torch.float32).shape == (0, 3)


@pytest.mark.ranks(2, 3, 8)
def test_tensors_in_the_segment_agree_with_torch(ranks: Any) -> None:
    for seed in range(10 if SOAK else 1):
        ranks.run(in_place, seed, timeout_s=60)


def memory_of_dropped_tensors(comm: Communicator) -> int:
    """Blocks of the segment's memory after many allocations of 4 MiB, each dropped at once."""
    comm.empty([1 << 20], torch.float32)
    for _ in range(100):
        comm.empty([1 << 20], torch.float32).fill_(1)
        comm.empty([1 << 18], torch.float32).fill_(1)
    names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
    memory = [n for n in names if "atb_dist.lcal" in os.path.realpath(n)]
    return max(os.stat(n).st_blocks * 512 for n in memory)  # noqa: PTH116


@pytest.mark.ranks(2)
def test_memory_of_dropped_tensors_comes_back(ranks: Any) -> None:
    assert max(ranks.run(memory_of_dropped_tensors)) < 64 << 20


def too_much(comm: Communicator) -> str:
    try:
        comm.empty([1 << 45], torch.uint8)
    except ConfigError as error:
        comm.barrier()
        return str(error)
    return ""


@pytest.mark.ranks(2)
def test_memory_that_nobody_has_is_refused_on_every_rank(ranks: Any) -> None:
    assert all("KiB of shared memory" in said for said in ranks.run(too_much))


def quantised(comm: Communicator, dtype: torch.dtype, size: int) -> float:
    """Compare with what torch makes of the stated rule; return the largest error of the sum."""
    everyone = [bodies.noise(r, size, dtype) for r in range(comm.size)]
    addends = []
    for each in everyone:
        padded = torch.nn.functional.pad(each.float(), (0, -size % 64)).view(-1, 64)
        most = padded.abs().amax(1, keepdim=True)
        inverse = torch.where(most > 0, torch.full_like(most, 127) / most, 0)
        codes = (padded * inverse).round()
        addends.append((codes * (most / 127)).view(-1)[:size])
    x = everyone[comm.rank].clone()
    assert comm.all_reduce_int8(x) is x  # type: ignore[attr-defined]
    assert torch.equal(x, bodies.tree(addends, "sum").to(dtype))
    return float((x.double() - sum(each.double() for each in everyone)).abs().max())


@pytest.mark.ranks(1, 2, 3, 8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_int8_on_the_wire_follows_its_rule(ranks: Any, dtype: torch.dtype) -> None:
    for size in (0, 1, 63, 4097, 300_001) if dtype == torch.float32 else (4097,):
        assert size == 0 or max(ranks.run(quantised, dtype, size)) < 0.1 * ranks.size


def foreign_tensors(comm: Communicator) -> list[str]:
    said = []
    for x in (torch.zeros(3, device="meta"), torch.zeros(3, dtype=torch.complex64), [1.0]):
        try:
            comm.all_reduce(x)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            said.append(str(error))
    comm.barrier()
    return said


@pytest.mark.ranks(2)
def test_what_lcal_cannot_move_is_refused(ranks: Any) -> None:
    meta, complex_, plain = ranks.run(foreign_tensors)[0]
    assert "is on meta" in meta
    assert "can't be combined" in complex_
    assert "list is not a tensor" in plain


@pytest.mark.ranks(3)
def test_a_deadline_names_who_is_missing_and_what_it_does(ranks: Any) -> None:
    said = ranks.run(late, comm_timeout_s=0.5)
    waiting = [each for each in said if "waited" in each]
    assert waiting, said
    assert "for rank 1 (pid" in waiting[0]
    assert "in no collective" in waiting[0]
    assert "ATB_DIST_TIMEOUT_S" in waiting[0]


def idle_broadcast(comm: Communicator) -> str:
    if comm.rank == 0:
        time.sleep(1.2)
    return comm.broadcast_object("here" if comm.rank == 0 else None, idle=True)


@pytest.mark.ranks(2)
def test_idle_is_not_hung(ranks: Any) -> None:
    assert ranks.run(idle_broadcast, comm_timeout_s=0.4) == ["here", "here"]


def two_threads(comm: Communicator) -> list[str]:
    """Two threads on one communicator: one is refused, and no sum is wrong."""
    if comm.rank == 1:
        time.sleep(0.5)
        comm.barrier()
        return []
    said: list[str] = []

    def other() -> None:
        time.sleep(0.2)
        try:
            comm.barrier()
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    comm.barrier()
    thread.join()
    return said


@pytest.mark.ranks(2)
def test_a_second_thread_is_refused(ranks: Any) -> None:
    said = ranks.run(two_threads)[0]
    assert len(said) == 1
    assert "another thread is inside a collective" in said[0]


def descriptors_of_closed(comm: Communicator) -> int:
    """Open and close communicators; return how many descriptors that left open."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (no path objects needed)

    comm.split(0).close()
    before = count()
    for _ in range(10):
        part = comm.split(0)
        part.all_reduce(torch.ones(10))
        part.close()
        del part
    return count() - before


@pytest.mark.ranks(3)
def test_closed_communicators_leave_nothing_open(ranks: Any) -> None:
    assert ranks.run(descriptors_of_closed) == [0, 0, 0]


def test_a_session_in_use_is_named() -> None:
    first = LcalComm("test-twice", 0, 1, timeout_s=5)
    errors: list[str] = []

    def host() -> None:
        try:
            LcalComm("test-taken", 0, 2, timeout_s=0.6)
        except PeerFailure as error:
            errors.append(str(error))

    thread = threading.Thread(target=host)
    thread.start()
    time.sleep(0.2)
    with pytest.raises(ConfigError, match="session test-taken can't be opened"):
        LcalComm("test-taken", 0, 2, timeout_s=1)
    thread.join()
    assert "which did not come" in errors[0]
    first.close()


def test_more_ranks_than_lcal_serves_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 64 ranks"):
        LcalComm("test-many", 0, 65, timeout_s=1)


def test_memory_that_is_not_there_is_refused_in_one_line() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(ConfigError, match=r"can't get .* KiB of shared memory") as error:
            LcalComm("test-small", 0, 2, timeout_s=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
