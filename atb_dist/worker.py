"""Ranks 1 and up of an `LLM` that a plain script started: `python -m atb_dist.worker`.

Reads one JSON line from stdin: {"session", "size", "ranks", "model", "engine"}. Imports torch
once, forks a process for each rank (CPU hosts; for devices one worker serves one rank), and writes
`ready RANK PID` as each is about to connect, `died RANK PID STATUS` when one fails. Ends, with
all ranks, when stdin closes: so they never outlive the script.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve the ranks named on stdin; return how many failed."""
    spec = json.loads(sys.stdin.readline())
    import atb_dist.engine.engine
    import atb_dist.engine.startup  # noqa: F401  (before the fork: torch is imported once)

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the script decides what Ctrl-C means
    children: dict[int, int] = {}
    for rank in spec["ranks"]:
        pid = os.fork()
        if pid == 0:
            _die_with_parent()
            os._exit(_serve(spec, rank))
        children[pid] = rank
    threading.Thread(target=_end_with_script, args=(list(children),), daemon=True).start()
    failed = 0
    while children:
        pid, status = os.wait()
        rank = children.pop(pid)
        if status != 0:
            failed += 1
            _tell(f"died {rank} {pid} {os.waitstatus_to_exitcode(status)}")
    return failed


def _serve(spec: dict[str, Any], rank: int) -> int:
    from atb_dist.comm import RankInfo
    from atb_dist.config import EngineConfig
    from atb_dist.engine.engine import Engine
    from atb_dist.engine.startup import limits_of, prepare, start
    from atb_dist.errors import AtbDistError, ConfigError

    size = spec["size"]
    info = RankInfo(rank, size, rank, size, 0, 1, spec["session"], "none")
    engine_config = EngineConfig(**spec["engine"])
    try:
        job = prepare(Path(spec["model"]), engine_config, size, rank)
    except ConfigError as error:
        sys.stderr.write(f"atb_dist: rank {rank} (pid {os.getpid()}): {error}\n")
        return 1
    _tell(f"ready {rank} {os.getpid()}")
    try:
        started = start(job, engine_config, info)
        limits = limits_of(job, engine_config)
        Engine(started.decoder, started.cache, started.tp, limits).follow()
        started.tp.close()
    except (AtbDistError, ConfigError):
        return 1  # rank 0, which shows errors, has met the same one or was told of it
    return 0


def _tell(line: str) -> None:
    """Write a whole line at once: ranks share the pipe. A script that is gone needs no news."""
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:
        os._exit(1)


def _end_with_script(children: list[int]) -> None:
    while os.read(0, 4096):
        continue
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os._exit(1)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
