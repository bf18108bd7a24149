"""Starting the ranks of a job on this host, and ending all of them together. Imports no torch."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Job": "atb_dist.launcher.job",
    "launch": "atb_dist.launcher.supervisor",
}
__all__ = ["Job", "launch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atb_dist.launcher' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
