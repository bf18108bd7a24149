"""A conversion from start to end: checked, written beside, proven, renamed."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from atb_dist.convert.copying import Copier, Writer, run_all
from atb_dist.convert.coverage import Coverage, check_coverage
from atb_dist.convert.encoding import Cast, Encoding
from atb_dist.convert.files import create_files
from atb_dist.convert.journal import Journal
from atb_dist.convert.layouts import Model, hf_layout, num_bytes, ranks_layout
from atb_dist.convert.progress import Progress
from atb_dist.convert.proof import compare, expected_hashes, found_hashes, with_hashes
from atb_dist.convert.side_files import copy_files, files_to_copy, write_config, write_index
from atb_dist.convert.target import check_room, check_target, finish, partial_of, sync_directory
from atb_dist.errors import ConfigError
from atb_dist.models import open_model
from atb_dist.weights.checkpoint import Checkpoint
from atb_dist.weights.manifest import MANIFEST, Manifest
from atb_dist.weights.plan import ShardingPlan
from atb_dist.weights.reader import Reader
from atb_dist.weights.stored import FILE_DTYPES, SourceTensor

MAX_FILE_BYTES = 5_000_000_000  # what transformers writes


@dataclass(frozen=True)
class Options:
    """What is wanted. dtype: "auto" (each tensor's own), "fp32", "bf16" or "fp16"."""

    to: str = "ranks"
    tp: int = 1
    dtype: str = "auto"
    jobs: int = field(default_factory=lambda: min(8, len(os.sched_getaffinity(0)) + 2))
    max_file_bytes: int = MAX_FILE_BYTES
    proof: bool = True
    resume: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Job:
    """A conversion that was checked and not begun."""

    source: Path
    target: Path
    hf: dict[str, Any]
    checkpoint: Checkpoint
    sources: dict[str, SourceTensor]
    encoding: Encoding
    manifest: Manifest
    coverage: Coverage
    options: Options

    @property
    def bytes_read(self) -> int:
        """Bytes of the source, each once."""
        return sum(tensor.num_bytes for tensor in self.sources.values())

    @property
    def bytes_written(self) -> int:
        """Bytes of all stored tensors, replicas included."""
        return sum(num_bytes(e) for entries in self.manifest.files.values() for e in entries)

    def identity(self) -> str:
        """Return a hash of all that decides what the files will hold."""
        state = hashlib.sha256(self.checkpoint.digest().encode())
        for file in self.checkpoint.files:
            status = file.stat()
            state.update(repr((str(file), status.st_size, status.st_mtime_ns)).encode())
        state.update(self.manifest.to_json().encode())
        return state.hexdigest()


@dataclass
class Report:
    """What a conversion did, in bytes and seconds of each phase."""

    bytes_read: int = 0
    bytes_written: int = 0
    copy_s: float = 0.0
    sync_s: float = 0.0
    proof_s: float = 0.0
    resumed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, read: int, written: int) -> None:
        """Add bytes; any thread may."""
        with self._lock:
            self.bytes_read += read
            self.bytes_written += written


def prepare(source: Path, target: Path, options: Options) -> Job:
    """Read headers and check everything that can be known before a byte is written.

    Raises ConfigError or ShardingError.
    """
    check_target(source, target, resume=options.resume)
    opened = open_model(source)
    checkpoint = opened.checkpoint
    plan = ShardingPlan.build(opened.family, opened.config, 1, 0)
    checkpoint.check(plan, model_type=opened.config.model_type)
    sources = {name: checkpoint.tensors[name] for name in plan.sources}
    encoding = Cast(sources, FILE_DTYPES.get(options.dtype))
    model = Model(opened.family, opened.config, encoding.tensors)
    manifest = _layout(model, options)
    coverage = check_coverage(manifest)
    job = Job(source, target, opened.hf, checkpoint, sources, encoding, manifest, coverage, options)
    check_room(target, job.bytes_written, checkpoint.files)
    return job


def _layout(model: Model, options: Options) -> Manifest:
    if options.to == "ranks":
        return ranks_layout(model, options.tp)
    if options.tp != 1:
        raise ConfigError(f"--to hf writes whole tensors; --tp {options.tp} does not apply")
    return hf_layout(model, options.max_file_bytes)


