"""`atb-dist convert`: a checkpoint's layout turned into another one, with proof."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atb_dist.config import parse_dtype
from atb_dist.errors import ConfigError

if TYPE_CHECKING:
    from atb_dist.convert.job import Job, Report

HELP = "turn a checkpoint into per-rank, Hugging Face or Meta files, and prove every element"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("source", type=Path, metavar="SRC", help="directory of any layout")
    parser.add_argument("target", type=Path, metavar="DIR", help="directory to make")
    parser.add_argument("--to", default="ranks", choices=("ranks", "hf"))
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="ranks")
    parser.add_argument("--dtype", default="auto", help="auto (the same bits), fp32, bf16 or fp16")
    parser.add_argument("--jobs", type=int, metavar="N", help="threads; default: CPUs + 2")
    parser.add_argument("--max-file-gb", type=float, default=5.0, metavar="GB", help="of --to hf")
    parser.add_argument("--dry-run", action="store_true", help="say what it takes, write nothing")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was ended")
    parser.add_argument("--no-proof", action="store_true", help="do not read it all again")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Convert, or say what it would take."""
    for name in ("tp", "jobs", "max_file_gb"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ConfigError(
                f"--{name.replace('_', '-')} {value} is out of range; use more than 0"
            )
    from atb_dist.convert import job as conversion
    from atb_dist.convert.estimate import estimate

    options: dict[str, Any] = {} if args.jobs is None else {"jobs": args.jobs}
    job = conversion.prepare(
        args.source,
        args.target,
        conversion.Options(
            to=args.to, tp=args.tp, dtype=parse_dtype(args.dtype, flag="--dtype"),
            max_file_bytes=int(args.max_file_gb * 1e9), proof=not args.no_proof,
            resume=args.resume, quiet=args.quiet, **options,
        ),
    )  # fmt: skip
    if args.dry_run:
        found = estimate(job)
        print(json.dumps(vars(found)) if args.json else found.text())
        return 0
    report = conversion.run(job)
    print(json.dumps(_fields(job, report)) if args.json else _text(job, report))
    return 0


def _fields(job: Job, report: Report) -> dict[str, Any]:
    told = {name: value for name, value in vars(report).items() if not name.startswith("_")}
    return {**told, **vars(job.coverage), "files": len(job.manifest.files)}


def _text(job: Job, report: Report) -> str:
    covered = job.coverage
    lines = [
        f"{job.target}: {len(job.manifest.files)} files, {covered.stored} tensors of "
        f"{covered.sources} in the source, {covered.replicas} replicas; every element once",
        f"read {report.bytes_read / 1e9:.3f} GB, wrote {report.bytes_written / 1e9:.3f} GB in "
        f"{report.copy_s:.2f} s, to the disk in {report.sync_s:.2f} s more",
    ]
    if report.resumed:
        lines.append(f"{report.resumed} tensors were there from the run before")
    if job.options.proof:
        both = job.bytes_read + job.bytes_written
        lines.append(f"proof: {both / 1e9:.3f} GB hashed in {report.proof_s:.2f} s, all equal")
    return "\n".join(lines)
