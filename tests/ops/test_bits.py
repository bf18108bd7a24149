"""Results do not depend, to the last bit, on anything but the row they belong to.

Not on the rows beside it, the number of threads, the instruction set, how a prompt was cut into
chunks, where its pages lie, or over how many ranks a row-parallel weight was cut.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from op_cases import FLOATS, noise, pages
from torch import Tensor

from atb_dist import ops
from atb_dist.comm.tree import combine_in_tree
from atb_dist.quant import quantize

PROGRAM = Path(__file__).parent / "bits_program.py"
LEVELS = ("portable", "avx2", "avx512")


def run_program(level: str, threads: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ATB_DIST_SIMD": level}
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(threads)],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def portable() -> list[str]:
    run = run_program("portable", 1)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) > 100
    return lines


@pytest.mark.parametrize(
    ("level", "threads"), [("portable", 3), ("avx2", 1), ("avx2", 2), ("avx512", 1), ("avx512", 3)]
)
def test_instruction_sets_and_threads_give_the_same_bits(
    portable: list[str], level: str, threads: int
) -> None:
    if LEVELS.index(level) > LEVELS.index(ops.simd_level):
        pytest.skip(f"this CPU has no {level}")
    run = run_program(level, threads)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == portable


def test_an_unknown_instruction_set_is_refused_in_one_line() -> None:
    run = run_program("avx1024", 1)
    assert run.returncode != 0
    last = run.stderr.splitlines()[-1]
    assert "ConfigError: ATB_DIST_SIMD=avx1024 is not available" in last
    assert "portable" in last


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("inner", "outer"), [(64, 48), (1000, 77), (4096, 30)])
def test_a_row_of_a_linear_is_the_same_in_any_batch(
    dtype: torch.dtype, inner: int, outer: int
) -> None:
    x, w, bias = noise(133, inner), noise(outer, inner, dtype=dtype), noise(outer)
    whole = ops.linear(x, w, bias)
    for first, count in ((0, 1), (132, 1), (3, 2), (5, 3), (17, 4), (9, 7), (40, 16), (60, 33)):
        rows = slice(first, first + count)
        assert torch.equal(ops.linear(x[rows], w, bias), whole[rows])
    for first, count in ((0, 1), (7, 5), (11, 13)):  # and the columns beside it
        columns = slice(first, first + count)
        assert torch.equal(ops.linear(x, w[columns], bias[columns]), whole[:, columns])


def test_rows_that_are_copied_in_parts_are_the_same() -> None:
    x, w = noise(4200, 1024), noise(7, 1024)  # more than the 16 MB that are copied at once
    whole = ops.linear(x, w)
    for rows in (slice(0, 3), slice(4090, 4100), slice(4199, 4200)):
        assert torch.equal(whole[rows], ops.linear(x[rows], w))


@pytest.mark.parametrize(
    "options",
    [{}, {"group": 64}, {"bits": 4, "group": 32}, {"quantized_activations": True}],
    ids=["int8", "int8 in groups", "int4", "w8a8"],
)
def test_a_row_of_a_quantized_linear_is_the_same_in_any_batch(options: dict[str, Any]) -> None:
    x, w = noise(40, 500), quantize(noise(33, 500), **options)
    leaves = (0, 192, 320, 500)
    whole = ops.linear(x, w, leaves=leaves)
    for first, count in ((0, 1), (3, 2), (5, 3), (17, 4), (9, 7), (12, 8), (20, 13)):
        rows = slice(first, first + count)
        assert torch.equal(ops.linear(x[rows], w, leaves=leaves), whole[rows])
    parts = [  # as ranks hold them
        ops.linear(x[:, low:high], w.columns(low, high), leaves=(0, high - low))
        for low, high in itertools.pairwise(leaves)
    ]
    assert torch.equal(combine_in_tree(parts), whole)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("units", [8, 11, 22, 129])
def test_a_row_parallel_sum_is_the_same_over_1_2_4_and_8_ranks(rows: int, units: int) -> None:
    width = 12  # elements of a unit: not a multiple of the lanes
    borders = [i * units // 8 * width for i in range(9)]
    x, w = noise(rows, units * width), noise(35, units * width)
    whole = ops.linear(x, w, leaves=borders)
    assert not torch.equal(whole, ops.linear(x, w))  # the order of additions shows
    for size in (2, 4, 8):
        partial = []
        for rank in range(size):
            mine = borders[rank * 8 // size : (rank + 1) * 8 // size + 1]
            part = slice(mine[0], mine[-1])
            local = [border - mine[0] for border in mine]
            partial.append(ops.linear(x[:, part], w[:, part].contiguous(), leaves=local))
        assert torch.equal(combine_in_tree(partial), whole)


@pytest.mark.parametrize("op", ["rms_norm", "swiglu"])
def test_a_row_is_the_same_in_any_batch(op: str) -> None:
    x, weight = noise(70, 1234), noise(1234)

    def run(rows: Tensor) -> Tensor:
        return ops.rms_norm(rows, weight, eps=1e-5) if op == "rms_norm" else ops.swiglu(rows)

    whole = run(x)
    for rows in (slice(0, 1), slice(69, 70), slice(5, 8), slice(10, 60)):
        assert torch.equal(run(x[rows]), whole[rows])


@pytest.fixture
def threads() -> Iterator[None]:
    before = ops.num_threads()
    yield
    ops.set_num_threads(before)


class Prompt:
    """One sequence of 150 positions, attended to in chunks, anywhere in memory."""

    def __init__(self, dtype: torch.dtype, heads: int, kv_heads: int, size: int):
        self.length, self.kv_heads, self.size, self.dtype = 150, kv_heads, size, dtype
        self.q = noise(self.length, heads, size)
        self.k, self.v = (noise(self.length, kv_heads, size, seed=seed) for seed in (5, 6))

    def attend(self, chunks: list[int], block_size: int, *, seed: int, others: int = 0) -> Tensor:
        """Cut the prompt into chunks; `others` sequences of other lengths share each batch."""
        contexts = [self.length, *(31 * (i + 1) for i in range(others))]
        tables, blocks = pages(contexts, block_size, seed=seed)
        caches = [
            noise(blocks, block_size, self.kv_heads, self.size, seed=seed, dtype=self.dtype)
            for _ in range(2)
        ]
        positions = torch.arange(self.length)
        slots = (tables[0][positions // block_size] * block_size + positions % block_size).int()
        ops.reshape_and_cache(self.k, self.v, *caches, slots)
        outputs, end = [], 0
        for chunk in chunks:
            q = torch.cat((noise(2 * others, *self.q.shape[1:]), self.q[end : end + chunk]))
            end += chunk
            order = [*range(1, others + 1), 0]
            starts = torch.tensor([0, *([2] * others), chunk]).cumsum(0).int()
            lens = torch.tensor([*contexts[1:], end], dtype=torch.int32)
            out = ops.paged_attention(
                q, *caches, tables[order].contiguous(), starts, lens, scale=self.size**-0.5
            )
            outputs.append(out[2 * others :])
        assert end == self.length
        return torch.cat(outputs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 64), (3, 3, 20), (8, 1, 128)])
def test_attention_of_a_row_is_the_same_however_the_prompt_was_cut(
    threads: None, dtype: torch.dtype, heads: int, kv_heads: int, size: int
) -> None:
    prompt = Prompt(dtype, heads, kv_heads, size)
    whole = prompt.attend([150], 16, seed=0)
    ops.set_num_threads(1)
    assert torch.equal(prompt.attend([150], 16, seed=0), whole)
    ops.set_num_threads(3)
    assert torch.equal(prompt.attend([64, 64, 22], 16, seed=1), whole)
    assert torch.equal(prompt.attend([1, 16, 33, 99, 1], 5, seed=2, others=2), whole)
    assert torch.equal(prompt.attend([149, 1], 150, seed=3, others=1), whole)
    assert torch.equal(prompt.attend([1] * 150, 64, seed=4), whole)


def test_heads_of_a_kv_group_do_not_depend_on_each_other() -> None:
    prompt = Prompt(torch.float32, 6, 2, 32)
    whole = prompt.attend([150], 16, seed=0)
    for rank in range(2):  # as two ranks hold them
        part = Prompt(torch.float32, 3, 1, 32)
        part.q = prompt.q[:, rank * 3 : rank * 3 + 3]
        part.k, part.v = prompt.k[:, rank : rank + 1], prompt.v[:, rank : rank + 1]
        assert torch.equal(part.attend([150], 16, seed=1), whole[:, rank * 3 : rank * 3 + 3])


def test_kernels_work_in_a_forked_child_and_from_several_threads(threads: None) -> None:
    code = """
import os, threading, torch
from atb_dist import ops
ops.set_num_threads(3)
x, w = torch.randn(64, 512), torch.randn(512, 512)
wanted = ops.linear(x, w)
child = os.fork()
if child == 0:
    same = torch.equal(ops.linear(x, w), wanted) and ops.num_threads() == 3
    os._exit(0 if same else 3)
assert os.waitpid(child, 0)[1] == 0
found = []
def work():
    for _ in range(20):
        found.append(torch.equal(ops.linear(x, w), wanted))
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
assert len(found) == 60 and all(found)
print("fine")
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "fine", run.stderr
