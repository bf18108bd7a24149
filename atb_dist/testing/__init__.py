"""Multi-rank tests for pytest: the `ranks` fixture and marker, warm rank processes, faults.

Public names are loaded on first use: importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Faults": "atb_dist.testing.faults",
    "Killed": "atb_dist.testing.faults",
    "RankFailure": "atb_dist.testing.outcomes",
    "RankPool": "atb_dist.testing.pool",
    "Ranks": "atb_dist.testing.ranks",
}
__all__ = ["Faults", "Killed", "RankFailure", "RankPool", "Ranks"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atb_dist.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
