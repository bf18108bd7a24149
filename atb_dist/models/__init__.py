"""Model families by name, and the reading of a checkpoint's config. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atb_dist.config import ModelConfig
from atb_dist.errors import ConfigError
from atb_dist.models.llama import LLAMA, MISTRAL
from atb_dist.weights.checkpoint import Checkpoint
from atb_dist.weights.rules import Family

FAMILIES: dict[str, Family] = {LLAMA.name: LLAMA, MISTRAL.name: MISTRAL}


def register_family(family: Family) -> None:
    """Make a family known by its name (model_type) and architectures; replaces one of that name."""
    FAMILIES[family.name] = family


def read_model(path: str | Path) -> tuple[Family, ModelConfig]:
    """Read a checkpoint directory's config.json, or a config file → (family, sizes).

    Raises ConfigError when it is missing, broken, or of no registered family.
    """
    file = Path(path)
    if file.is_dir() or file.suffix != ".json":
        file = file / "config.json"
    hf = read_json(file)
    family = family_of(hf)
    return family, family.config_from_hf(hf)


@dataclass(frozen=True)
class Opened:
    """A checkpoint directory: its config.json, family, sizes and tensors; no weight is read."""

    hf: dict[str, Any]
    family: Family
    config: ModelConfig
    checkpoint: Checkpoint


def open_model(directory: str | Path) -> Opened:
    """Read a checkpoint's config and all headers, whatever its format.

    Raises ConfigError when anything is missing, broken, or of no registered family.
    """
    hf = read_json(Path(directory) / "config.json")
    family = family_of(hf)
    return Opened(hf, family, family.config_from_hf(hf), Checkpoint(directory))


def family_of(hf: dict[str, Any]) -> Family:
    """Return the family that a config.json names, by architecture, else by model_type."""
    named = hf.get("architectures") or []
    named = [named] if isinstance(named, str) else [str(each) for each in named]
    for family in FAMILIES.values():
        if any(name in family.architectures for name in named):
            return family
    model_type = hf.get("model_type")
    if not named and model_type in FAMILIES:
        return FAMILIES[str(model_type)]
    known = ", ".join(f"{f.name} ({', '.join(f.architectures)})" for f in FAMILIES.values())
    raise ConfigError(
        f"model type {model_type!r} (architectures {', '.join(named) or 'not given'}) is not "
        f"known; there are {known}"
    )


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises ConfigError that names the file and what is wrong with it.
    """
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{file} does not exist; give a checkpoint directory") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} holds a {type(value).__name__}, not an object")
    return value
