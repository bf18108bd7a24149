"""`atb-dist launch`: start the ranks of a job on this host."""

from __future__ import annotations

import argparse
import os
import re
import sys

from atb_dist.errors import ConfigError

HELP = "start N ranks of a command on this host, and end all of them together"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. Numbers are checked by `run`, so that a bad one costs one line."""
    parser.usage = "atb-dist launch -n N [flags] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("-n", "--ranks", metavar="N", required=True, help="ranks on each node")
    parser.add_argument("--nodes", metavar="M", default="1", help="number of hosts (1)")
    parser.add_argument("--node-rank", metavar="R", default="0", help="this host's number (0)")
    # fmt: off
    parser.add_argument("--rendezvous", metavar="HOST:PORT", default="",
                        help="where node 0 listens, with several nodes")
    parser.add_argument("--bind", default="none",
                        help="pin ranks to: cores, numa (whole nodes) or none (the default)")
    parser.add_argument("--device", default="auto",
                        help="auto, cpu, npu or cuda: what the table shows and what is checked")
    parser.add_argument("--timeout", metavar="S", default=None,
                        help="seconds that nodes wait for each other (ATB_DIST_TIMEOUT_S or 300)")
    # fmt: on
    parser.add_argument("--quiet", action="store_true", help="print no table of ranks")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def run(args: argparse.Namespace) -> int:
    """Start the job and return its exit code: the first failing rank's, or 0."""
    from atb_dist.launcher import ascend
    from atb_dist.launcher.job import Job
    from atb_dist.launcher.supervisor import launch

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    flag, timeout = "--timeout", args.timeout
    if timeout is None:
        flag, timeout = "ATB_DIST_TIMEOUT_S", os.environ.get("ATB_DIST_TIMEOUT_S") or "300"
    job = Job(
        command=tuple(command),
        local_size=_whole("-n", args.ranks),
        num_nodes=_whole("--nodes", args.nodes),
        node_rank=_whole("--node-rank", args.node_rank),
        rendezvous=args.rendezvous,
        bind=args.bind,
        device=args.device,
        quiet=args.quiet,
        timeout_s=_seconds(flag, timeout),
    )
    found = ascend.check(os.environ, device=job.device, local_size=job.local_size)
    for notice in found.notices:
        print(f"atb-dist: notice: {notice}", file=sys.stderr, flush=True)
    for problem in found.problems[:-1]:
        print(f"atb-dist: error: {problem}", file=sys.stderr, flush=True)
    if found.problems:
        raise ConfigError(found.problems[-1])
    return launch(job)


def _whole(flag: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,6}", text):
        raise ConfigError(f"{flag} {text} is not a whole number")
    return int(text)


def _seconds(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag}={text} is not a number of seconds") from None
