"""Random LLaMA checkpoints in Hugging Face form, for tests and measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from atb_dist.models import family_of
from atb_dist.weights.checkpoint import INDEX, SINGLE
from atb_dist.weights.mapping import TORCH_DTYPES
from atb_dist.weights.plan import ShardingPlan

DEFAULTS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 176,
    "vocab_size": 259,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD_GAIN = 4.0  # spreads logits so that the best two are far apart


def tiny_checkpoint(
    directory: str | Path, *, seed: int = 0, dtype: str = "fp32", files: int = 1, **overrides: Any
) -> Path:
    """Write config.json and random weights; return the directory.

    overrides are keys of config.json (None removes one) on top of a model of 64 × 2 layers, written
    as transformers 5 does unless they say otherwise. files > 1 shards with an index. dtype is that
    of the weights: "fp32", "bf16" or "fp16". Weights are scaled so that activations keep their
    size and logits spread.
    """
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    name = str(TORCH_DTYPES[dtype]).removeprefix("torch.")
    hf = {k: v for k, v in {**DEFAULTS, "dtype": name, **overrides}.items() if v is not None}
    family = family_of(hf)
    sources = ShardingPlan.build(family, family.config_from_hf(hf), 1, 0).sources
    tensors = _random_tensors(sources, seed, TORCH_DTYPES[dtype])
    if files == 1:
        save_file(dict(tensors), target / SINGLE, {"format": "pt"})
    else:
        _save_sharded(tensors, target, files, len(sources))
    (target / "config.json").write_text(json.dumps(hf, indent=2))
    return target


def _random_tensors(
    sources: dict[str, tuple[int, ...]], seed: int, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for name, shape in sources.items():
        tensor = torch.empty(shape).normal_(generator=generator)
        if name.endswith("norm.weight"):
            tensor.mul_(0.1).add_(1.0)
        elif len(shape) == 1:
            tensor.mul_(0.1)
        elif "embed_tokens" not in name:
            tensor.mul_((HEAD_GAIN if "lm_head" in name else 1.0) / math.sqrt(shape[1]))
        yield name, tensor.to(dtype)


def _save_sharded(
    tensors: Iterator[tuple[str, Tensor]], target: Path, files: int, count: int
) -> None:
    """Write files one after the other, so that one file's tensors are in memory at a time."""
    weight_map = {}
    numbered = ((i * files // count, pair) for i, pair in enumerate(tensors))
    for number, group in groupby(numbered, key=lambda item: item[0]):
        name = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        held = dict(pair for _number, pair in group)
        save_file(held, target / name, {"format": "pt"})
        weight_map.update(dict.fromkeys(held, name))
    (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
