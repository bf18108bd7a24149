"""Random-weight LLaMA checkpoints of a stated size, for measuring without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atb_dist.errors import ConfigError

SIZES: dict[str, dict[str, Any]] = {
    "246M": {
        "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32000,
    },
    "1.1B": {  # the sizes of TinyLlama
        "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
    },
    "70B-2layers": {  # the widths of LLaMA-2-70B; 80 layers would need 138 GB
        "hidden_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000,
    },
    "70B-mini": {  # its head counts and proportions, for tests
        "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 1792, "vocab_size": 500,
    },
}  # fmt: skip


def write_random_model(directory: Path, size: str, dtype: str) -> Path:
    """Write the checkpoint of that size into directory, unless it is there already.

    Raises ConfigError for a size that is not in SIZES.
    """
    if size not in SIZES:
        raise ConfigError(f"--random {size} is unknown; use {', '.join(SIZES)}")
    from atb_dist.testing.checkpoints import tiny_checkpoint

    target = directory / f"{size}-{dtype}"
    if not (target / "config.json").exists():
        tiny_checkpoint(target, **SIZES[size], max_position_embeddings=2048, dtype=dtype)
    return target


def streamed_parameters(size: dict[str, Any]) -> int:
    """Weights that one decoded token reads: every matrix, and one row of the embedding."""
    hidden = size["hidden_size"]
    head_dim = hidden // size["num_attention_heads"]
    qkv = hidden * (hidden + 2 * size["num_key_value_heads"] * head_dim)
    layer = qkv + hidden * hidden + 3 * hidden * size["intermediate_size"]
    return int(size["num_hidden_layers"] * layer + size["vocab_size"] * hidden)
