"""A warm pool of rank processes: started once per test session, reused from run to run."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from atb_dist.comm.rank import without_launcher
from atb_dist.launcher.ports import reserve_port
from atb_dist.testing.call import Call
from atb_dist.testing.execute import Terms
from atb_dist.testing.outcomes import Outcome
from atb_dist.testing.rank_process import ONE_THREAD, RankProcess, RankServer
from atb_dist.testing.watch import Watch
from atb_dist.testing.wire import Task


class RankPool:
    """Rank processes that outlive a run.

    The first run starts a server, which imports torch; later ones fork what is missing, in
    milliseconds. A rank that failed is not used again. One run at a time.
    """

    default_backend = "lcal"
    size = None

    def __init__(self) -> None:
        self._server: RankServer | None = None
        self._processes: list[RankProcess | None] = []

    def run(self, size: int, call: Call, terms: Terms) -> list[Outcome]:
        """Run a call on ranks 0 to size - 1; return what became of each.

        terms.limit_s counts from the moment all rank processes exist. Ranks that still run then, or
        a few seconds after another has failed, are killed and their stacks kept.
        """
        if terms.backend == "mpi":
            pytest.skip(f"backend mpi needs mpiexec -n {size} python -m pytest --with-mpi")
        server = self._get_server()
        processes = self._get_processes(server, size)
        watch = Watch(server, processes, terms.faults)
        try:
            with reserve_port() as port:
                _send_tasks(processes, call, terms, port.getsockname()[1])
                return watch.wait(terms.limit_s)
        finally:
            for rank in watch.unfit_ranks:
                server.kill(processes[rank])
                processes[rank].close()
                self._processes[rank] = None

    def close(self) -> None:
        """End all ranks; the next run starts afresh."""
        for process in self._processes:
            if process is not None:
                process.close()
        self._processes = []
        if self._server is not None:
            self._server.close()
            self._server = None

    def _get_server(self) -> RankServer:
        if self._server is None or not self._server.is_alive:
            self.close()
            self._server = RankServer()
        return self._server

    def _get_processes(self, server: RankServer, size: int) -> list[RankProcess]:
        server.pull()
        for rank, process in enumerate(self._processes):
            if process is not None and process.pid in server.statuses:  # died between two runs
                process.close()
                self._processes[rank] = None
        self._processes += [None] * (size - len(self._processes))
        ready = []
        for rank, process in enumerate(self._processes[:size]):
            ready.append(process or server.fork())
            self._processes[rank] = ready[-1]
        return ready


def _send_tasks(processes: Sequence[RankProcess], call: Call, terms: Terms, port: int) -> None:
    session = f"test-{os.getpid()}-{secrets.token_hex(8)}"
    size = len(processes)
    for rank, process in enumerate(processes):
        env = {
            **without_launcher(os.environ),
            **ONE_THREAD,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ATB_DIST_SESSION": session,
            "ATB_DIST_LAUNCHER": "atb-dist",
        }
        task = Task(rank, size, session, terms, call, env, list(sys.path), str(Path.cwd()))
        with contextlib.suppress(OSError):  # it died just now; the watch will tell
            process.frames.send(task)
