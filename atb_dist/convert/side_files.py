"""Configuration and tokenizer files that come along with the weights. Imports no torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from atb_dist.weights.checkpoint import INDEX, INDEX_BIN
from atb_dist.weights.manifest import MANIFEST, Manifest
from atb_dist.weights.stored import ITEM_BYTES

PATTERNS = ("*.json", "tokenizer*", "*.model", "*.tiktoken", "*.jinja", "*.txt", "*.md", "*.py",
            "LICENSE*", "USE_POLICY*", "NOTICE*")  # fmt: skip
NOT_COPIED = {MANIFEST, INDEX, INDEX_BIN, "config.json", "params.json"}
TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def files_to_copy(source: Path) -> list[Path]:
    """Return the files beside the weights, but those that a conversion writes itself."""
    found = {file for pattern in PATTERNS for file in source.glob(pattern) if file.is_file()}
    return sorted(file for file in found if file.name not in NOT_COPIED)


def copy_files(files: list[Path], target: Path) -> None:
    """Copy files with their times; what a link points to, not the link."""
    for file in files:
        shutil.copy2(file, target / file.name)


def write_config(hf: dict[str, Any], manifest: Manifest, target: Path) -> None:
    """Write config.json, with the type that the weights have now."""
    changed = dict(hf)
    name = TORCH_NAMES.get(manifest.dtype)
    if name is not None:
        old = [key for key in ("dtype", "torch_dtype") if key in hf] or ["torch_dtype"]
        changed.update(dict.fromkeys(old, name))
    (target / "config.json").write_text(json.dumps(changed, indent=2) + "\n")


def write_index(manifest: Manifest, target: Path) -> None:
    """Write the index of a Hugging Face layout of several files."""
    total = 0
    weight_map = {}
    for file, entries in manifest.files.items():
        for entry in entries:
            weight_map[entry.name] = file
            count = ITEM_BYTES[entry.dtype]
            for extent in entry.shape:
                count *= extent
            total += count
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (target / INDEX).write_text(json.dumps(index, indent=2) + "\n")
