"""SIGKILL of one rank, at start-up or at work, under our launcher and under torchrun."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from job_processes import BIN, ENDED_WITHIN_S, LAUNCH, environment, is_running, wait_for

LAUNCHERS = {
    "atb-dist": [*LAUNCH, "-n", "2", "--"],
    "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python"],
}
BODY = """if True:
    import os, pathlib, sys
    folder = pathlib.Path(sys.argv[1])
    def tell(stage):
        path = folder / (os.environ["RANK"] + "." + stage)
        path.with_suffix(".part").write_text(str(os.getpid()))
        path.with_suffix(".part").rename(path)
    tell("started")
    import torch
    from atb_dist.comm import connect
    from atb_dist.comm.rank import RankInfo
    tell("imported")
    comm = connect(RankInfo.from_env())
    x = torch.ones(1000)
    comm.all_reduce(x)
    tell("working")
    while True:
        comm.all_reduce(x.fill_(1.0))
"""


def pid_in(path: Path) -> int:
    wait_for(f"{path.name}", path.exists, timeout_s=60)
    return int(path.read_text())


def ours_in_shared_memory() -> set[str]:
    return {p.name for p in Path("/dev/shm").iterdir() if "atb" in p.name or "lcal" in p.name}


@pytest.mark.parametrize(
    ("launcher", "victim", "stage"),
    [
        ("atb-dist", 0, "started"),
        ("atb-dist", 1, "imported"),
        ("atb-dist", 0, "working"),
        ("atb-dist", 1, "working"),
        ("torchrun", 1, "working"),
    ],
)
def test_sigkill_of_a_rank(tmp_path: Path, launcher: str, victim: int, stage: str) -> None:
    before = ours_in_shared_memory()
    job = subprocess.Popen(
        [*LAUNCHERS[launcher], sys.executable, "-c", BODY, str(tmp_path)],
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    try:
        pids = [pid_in(tmp_path / f"{rank}.started") for rank in range(2)]
        pid_in(tmp_path / f"{victim}.{stage}")
        os.kill(pids[victim], signal.SIGKILL)
        killed_at = time.monotonic()
        _, stderr = job.communicate(timeout=60)
    finally:
        job.kill()
    assert not any(map(is_running, pids))
    assert time.monotonic() - killed_at < ENDED_WITHIN_S
    assert job.returncode != 0
    assert str(pids[victim]) in stderr
    assert re.search(rf"rank\W+(: )?{victim}\b", stderr)
    if launcher == "atb-dist":
        assert job.returncode == 128 + signal.SIGKILL
        last = stderr.splitlines()[-1]
        assert f"rank {victim} of 2 (pid {pids[victim]}) was killed by SIGKILL" in last
    assert ours_in_shared_memory() <= before
