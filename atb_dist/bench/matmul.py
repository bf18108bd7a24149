"""linear for every type of weight, beside torch and the read limit, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from atb_dist import ops
from atb_dist.bench.bandwidth import read_bytes_per_s
from atb_dist.quant import QuantTensor, quantize

COLD_BYTES = 192 << 20  # copies of a weight are rotated through so much, as in decoding
TYPES = ("fp32", "bf16", "fp16", "int8", "int4", "w8a8")


@dataclass(frozen=True)
class Row:
    """Best time of one kernel: milliseconds, GFLOP/s, and GB/s of weights."""

    kernel: str
    rows: int
    outputs: int
    features: int
    ms: float
    gflops: float
    gbytes_per_s: float


def run(
    shapes: list[tuple[int, int]], rows: list[int], *, threads: int, seconds: float
) -> list[Row]:
    """Time every type, and torch's fp32, for each shape (outputs, features) and row count."""
    before = ops.num_threads(), torch.get_num_threads()
    ops.set_num_threads(threads)
    torch.set_num_threads(threads)
    try:
        return [
            _time(name, shape, count, seconds)
            for shape in shapes
            for count in rows
            for name in ("torch fp32", *TYPES)
        ]
    finally:
        ops.set_num_threads(before[0])
        torch.set_num_threads(before[1])


def as_table(rows: list[Row], *, threads: int) -> str:
    """Return rows as lines of text, the read limit first."""
    limit = read_bytes_per_s(threads) / 1e9
    lines = [f"read limit {limit:.1f} GB/s, {threads} threads, SIMD level {ops.simd_level}"]
    for r in rows:
        shape = f"{r.outputs}x{r.features}"
        lines.append(
            f"{shape:>12} rows={r.rows:<4} {r.kernel:<10} {r.ms:9.3f} ms {r.gflops:7.1f} GFLOP/s "
            f"{r.gbytes_per_s:6.1f} GB/s {r.gbytes_per_s / limit:5.0%} of the limit"
        )
    return "\n".join(lines)


def as_json(rows: list[Row]) -> list[dict[str, object]]:
    """Return rows as plain dictionaries."""
    return [asdict(row) for row in rows]


def _time(name: str, shape: tuple[int, int], rows: int, seconds: float) -> Row:
    outputs, features = shape
    weight, size = _weight(name, torch.randn(outputs, features))
    copies = min(max(COLD_BYTES // size, 1), 256) if rows < 16 else 2
    weights = [weight, *(_copy(weight) for _ in range(copies - 1))]
    x = torch.randn(rows, features)
    call: Callable[..., Tensor] = (
        torch.nn.functional.linear if name.startswith("torch") else ops.linear
    )
    best, end, turn = float("inf"), time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < 2:
        begin = time.perf_counter()
        call(x, weights[turn % copies])
        best = min(best, time.perf_counter() - begin)
        turn += 1
    work = 2 * rows * outputs * features
    return Row(name, rows, outputs, features, best * 1e3, work / best / 1e9, size / best / 1e9)


def _weight(name: str, weight: Tensor) -> tuple[Tensor | QuantTensor, int]:
    """Return the weight in a type, and its bytes."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if name in half:
        return weight.to(half[name]), weight.numel() * 2
    if name in ("int8", "w8a8"):
        return quantize(weight, quantized_activations=name == "w8a8"), weight.numel()
    if name == "int4":
        return quantize(weight, bits=4, group=64), weight.numel() // 2
    return weight, weight.numel() * 4


def _copy(weight: Tensor | QuantTensor) -> Tensor | QuantTensor:
    if isinstance(weight, Tensor):
        return weight.clone()
    return QuantTensor(
        weight.values.clone(), weight.scales.clone(), weight.features, weight.bits, weight.group,
        weight.quantized_activations,
    )  # fmt: skip
