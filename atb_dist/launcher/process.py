"""One rank as a process: started by exec, in a session of its own, ended with its launcher."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from atb_dist.comm.rank import without_launcher
from atb_dist.errors import ConfigError
from atb_dist.launcher import ascend, placement, sweep
from atb_dist.launcher.job import Job, Meeting, rank_environment

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class RankProcess:
    """A started rank.

    Rank 0 has the launcher's own stdin and stdout, so its bytes pass through untouched; all other
    output comes through pipes. code is None while it runs, negative when a signal ended it.
    """

    def __init__(self, rank: int, command: Sequence[str], env: dict[str, str], cpus: Sequence[int]):
        self.rank = rank
        self.code: int | None = None
        first = rank == 0
        prepare = functools.partial(_prepare, os.getpid(), cpus)
        try:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=None if first else subprocess.DEVNULL,
                stdout=None if first else subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # reading the terminal works; Ctrl-C comes from us alone
                preexec_fn=prepare,  # noqa: PLW1509  (the launcher has one thread)
            )
        except OSError as error:
            raise ConfigError(f"can't start {command[0]}: {error.strerror}") from error
        self.pid = self._process.pid
        self.pipes = {
            pipe.fileno(): name
            for name, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
            if pipe is not None
        }
        for fd in self.pipes:
            os.set_blocking(fd, False)

    def poll(self) -> bool:
        """Return True once: when it has just been found ended."""
        if self.code is None:
            self.code = self._process.poll()
            return self.code is not None
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the rank and to what it started, while the rank itself runs."""
        if self.code is None:  # not reaped, so the process group's number is still its own
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # has not come to setsid yet
                self._process.send_signal(number)

    @property
    def exit_code(self) -> int:
        """The code a shell would give: 128 + signal when a signal ended the rank."""
        code = self.code or 0
        return code if code >= 0 else 128 - code

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self.code or 0
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (the kernel does this too when memory runs out)" if code == -signal.SIGKILL else ""
        return f"was killed by {name}{hint}"


def start_ranks(
    job: Job, meeting: Meeting, defaults: Mapping[str, str]
) -> Iterator[tuple[RankProcess, tuple[str, ...]]]:
    """Start this host's ranks one by one; with each comes its row of the table.

    defaults    what the ranks' environment gets where the launcher's has no value of its own
    """
    cpus = placement.allowed_cpus()
    placed = placement.place(job.bind, job.local_size, cpus, placement.numa_nodes(cpus))
    devices = ascend.device_names(os.environ, job.local_size, job.device)
    threads = placement.threads_per_rank(len(cpus), job.local_size, placement.cgroup_cpu_max())
    defaults = {**defaults, "OMP_NUM_THREADS": str(threads)}
    for rank, held, device in zip(job.ranks, placed, devices, strict=True):
        if rank > 0:  # Python would keep what it prints into a pipe; rank 0 stays as in a shell
            defaults["PYTHONUNBUFFERED"] = "1"
        env = rank_environment(job, meeting, rank, os.environ, defaults)
        process = RankProcess(rank, job.command, env, held if job.bind != "none" else ())
        row = (str(rank), str(process.pid), placement.show_cpus(held), env["OMP_NUM_THREADS"])
        yield process, (*row, device)


class Guard:
    """A small process that ends the whole job should the launcher be killed."""

    def __init__(self, session: str, node: int):
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", sweep.__file__, session, str(node)],
            env=without_launcher(os.environ),  # an outer job's sweep must not take it for its own
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """Tell it of a rank."""
        self._send(b"%d\n" % pid)

    def dismiss(self) -> None:
        """End it: the job is over."""
        self._send(b"end\n")
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, line: bytes) -> None:
        try:
            os.write(self._process.stdin.fileno(), line)  # type: ignore[union-attr]
        except BrokenPipeError:  # somebody killed it; ranks still die with the launcher
            return


def _prepare(launcher: int, cpus: Sequence[int]) -> None:
    """Runs in the child, before exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # it died before the line above
        os._exit(1)
    if cpus:
        os.sched_setaffinity(0, cpus)