def run(job: Job) -> Report:
    """Convert, prove, and give the target its name.

    Raises AtbDistError when the disk fails and ConfigError when the source does, or the proof; the
    target does not exist then, and what was written waits beside it for --resume.
    """
    beside = partial_of(job.target)
    beside.mkdir(exist_ok=True)
    report = Report()
    with closing(Journal(beside, job.identity())) as journal:
        done = journal.finished()
        journal.begin(again=done is not None)
        _copy(job, beside, journal, done, report=report)
        _write_side_files(job, beside)
        if job.options.proof:
            _prove(job, beside, journal, report)
        else:
            (beside / MANIFEST).write_text(job.manifest.to_json())
        journal.remove()
    sync_directory(beside)
    finish(beside, job.target)
    return report


def _copy(
    job: Job, beside: Path, journal: Journal, done: set[str] | None, *, report: Report
) -> None:
    placed = create_files(job.manifest, beside, again=done is not None)
    begin = time.perf_counter()
    files = [beside / name for name in job.manifest.files]
    with Reader() as reader:
        sparse = any(reader.is_sparse(file) for file in job.checkpoint.files)
        with Writer(files, keep_holes=sparse) as writer:
            copier = Copier(reader, writer, job.encoding)
            for name, entries in job.manifest.files.items():
                for entry in entries:
                    for source, part in entry.parts(placed[name][entry.name]):
                        copier.add(source, part)
            todo = [t for t in _in_disk_order(job.sources) if t.name not in (done or ())]
            report.resumed = len(job.sources) - len(todo)
            total = sum(tensor.num_bytes for tensor in todo)
            with Progress("convert", total, quiet=job.options.quiet) as progress:
                calls = _calls(copier, todo, journal, report, progress)
                run_all(calls, job.options.jobs)
            report.copy_s = time.perf_counter() - begin
            writer.sync()
            report.sync_s = time.perf_counter() - begin - report.copy_s


def _in_disk_order(sources: dict[str, SourceTensor]) -> list[SourceTensor]:
    return sorted(sources.values(), key=lambda t: (t.file, t.parts[0].stored.offset))


def _calls(
    copier: Copier,
    tensors: list[SourceTensor],
    journal: Journal,
    report: Report,
    progress: Progress,
) -> Iterator[Callable[[], None]]:
    """Yield one call for each window; the last of a tensor notes it in the journal."""

    def copy(tensor: SourceTensor, rows: slice, left: list[slice]) -> None:
        count, written = copier.copy(tensor, rows)
        progress.advance(count)
        report.count(count, written)
        left.pop()  # atomic: the thread that empties the list is the last
        if not left:
            journal.add(tensor.name)

    for tensor in tensors:
        left = list(copier.windows(tensor))
        for rows in list(left):
            yield partial(copy, tensor, rows, left)


def _write_side_files(job: Job, beside: Path) -> None:
    copy_files(files_to_copy(job.source), beside)
    write_config(job.hf, job.manifest, beside)
    if job.manifest.kind == "hf" and len(job.manifest.files) > 1:
        write_index(job.manifest, beside)


def _prove(job: Job, beside: Path, journal: Journal, report: Report) -> None:
    begin = time.perf_counter()
    total = job.bytes_read + job.bytes_written
    try:
        with Progress("prove", total, quiet=job.options.quiet) as progress:
            hashes = prove(job, beside, progress.advance)
    except ConfigError:
        journal.remove()  # what is there is wrong: --resume begins anew
        raise
    (beside / MANIFEST).write_text(with_hashes(job.manifest, hashes).to_json())
    report.proof_s = time.perf_counter() - begin


def prove(job: Job, directory: Path, advance: Callable[[int], None]) -> dict[tuple[str, str], str]:
    """Compare every stored tensor in directory with its source by hash; return the hashes.

    Raises ConfigError that names the first tensor that differs.
    """
    jobs = job.options.jobs
    expected = expected_hashes(job.sources, job.manifest, job.encoding, jobs=jobs, advance=advance)
    found = found_hashes(directory, job.manifest, jobs=jobs, advance=advance)
    compare(expected, found, against=str(job.source))
    return found
