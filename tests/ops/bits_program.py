"""Prints a digest of the results of each CPU kernel; test_bits.py compares runs of it."""

from __future__ import annotations

import hashlib
import sys
from copy import deepcopy

import torch
from op_cases import CASES, Case, noise
from torch import Tensor

from atb_dist import ops
from atb_dist.ops.registry import REFERENCE
from atb_dist.quant import quantize


def large() -> list[tuple[str, Case]]:
    """Calls big enough to be cut into blocks and shared by threads."""
    calls = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        w = noise(301, 1100, dtype=dtype)
        leaves = {"leaves": tuple(i * 55 // 8 * 20 for i in range(9))}
        calls += [("linear", Case(f"{m} {dtype}", (noise(m, 1100), w))) for m in (1, 2, 7, 150)]
        calls += [("linear", Case(f"{m} leaves", (noise(m, 1100), w), leaves)) for m in (1, 5, 66)]
    for bits, group in ((8, None), (8, 64), (4, 64)):
        w = quantize(noise(301, 1120), bits=bits, group=group)
        calls += [
            ("linear", Case(f"{m} int{bits}/{group}", (noise(m, 1120), w))) for m in (1, 7, 70)
        ]
    w = quantize(noise(301, 1120), quantized_activations=True)
    calls += [("linear", Case(f"{m} w8a8", (noise(m, 1120), w))) for m in (1, 7, 70)]
    calls.append(("swiglu", Case("large", (noise(90, 2000) * 3,))))
    calls.append(("rms_norm", Case("large", (noise(90, 3000), noise(3000)), {"eps": 1e-5})))
    return calls


def digest(results: list[Tensor]) -> str:
    blobs = [r.contiguous().view(torch.uint8).numpy().tobytes() for r in results]
    return hashlib.sha256(b"".join(blobs)).hexdigest()[:16]


def main() -> None:
    ops.set_num_threads(int(sys.argv[1]))
    calls = [(op, case) for op, cases in CASES.items() for case in cases()] + large()
    for op, case in calls:
        implementation = next(
            i for i in ops.implementations(op)
            if not i.when or i.when(*case.args, **case.options)
        )  # fmt: skip
        if implementation.name == REFERENCE:
            continue
        args = deepcopy(case.args)
        result = implementation.run(*args, **case.options)
        found = [args[i] for i in case.changed] if case.changed else [result]
        print(op, case.name, digest(found))


if __name__ == "__main__":
    main()
