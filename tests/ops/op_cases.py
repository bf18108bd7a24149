"""Arguments for every operator, from a seed: what the conformance test feeds to implementations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atb_dist.quant import quantize

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Case:
    """One call. changed: which arguments the operator writes to, instead of returning a result."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    changed: tuple[int, ...] = ()
    tolerance: float = 2e-5


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def embedding() -> Iterator[Case]:
    for dtype in FLOATS:
        for rows, vocab, width, first in (
            (0, 5, 8, 0),
            (1, 7, 1, 0),
            (9, 33, 100, 30),
            (5, 3, 64, 9),
        ):
            ids = torch.arange(rows) * 7 % (vocab + 40)
            yield Case(
                f"{dtype}-{rows}x{width}", (ids, noise(vocab, width, dtype=dtype)),
                {"first_id": first},
            )  # fmt: skip


def linear() -> Iterator[Case]:
    shapes = ((0, 8, 4), (1, 16, 1), (1, 1, 3), (2, 100, 37), (3, 64, 6), (5, 257, 13), (4, 0, 3))
    for dtype in FLOATS:
        for rows, inner, outer in (*shapes, (33, 128, 50), (129, 48, 25)):
            x, w = noise(rows, inner), noise(outer, inner, dtype=dtype)
            name = f"{dtype}-{rows}x{inner}x{outer}"
            yield Case(name, (x, w))
            yield Case(f"{name}-bias", (x, w, noise(outer, dtype=dtype)))
            borders = tuple(i * inner // 8 for i in range(9))
            yield Case(f"{name}-leaves", (x, w, noise(outer)), {"leaves": borders})
    yield from quantized_linear()
    x = noise(6, 90)[:, 10:74]
    yield Case("strided rows", (x, noise(20, 100)[:, 20:84]))
    yield Case("strided columns", (noise(64, 6).t(), noise(64, 20).t()))
    yield Case("one leaf", (x, noise(20, 64)), {"leaves": (0, 64)})
    yield Case("empty leaves", (x, noise(20, 64)), {"leaves": (0, 0, 5, 5, 64, 64)})
    yield Case("129 leaves", (x, noise(20, 64)), {"leaves": (*range(64), *([64] * 66))})


def quantized_linear() -> Iterator[Case]:
    shapes = (
        (0, 64, 4),
        (1, 32, 1),
        (1, 1, 3),
        (2, 100, 37),
        (3, 256, 6),
        (5, 321, 13),
        (7, 64, 9),
    )
    for bits, group in ((8, None), (8, 32), (8, 96), (4, 32), (4, 64), (4, 1024)):
        for rows, inner, outer in (*shapes, (8, 160, 7), (40, 200, 30)):
            x, w = noise(rows, inner), quantize(noise(outer, inner), bits=bits, group=group)
            name = f"int{bits}/{group}-{rows}x{inner}x{outer}"
            yield Case(name, (x, w, noise(outer) if rows % 2 else None))
            if group in (None, 32):
                borders = tuple(min(i * inner // 256 * 32, inner) for i in range(8))
                yield Case(f"{name}-leaves", (x, w), {"leaves": (*borders, inner)})
    for rows, inner, outer in (*shapes, (8, 160, 7), (40, 200, 30), (3, 0, 5)):
        x, w = noise(rows, inner), quantize(noise(outer, inner), quantized_activations=True)
        name = f"w8a8-{rows}x{inner}x{outer}"
        yield Case(name, (x, w, noise(outer) if rows % 2 else None))
        yield Case(f"{name}-leaves", (x, w), {"leaves": tuple(i * inner // 8 for i in range(9))})
    w = quantize(noise(9, 70), quantized_activations=True)
    yield Case("w8a8 zeros", (torch.zeros(3, 70), w))
    yield Case("w8a8 strided", (noise(3, 200)[:, 9:79], w))
    yield Case("w8a8 part", (noise(3, 40), w.columns(30, 70)))
    wide = quantize(noise(20, 256), bits=8, group=64)
    yield Case("part of int8", (noise(3, 128), wide.columns(64, 192).rows(3, 17)))
    wide = quantize(noise(20, 256), bits=4, group=64)
    yield Case("part of int4", (noise(3, 128), wide.columns(64, 192).rows(3, 17)))
    wide = quantize(noise(20, 256))
    yield Case("part of int8 channels", (noise(9, 100), wide.columns(100, 200).rows(3, 17)))


def moe_route() -> Iterator[Case]:
    for tokens, experts, top_k in ((0, 4, 2), (1, 1, 1), (9, 8, 2), (30, 5, 5)):
        yield Case(f"{tokens}x{experts} top {top_k}", (noise(tokens, experts),), {"top_k": top_k})


def grouped_matmul() -> Iterator[Case]:
    for dtype in FLOATS:
        for starts in ([0, 7], [0, 0, 5, 5, 40], [0, 1, 2, 3], [0, 0]):
            groups, rows = len(starts) - 1, starts[-1]
            group_starts, stacked = torch.tensor(starts), noise(groups, 30, 80, dtype=dtype)
            x, name = noise(rows, 80), f"{dtype}-{starts}"
            yield Case(name, (x, stacked, group_starts))
            yield Case(f"{name} into", (x, list(stacked), group_starts), {"out": noise(rows, 30)})
            gather = torch.arange(rows) * 7 % 11
            leaves = (0, 10, 40, 80)
            yield Case(
                f"{name} gather", (noise(11, 80), stacked, group_starts),
                {"rows": gather, "leaves": leaves},
            )  # fmt: skip
    starts = torch.tensor([0, 3, 3, 20])
    for options in ({}, {"group": 32}, {"bits": 4, "group": 64}, {"quantized_activations": True}):
        weights = [quantize(noise(21, 128, seed=i), **options) for i in range(3)]
        yield Case(f"{options}", (noise(20, 128), weights, starts))
    mixed = [noise(5, 8), noise(5, 8, dtype=torch.bfloat16)]
    yield Case("mixed types", (noise(4, 8), mixed, torch.tensor([0, 1, 4])))


def combine_experts() -> Iterator[Case]:
    for rows, tokens, width in ((0, 3, 8), (1, 1, 1), (12, 5, 100), (40, 20, 33)):
        where = torch.arange(rows) * 3 % max(tokens, 1)
        args = (noise(rows, width), where, noise(rows))
        yield Case(f"{rows}-{tokens}x{width}", args, {"num_tokens": tokens})
    strided = noise(6, 50)[:, 3:40]
    yield Case("strided", (strided, torch.tensor([2, 2, 0, 1, 0, 2]), noise(6)), {"num_tokens": 4})


def rms_norm() -> Iterator[Case]:
    for dtype in FLOATS:
        for rows, width in ((0, 8), (1, 1), (3, 16), (7, 100), (65, 33)):
            x, weight = noise(rows, width), noise(width, dtype=dtype)
            yield Case(f"{dtype}-{rows}x{width}", (x, weight), {"eps": 1e-5})
    yield Case("strided", (noise(5, 80)[:, 7:50], noise(43)), {"eps": 1e-6})
    yield Case("tiny", (noise(4, 32) * 1e-6, noise(32)), {"eps": 1e-5})


def rope() -> Iterator[Case]:
    shapes = ((0, 2, 1, 4), (1, 1, 1, 2), (5, 4, 2, 64), (9, 3, 3, 10), (40, 8, 1, 128))
    for rows, heads, kv_heads, size in shapes:
        qkv = noise(rows, heads + 2 * kv_heads, size)
        q, k = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
        angles = noise(64, size // 2) * 3
        table = torch.cat((angles.cos(), angles.sin()), dim=1)
        positions = torch.arange(rows) * 5 % 64
        yield Case(f"{rows}x{heads}+{kv_heads}x{size}", (q, k, positions, table), changed=(0, 1))


def swiglu() -> Iterator[Case]:
    for rows, width in ((0, 4), (1, 1), (2, 16), (5, 100), (70, 33)):
        yield Case(f"{rows}x{width}", (noise(rows, 2 * width) * 4,))
    yield Case("strided", (noise(5, 90)[:, 3:77],))
    extremes = torch.tensor([[-200.0, -90, -88, -20, -1e-20, 0, 1e-20, 20, 88, 200] + [1.0] * 10])
    yield Case("extremes", (extremes,), tolerance=1e-6)


def reshape_and_cache() -> Iterator[Case]:
    for dtype in FLOATS:
        for rows, heads, size, block_size in (
            (0, 2, 8, 4),
            (1, 1, 1, 1),
            (7, 2, 64, 16),
            (5, 3, 10, 3),
        ):
            kv = noise(rows, 2 * heads, size)
            caches = [torch.zeros(6, block_size, heads, size, dtype=dtype) for _ in range(2)]
            slots = noise(6 * block_size).argsort()[:rows].int()
            yield Case(
                f"{dtype}-{rows}x{heads}x{size}",
                (kv[:, :heads], kv[:, heads:], *caches, slots),
                changed=(2, 3),
                tolerance=0.0,
            )


def pages(contexts: list[int], block_size: int, *, seed: int = 0) -> tuple[Tensor, int]:
    """Block tables with shuffled ids, and how many blocks there are."""
    needed = [-(-c // block_size) for c in contexts]
    ids = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(seed))
    tables = torch.full((len(contexts), max([*needed, 1]) + 1), -1, dtype=torch.int32)
    for s, count in enumerate(needed):
        start = sum(needed[:s])
        tables[s, :count] = ids[start : start + count].int()
    return tables, len(ids)


def paged_attention() -> Iterator[Case]:
    batches = (
        [(1, 1)],
        [(1, 40), (1, 7), (1, 129)],
        [(17, 17), (1, 33), (0, 0), (5, 20)],
        [(0, 3)],
    )
    for dtype in FLOATS:
        for heads, kv_heads, size in ((1, 1, 16), (4, 2, 64), (6, 1, 10), (3, 3, 128), (8, 2, 144)):
            for number, batch in enumerate(batches):
                block_size = (16, 4, 1, 7)[number]
                contexts = [c for _, c in batch]
                tables, blocks = pages(contexts, block_size)
                rows = sum(t for t, _ in batch)
                q = noise(rows, heads + 2, size)[:, :heads]
                k, v = (
                    noise(blocks, block_size, kv_heads, size, seed=i, dtype=dtype) for i in (1, 2)
                )
                starts = torch.tensor([0, *(t for t, _ in batch)]).cumsum(0).int()
                yield Case(
                    f"{dtype}-{heads}/{kv_heads}x{size}-{number}",
                    (q, k, v, tables, starts, torch.tensor(contexts, dtype=torch.int32)),
                    {"scale": size**-0.5},
                )


CASES = {
    f.__name__: f
    for f in (
        embedding,
        linear,
        rms_norm,
        rope,
        swiglu,
        reshape_and_cache,
        paged_attention,
        moe_route,
        grouped_matmul,
        combine_experts,
    )
}
