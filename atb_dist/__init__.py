"""Tensor-parallel inference for LLaMA-class models, on Ascend NPUs and on plain CPU hosts.

Public names are loaded on first use: importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "EngineConfig": "atb_dist.config",
    "KVCacheConfig": "atb_dist.config",
    "ModelConfig": "atb_dist.config",
    "SamplingParams": "atb_dist.config",
    "LLM": "atb_dist.llm",
    "TransformerModel": "atb_dist.two_call",
    "register_family": "atb_dist.models",
    "register_op": "atb_dist.ops",
}
__all__ = [
    "LLM",
    "EngineConfig",
    "KVCacheConfig",
    "ModelConfig",
    "SamplingParams",
    "TransformerModel",
    "__version__",
    "register_family",
    "register_op",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atb_dist' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
