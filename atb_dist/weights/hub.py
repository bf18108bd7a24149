"""Finding a checkpoint: a directory, or a name on the Hugging Face hub. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from atb_dist.errors import ConfigError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
PATTERNS = ["*.json", "*.safetensors", "tokenizer*", "*.jinja"]


def find_model(name: str) -> Path:
    """Return the directory of a checkpoint, downloading it when `name` is org/name on the hub.

    Raises ConfigError when there is neither, or the hub can't be used.
    """
    directory = Path(name)
    if directory.is_dir():
        return directory
    if directory.exists():
        raise ConfigError(f"--model {name} is a file; give the directory of a checkpoint")
    if not HUB_NAME.fullmatch(name):
        raise ConfigError(f"--model {name} does not exist; give a directory, or org/name")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError(
            f"--model {name} is no directory here, and downloading needs huggingface_hub: "
            "pip install 'atb_dist[hf]'"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS))
    except Exception as error:  # the library's errors have no common base
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"--model {name} is no directory here and can't be downloaded: {reason}"
        ) from error
