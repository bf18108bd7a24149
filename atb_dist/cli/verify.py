"""`atb-dist verify`: whether a converted directory still holds every element, by hash."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from atb_dist.errors import ConfigError

HELP = "check a converted directory against its hashes, or against the checkpoint it came from"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--against", type=Path, metavar="SRC", help="the original checkpoint")
    parser.add_argument("--jobs", type=int, metavar="N", help="threads; default: CPUs")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Verify; the first thing that is wrong ends in one line and exit code 2."""
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs {args.jobs} is out of range; use >= 1")
    from atb_dist.convert.progress import Progress
    from atb_dist.convert.verify import verify

    size = sum(f.stat().st_size for f in args.directory.glob("*") if f.is_file())
    jobs = args.jobs or len(os.sched_getaffinity(0))
    with Progress("verify", size, quiet=args.quiet) as progress:
        found = verify(args.directory, args.against, jobs=jobs, advance=progress.advance)
    covered = found.coverage
    print(
        f"{args.directory}: {found.files} files, {covered.stored} tensors, "
        f"{found.read_bytes / 1e9:.3f} GB equal {found.against}; {covered.sources} tensors of the "
        f"model complete, {covered.replicas} replicas"
    )
    return 0
