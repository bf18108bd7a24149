"""One body for every back end and rank count."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bodies
import pytest

from atb_dist.comm.local import LocalComm

HERE = Path(__file__).parent


@pytest.mark.parametrize("body", bodies.BODIES, ids=lambda b: b.__name__)
def test_local(body: Callable[..., None]) -> None:
    body(LocalComm())


@pytest.mark.ranks(1, 2, 3, 4, 8)
@pytest.mark.parametrize("backend", ["lcal", "gloo"])
@pytest.mark.parametrize("body", bodies.BODIES, ids=lambda b: b.__name__)
def test_back_end(ranks: Any, backend: str, body: Callable[..., None]) -> None:
    ranks.run(body, backend=backend)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_mpi(size: int) -> None:
    mpiexec = Path(sys.executable).parent / "mpiexec"
    command = [str(mpiexec), "-n", str(size), sys.executable, str(HERE / "run_bodies.py"), "mpi"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"5 bodies passed over {size} ranks of mpi" in run.stdout
