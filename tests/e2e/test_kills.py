"""SIGKILL of any rank at any moment: everything ends, says who died, leaves nothing behind."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import (
    ATB_DIST,
    BARD,
    LAUNCHERS,
    descendants,
    left_behind,
    ranks_of,
    wait_until_gone,
)

GENERATE = [
    *ATB_DIST, "generate", "--model", str(BARD), "--prompt", "ROMEO.", "--max-tokens", "900",
    "--num-outputs", "16", "--temperature", "1", "--ignore-eos", "--stream", "--threads", "1",
]  # fmt: skip
SOAK = bool(os.environ.get("ATB_DIST_SOAK"))
GONE_S = 3.0 + 2.0  # the promise, and slack for a busy machine


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = left_behind()
    yield
    assert left_behind() <= before


def start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def wait_for_text(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), True)
    assert os.read(process.stdout.fileno(), 1), "no text came"


def family(process: subprocess.Popen[bytes], ranks: int) -> tuple[set[int], dict[int, int]]:
    """All processes of a job once its ranks have started, and the ranks' own."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pids = descendants(process.pid)
        found = ranks_of(pids)
        if set(found) == set(range(ranks)):
            return pids, found
        time.sleep(0.01)
    raise AssertionError("the ranks did not start")


def finish(process: subprocess.Popen[bytes], pids: set[int]) -> str:
    """Wait for all to end; return what was said on stderr."""
    left = wait_until_gone(pids, GONE_S)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    _out, err = process.communicate(timeout=30)
    assert not left, f"{left} still lived; stderr: {err.decode()}"
    assert process.returncode != 0
    return err.decode()


@pytest.mark.parametrize("launcher", ["atb-dist", "torchrun"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_killed_while_it_generates(launcher: str, victim: int) -> None:
    process = start(*LAUNCHERS[launcher](3), *GENERATE)
    wait_for_text(process)
    pids, ranks = family(process, 3)
    os.kill(ranks[victim], signal.SIGKILL)
    said = finish(process, pids)
    assert re.search(rf"\bpid:? {ranks[victim]}\b", said), said  # torchrun says "(pid: 1)"


@pytest.mark.parametrize("seed", range(40 if SOAK else 4))
def test_a_rank_killed_at_a_random_moment(seed: int) -> None:
    chance = random.Random(seed)
    process = start(*LAUNCHERS["atb-dist"](3), *GENERATE)
    pids, ranks = family(process, 3)
    time.sleep(chance.uniform(0, 4))
    victim = chance.randrange(3)
    pids |= descendants(process.pid)
    os.kill(ranks[victim], signal.SIGKILL)
    said = finish(process, pids)
    assert f"rank {victim}" in said, said
    assert str(ranks[victim]) in said, said


def test_mpirun_ends_its_ranks() -> None:
    process = start(*LAUNCHERS["mpiexec"](2), *GENERATE)
    wait_for_text(process)
    pids, ranks = family(process, 2)
    os.kill(ranks[1], signal.SIGKILL)
    finish(process, pids)


SCRIPT = f"""
import sys
from atb_dist import LLM, SamplingParams
llm = LLM({str(BARD)!r}, tp=3, threads=1)
params = SamplingParams(max_tokens=900, n=8, temperature=1.0, ignore_eos=True)
for output in llm.stream(["ROMEO."], params):
    print(end=".", flush=True)
"""


def workers(process: subprocess.Popen[bytes]) -> list[int]:
    """The forked ranks of a plain script: what has no children of its own, in order of start."""
    pids = descendants(process.pid) - {process.pid}
    return sorted(pid for pid in pids if descendants(pid) == {pid})


@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_of_a_plain_script_is_killed(which: int) -> None:
    process = start(sys.executable, "-c", SCRIPT)
    wait_for_text(process)
    pids = descendants(process.pid)
    victim = workers(process)[which]
    os.kill(victim, signal.SIGKILL)
    said = finish(process, pids)
    assert f"rank {which + 1} (pid {victim}) died" in said, said


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_plain_script_takes_its_ranks_along(sign: signal.Signals) -> None:
    process = start(sys.executable, "-c", SCRIPT)
    wait_for_text(process)
    pids = descendants(process.pid)
    os.kill(process.pid, sign)
    finish(process, pids)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_launcher_takes_its_ranks_along(sign: signal.Signals) -> None:
    process = start(*LAUNCHERS["atb-dist"](2), *GENERATE)
    wait_for_text(process)
    pids, _ranks = family(process, 2)
    os.kill(process.pid, sign)
    finish(process, pids)


def test_a_stopped_rank_runs_into_the_time_limit() -> None:
    process = start(*LAUNCHERS["atb-dist"](2), *GENERATE, "--timeout", "1")
    wait_for_text(process)
    pids, ranks = family(process, 2)
    os.kill(ranks[1], signal.SIGSTOP)
    said = finish(process, pids)
    assert re.search(rf"rank 0 \(pid {ranks[0]}\) waited .* s in .* for rank 1", said), said


def test_two_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    flags = ["generate", "--model", str(BARD), "--prompt", "ROMEO.", "--max-tokens", "30"]
    jobs = [start(*LAUNCHERS["atb-dist"](2), *ATB_DIST, *flags) for _ in range(2)]
    said = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert said[0][0] == said[1][0]
