"""Every example runs as its docstring says, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ATB_DIST = [sys.executable, "-m", "atb_dist"]
COMMANDS = {
    "generate.py": ([sys.executable, "generate.py"], r"'ROMEO\.' -> .+'The king is' -> .+"),
    "two_call.py": ([sys.executable, "two_call.py"], r"\[(\d+, ){15}\d+\]"),
    "all_reduce.py": (
        [*ATB_DIST, "launch", "-n", "4", "--", sys.executable, "all_reduce.py"],
        r"lcal, 4 ranks: sum \[10\.0, 10\.0, 10\.0, 10\.0, 10\.0\]",
    ),
    "llama70b_tp8.py": (
        [sys.executable, "llama70b_tp8.py", "{scratch}", "70B-mini"],
        r"\[(\d+, ){7}\d+\]",
    ),
    "test_ranks.py": (
        [sys.executable, "-m", "pytest", "-q", "test_ranks.py", "-p", "no:cacheprovider"],
        r"2 passed",
    ),
}


def test_every_example_has_a_command_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_example_runs(name: str, tmp_path: Path) -> None:
    command, wanted = COMMANDS[name]
    run = subprocess.run(
        [part.format(scratch=tmp_path) for part in command],
        cwd=EXAMPLES, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(wanted, run.stdout, re.DOTALL), run.stdout
