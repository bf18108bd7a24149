"""How fast this host's cores read memory: the limit of decoding."""

from __future__ import annotations

import time

import torch

BUFFER_BYTES = 512 << 20  # far beyond any last-level cache


def read_bytes_per_s(threads: int, *, repeats: int = 5) -> float:
    """Return the best rate at which `threads` threads together sum a buffer that no cache holds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        buffer = torch.ones(BUFFER_BYTES // 4)
        buffer.sum()
        return BUFFER_BYTES / min(_seconds_of_sum(buffer) for _ in range(repeats))
    finally:
        torch.set_num_threads(before)


def _seconds_of_sum(buffer: torch.Tensor) -> float:
    begin = time.perf_counter()
    buffer.sum()
    return time.perf_counter() - begin
