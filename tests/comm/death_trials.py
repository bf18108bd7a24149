"""Ranks that die or stop at random moments, by the hundred: `python death_trials.py KILLS STOPS`.

Each trial forks three ranks that run random collectives on two communicators, sends one of them
SIGKILL or SIGSTOP at a random moment of start-up or work, and reads what the others raise and
when. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from atb_dist.comm.lcal import LcalComm
from atb_dist.errors import PeerFailure

RANKS = 3
KILL_LIMIT_S, STOP_LIMIT_S = 3.0, 0.4  # of a wait
ABSENT = "which did not come"  # it died before it had met the others: the limit ends the wait


def work(session: str, rank: int, seed: int, limit_s: float) -> str:
    """Run the same random collectives as the other ranks until one fails; return what it says."""
    shared = random.Random(seed)
    try:
        comm = LcalComm(session, rank, RANKS, timeout_s=limit_s)
        comms = [comm, comm.split(0)]
        while True:
            chosen, size = shared.choice(comms), shared.choice([1, 4000, 40_000, 300_000])
            verb = shared.randrange(6)
            if verb == 0:
                chosen.all_reduce(torch.ones(size))
            elif verb == 1:
                chosen.all_gather(torch.ones(size))
            elif verb == 2:
                chosen.broadcast_object("x" * size if rank == 0 else None)
            elif verb == 3:
                chosen.all_reduce(chosen.empty([size], torch.float32).fill_(1))
            elif verb == 4:
                if rank == 0:
                    chosen.send(torch.ones(size), 1)
                elif rank == 1:
                    chosen.recv(torch.empty(size), 0)
            else:
                chosen.barrier()
    except PeerFailure as error:
        return str(error)


def fork_rank(session: str, rank: int, seed: int, limit_s: float) -> tuple[int, int]:
    """Start a rank → its pid, and where its last words come from."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = work(session, rank, seed, limit_s)
        os.write(writer, json.dumps([time.monotonic(), said]).encode())
        os._exit(0)
    os.close(writer)
    return pid, reader


def trial(number: int, end: signal.Signals, chance: random.Random) -> tuple[float, str, bool]:
    """Run one; return how late the last survivor raised, the first thing that was wrong, and
    whether the victim never came.
    """
    limit_s = KILL_LIMIT_S if end == signal.SIGKILL else STOP_LIMIT_S
    session = f"trial-{os.getpid()}-{number}"
    ranks = [fork_rank(session, r, number, limit_s) for r in range(RANKS)]
    time.sleep(chance.uniform(0, 0.06))
    victim = chance.randrange(RANKS)
    pid = ranks[victim][0]
    os.kill(pid, end)
    ended = time.monotonic()
    late, wrong, absent = 0.0, "", False
    for rank, (_, reader) in enumerate(ranks):
        if rank == victim:
            continue
        words = b"".join(iter(lambda reader=reader: os.read(reader, 65536), b""))
        when, said = json.loads(words)
        late = max(late, when - ended)
        absent = absent or ABSENT in said
        if f"(pid {pid})" not in said and f"rank {victim}" not in said:
            wrong = wrong or f"rank {rank} does not name rank {victim} (pid {pid}): {said}"
    os.kill(pid, signal.SIGKILL)
    for each, reader in ranks:
        os.waitpid(each, 0)
        os.close(reader)
    return late, wrong, absent


def main() -> None:
    """Run the trials; print what was slowest, what was wrong and what is left."""
    kills, stops = (int(text) for text in sys.argv[1:])
    torch.set_num_threads(1)
    chance = random.Random(5)
    trial(0, signal.SIGKILL, chance)  # whatever a first time opens
    before = descriptors(), sorted(Path("/dev/shm").iterdir())
    slowest = {signal.SIGKILL: 0.0, signal.SIGSTOP: 0.0}
    wrong: list[str] = []
    absences = 0
    plan = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    for number, end in enumerate(plan, start=1):
        late, what, absent = trial(number, end, chance)
        absences += absent
        slowest[end] = max(slowest[end], 0 if absent else late)
        wrong += [f"trial {number}: {what}"] if what else []
    after = descriptors(), sorted(Path("/dev/shm").iterdir())
    report = {"kills": kills, "stops": stops,
              "absences": absences, "wrong": wrong, "left": before != after,
              "killed_noticed_s": slowest[signal.SIGKILL],
              "stopped_noticed_s": slowest[signal.SIGSTOP]}  # fmt: skip
    print(json.dumps(report))


def descriptors() -> int:
    """How many are open here."""
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    main()
