"""The import ladder of ARCHITECTURE.md: a module imports lower rungs or its own package only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "atb_dist"
RUNGS = {
    "_lcal": 0, "_kernels": 0,
    "config": 1, "errors": 0,
    "device": 2,
    "comm": 3, "quant": 3,
    "ops": 4, "launcher": 4,
    "weights": 5, "kv_cache": 5, "batch": 5, "graph": 5, "tokenizer": 5,
    "models": 6,
    "engine": 7, "convert": 7,
    "llm": 8, "two_call": 8,
    "cli": 9, "serve": 9, "bench": 9, "testing": 9, "worker": 9, "__main__": 9, "__init__": 9,
}  # fmt: skip
TORCH_FREE = [
    "config", "errors", "weights.rules", "weights.plan", "weights.checkpoint", "weights.budget",
    "weights.stored", "weights.manifest", "weights.reader", "weights.torch_file", "convert.job",
    "models", "models.llama", "engine.request", "engine.blocks", "engine.scheduler", "comm.rank",
    "launcher", "cli", "tokenizer",
]  # fmt: skip
LOADERS_OF_EXTENSIONS = {
    "_lcal": {"comm/lcal.py", "comm/lcal_files.py"},
    "_kernels": {"ops/cpu.py"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def unit(path: Path) -> str:
    """The name on the ladder: the package below atb_dist, or the file's own stem."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported_units(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import; write the whole name"
            names = [node.module]
            if node.module == "atb_dist":
                names = [f"atb_dist.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("atb_dist.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_imports_a_higher_rung(path: Path) -> None:
    mine = unit(path)
    assert mine in RUNGS, f"{mine} has no rung; give it one here and in ARCHITECTURE.md"
    for other in imported_units(path) - {mine}:
        if other not in RUNGS:  # a public name taken from the package itself
            continue
        if mine in {"cli", "__main__", "__init__", "testing", "bench", "worker"}:
            assert RUNGS[other] <= RUNGS[mine], f"{mine} imports {other}"
        else:
            assert RUNGS[other] < RUNGS[mine], f"{path.name} (rung {RUNGS[mine]}) imports {other}"


@pytest.mark.parametrize("extension", sorted(LOADERS_OF_EXTENSIONS))
def test_only_one_place_loads_an_extension_module(extension: str) -> None:
    users = {str(p.relative_to(PACKAGE)) for p in modules() if extension in imported_units(p)}
    assert users <= LOADERS_OF_EXTENSIONS[extension] | {"cli/info.py"}


def test_integer_brains_do_not_import_torch() -> None:
    present = [m for m in TORCH_FREE if (PACKAGE / (m.replace(".", "/") + ".py")).exists()
               or (PACKAGE / m.replace(".", "/") / "__init__.py").exists()]  # fmt: skip
    code = f"""
import importlib, sys
for name in {present!r}:
    importlib.import_module("atb_dist." + name)
    assert "torch" not in sys.modules, name + " imports torch"
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
