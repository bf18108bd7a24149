"""Continuous batching: requests in, outputs out, the same schedule on every rank."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Engine": "atb_dist.engine.engine",
    "Output": "atb_dist.engine.request",
}
__all__ = ["Engine", "Output"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atb_dist.engine' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
