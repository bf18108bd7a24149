"""pytest started on every rank by a launcher, seen from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SUITE = """
import time
import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(2)]

def names(comm, path):
    return comm.rank, path

def one_raises(comm):
    if comm.rank == 1:
        raise ValueError("not coming")
    comm.barrier()

def last_skips(comm):
    if comm.rank:
        pytest.skip("absent here")

def one_hangs(comm):
    if comm.rank == 1:
        time.sleep(600)

@pytest.mark.ranks(2, 3)
def test_results(ranks, tmp_path):
    (first, path), (second, same) = ranks.run(names, tmp_path)
    assert (first, second) == (0, 1)
    assert path == same

@pytest.mark.parametrize("body", [one_raises, last_skips, one_hangs], ids=lambda b: b.__name__)
def test_body(ranks, body):
    ranks.run(body, timeout_s=1)

def test_after_a_loss(ranks):
    ranks.run(one_raises)
"""
LAUNCHERS = {
    "launch": [sys.executable, "-m", "atb_dist", "launch", "-n", "2", "--"],
    "mpiexec": [str(Path(sys.executable).parent / "mpiexec"), "-n", "2"],
}


def run_under(launcher: str, directory: Path, *flags: str) -> tuple[int, str, str]:
    (directory / "test_inner.py").write_text(SUITE)
    command = [*LAUNCHERS[launcher], sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, "-v", "-rA", "--with-mpi", *flags],
        cwd=directory,
        # A root, not --basetemp: ranks that make one directory at once fail now and then.
        env={**os.environ, "COLUMNS": "200", "PYTEST_DEBUG_TEMPROOT": str(directory)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return run.returncode, run.stdout, run.stdout + run.stderr


def check_agreement(stdout: str, text: str) -> None:
    assert "needs 3 ranks; this launch has 2" in text
    assert re.search(r"PASSED .*test_results\[ranks2\]", stdout), text
    for body, headline in (
        ("one_raises", r"rank 1 \(pid \d+\): ValueError: not coming"),
        ("last_skips", r"ranks disagree .*: rank 0 returned, rank 1 skipped \(absent here\)"),
    ):
        assert re.search(rf"FAILED .*{body}\] - {headline}", stdout), (body, text)


def test_ranks_of_our_launcher_agree(tmp_path: Path) -> None:
    code, stdout, text = run_under("launch", tmp_path, "-k", "not hangs")
    assert code == 1, text
    check_agreement(stdout, text)


def test_a_hang_shows_its_stacks_and_ends_mpirun(tmp_path: Path) -> None:
    code, stdout, text = run_under("mpiexec", tmp_path)
    assert code != 0, text
    check_agreement(stdout, text)
    lost = r"FAILED .*one_hangs\] - .*not all ranks came to the end of .*one_hangs"
    assert re.search(lost, stdout), text
    assert re.search(r"FAILED .*test_after_a_loss.* - .*this launch can't go on", stdout), text
    assert re.search(r"Timeout .*\n(.*\n)*.*in one_hangs", text)
