"""RankInfo under the real torchrun and mpiexec, and torch's rendezvous under our launcher."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from job_processes import BIN, LAUNCH, environment

from atb_dist.comm.rank import RankInfo

LAUNCH_SCRIPTS = Path(__file__).parents[2] / "launch"
SHOW = (
    "from atb_dist.comm.rank import RankInfo; import dataclasses, os, sys; "
    "os.write(1, (str(dataclasses.asdict(RankInfo.from_env())) + chr(10)).encode())"
)
Popen = subprocess.Popen[str]


def start(words: Sequence[str | Path], **env: str) -> Popen:
    return subprocess.Popen(
        list(map(str, words)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), **env},
    )


def finish(process: Popen) -> str:
    try:
        stdout, stderr = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    return stdout


def infos(text: str) -> list[RankInfo]:
    found = [RankInfo(**ast.literal_eval(line)) for line in re.findall(r"\{.*\}", text)]
    return sorted(found, key=lambda info: info.rank)


def check_job(job: list[RankInfo], size: int, launcher: str) -> str:
    assert [info.rank for info in job] == list(range(size))
    assert [info.local_rank for info in job] == list(range(size))
    assert {(info.size, info.local_size, info.num_nodes, info.launcher) for info in job} == {
        (size, size, 1, launcher)
    }
    assert len({info.session for info in job}) == 1
    return job[0].session


@pytest.mark.parametrize(
    "command", [[sys.executable, "-c", SHOW], ["sh", "-c", f"{sys.executable} -c '{SHOW}'; true"]]
)
def test_mpiexec(command: list[str]) -> None:
    jobs = [start([BIN / "mpiexec", "-n", n, *command]) for n in ("2", "4")]
    sessions = {
        check_job(infos(finish(job)), n, "mpich") for n, job in zip((2, 4), jobs, strict=True)
    }
    assert len(sessions) == 2


def test_mpiexec_over_two_hosts() -> None:
    """Hydra's fork launcher starts both hosts' proxies here, under names of our choice."""
    words = [BIN / "mpiexec", "-launcher", "fork", "-hosts", "a,b", "-n", "4", "-ppn", "2"]
    job = infos(finish(start([*words, sys.executable, "-c", SHOW])))
    assert [(i.rank, i.local_rank, i.node_rank, i.num_nodes) for i in job] == [
        (0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 2), (3, 1, 1, 2),
    ]  # fmt: skip
    assert len({info.session for info in job}) == 1


def test_torchrun() -> None:
    """Two jobs at once; in the first a shell stands between the agent and each rank."""
    words = [BIN / "torchrun", "--standalone", "--nproc-per-node"]
    wrapped = ["--no-python", "sh", "-c", f"{sys.executable} -c '{SHOW}'; true"]
    plain = ["--no-python", sys.executable, "-c", SHOW]
    jobs = [start([*words, "2", *wrapped]), start([*words, "3", *plain])]
    sessions = {
        check_job(infos(finish(job)), n, "torchrun") for n, job in zip((2, 3), jobs, strict=True)
    }
    assert len(sessions) == 2


def test_torch_meets_at_the_port_our_launcher_chose() -> None:
    body = (
        "import torch.distributed as d; d.init_process_group('gloo'); "
        "x = [None, None]; d.all_gather_object(x, d.get_rank()); "
        "print(x, flush=True); d.destroy_process_group()"
    )
    job = start([*LAUNCH, "-n", "2", "--", sys.executable, "-c", body])
    assert finish(job) == "[0, 1]\n"


# --- the scripts in launch/ ---


@pytest.mark.parametrize("name", ["torchrun.sh", "mpirun.sh", "slurm.sbatch"])
def test_scripts_parse_and_say_how_they_are_used(name: str) -> None:
    script = LAUNCH_SCRIPTS / name
    subprocess.run(["bash", "-n", script], check=True, timeout=10)
    assert os.access(script, os.X_OK)
    done = subprocess.run(
        [script], capture_output=True, text=True, timeout=10, env={"PATH": "/bin"}
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "usage: " in done.stderr


def test_mpirun_script() -> None:
    path = f"{BIN}:{os.environ['PATH']}"
    script = LAUNCH_SCRIPTS / "mpirun.sh"
    check_job(
        infos(finish(start([script, "3", sys.executable, "-c", SHOW], PATH=path))), 3, "mpich"
    )


def test_torchrun_script() -> None:
    path = f"{BIN}:{os.environ['PATH']}"
    script = LAUNCH_SCRIPTS / "torchrun.sh"
    text = finish(start([script, "2", sys.executable, "-c", SHOW], PATH=path))
    check_job(infos(text), 2, "torchrun")


def test_slurm_script_with_a_stand_in_for_srun(tmp_path: Path) -> None:
    """Slurm is not here: a stand-in starts one task per node as srun would, all on this host."""
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        'SLURM_NODEID=1 SLURM_PROCID=1 "$@" & SLURM_NODEID=0 SLURM_PROCID=0 "$@"; code=$?\n'
        "wait $! && exit $code\n"
    )
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 127.0.0.1\necho 127.0.0.2\n")
    for tool in (srun, scontrol):
        tool.chmod(0o755)
    assert shutil.which("bash") is not None
    job = start(
        ["bash", LAUNCH_SCRIPTS / "slurm.sbatch", sys.executable, "-c", SHOW],
        PATH=f"{tmp_path}:{BIN}:{os.environ['PATH']}",
        SLURM_JOB_ID=str(os.getpid()), SLURM_NNODES="2", SLURM_JOB_NODELIST="n[0-1]",
        RANKS_PER_NODE="2",
    )  # fmt: skip
    stdout, stderr = job.communicate(timeout=60)
    assert job.returncode == 0, stderr
    found = infos(stdout + stderr)
    assert [(i.rank, i.local_rank, i.node_rank) for i in found] == [
        (0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1),
    ]  # fmt: skip
