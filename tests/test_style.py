"""House sizes: short files, short functions, documented public names (ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = sorted((ROOT / "atb_dist").rglob("*.py"))
CXX = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cc", ".cpp"})
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FORBIDDEN = {"utils", "helper", "helpers", "manager", "handler", "impl", "common", "misc"}
Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_python_file_keeps_the_sizes(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300, "split the file: more than 300 lines"
    assert path.stem not in FORBIDDEN, "a name that says nothing"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or 0) - node.lineno + 1
        assert lines <= 60, f"{node.name} has {lines} lines, at most 60"
        positional = [a.arg for a in node.args.args if a.arg not in {"self", "cls"}]
        assert len(positional) <= 5 or node.name in TENSOR_OPS, (
            f"{node.name} takes {len(positional)} positional parameters, at most 5"
        )


# The published operator signatures: tensors are positional, options are keywords.
TENSOR_OPS = {"paged_attention"}


def is_overload(node: Def) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def public_definitions(tree: ast.Module) -> list[tuple[str, Def]]:
    found: list[tuple[str, Def]] = []
    for node in tree.body:
        if isinstance(node, Def) and not node.name.startswith("_") and not is_overload(node):
            found.append((node.name, node))
            if isinstance(node, ast.ClassDef):
                found += [
                    (f"{node.name}.{m.name}", m)
                    for m in node.body
                    if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")
                ]
    return found


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_public_names_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or not tree.body, "the file does not say what it is for"
    bare = [name for name, node in public_definitions(tree) if not ast.get_docstring(node)]
    assert not bare, f"no docstring: {bare}"


@pytest.mark.parametrize("path", CXX, ids=relative)
def test_cxx_file_keeps_the_size(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 400, "split the file: more than 400 lines"
    assert max(map(len, lines), default=0) <= 100


@pytest.mark.parametrize("path", EXAMPLES, ids=relative)
def test_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40


def test_function_lengths_stay_small_on_the_whole() -> None:
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[int(len(lengths) * 0.9)] <= 30
