"""Workers: the other ranks of an `LLM` in a plain script, as processes of atb_dist.worker."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from atb_dist.comm import RankInfo
from atb_dist.device import Device
from atb_dist.errors import PeerFailure

END_S = 5.0


class Workers:
    """Processes of ranks 1 and up. They end when the script does, however it ends."""

    def __init__(self, model: Path, engine: dict[str, Any], size: int, *, timeout_s: float):
        """Start them and wait until each is about to connect.

        Raises PeerFailure when one ends first, or none of them answers in time.
        """
        session = f"script-{os.getpid()}-{secrets.token_hex(6)}"
        self.rank_info = RankInfo(0, size, 0, size, 0, 1, session, "none")
        ranks = list(range(1, size))
        # One process forks all CPU ranks; a device's context does not survive a fork.
        groups = [ranks] if Device.open(0).kind == "cpu" else [[rank] for rank in ranks]
        spec = {"session": session, "size": size, "model": str(model.resolve()), "engine": engine}
        self._processes = [_start({**spec, "ranks": group}) for group in groups]
        self._finalizer = weakref.finalize(self, _kill_all, self._processes)
        try:
            self._wait_until_ready(len(ranks), time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self, count: int, deadline: float, timeout_s: float) -> None:
        streams = [p.stdout for p in self._processes if p.stdout is not None]
        while count > 0:
            readable, _, _ = select.select(streams, [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise PeerFailure(f"{count} ranks did not start within {timeout_s:g} s")
            for stream in readable:
                line = stream.readline().decode()
                if not line.startswith("ready"):
                    raise PeerFailure(
                        f"a rank ended while it started ({line.strip() or 'no message'}); "
                        "see its message above"
                    )
                count -= 1

    def wait(self) -> None:
        """Let the processes end by themselves; kill what is left after 5 s."""
        deadline = time.monotonic() + END_S
        for process in self._processes:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        self.kill()

    def kill(self) -> None:
        """End all of them now."""
        self._finalizer()


def _start(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "atb_dist.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        start_new_session=True,  # Ctrl-C reaches the script alone, which then ends them
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(spec)}\n".encode())
    return process


def _kill_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()  # the worker kills its ranks and ends
    for process in processes:
        try:
            process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
