"""What a conversion will take, without writing a byte."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from atb_dist.convert.job import Job
from atb_dist.weights.reader import WINDOW_BYTES

PROBE_BYTES = 64 << 20


@dataclass(frozen=True)
class Estimate:
    """Bytes and seconds of a conversion. peak_disk_bytes: of the target's disk, at the end."""

    read_bytes: int
    write_bytes: int
    proof_bytes: int
    peak_disk_bytes: int
    seconds: float

    def text(self) -> str:
        """Return it in one line."""
        return (
            f"would read {self.read_bytes / 1e9:.3f} GB, write {self.write_bytes / 1e9:.3f} GB, "
            f"take {self.peak_disk_bytes / 1e9:.3f} GB of disk, and read "
            f"{self.proof_bytes / 1e9:.3f} GB again as proof: about {self.seconds:.0f} s at the "
            "speed at which the source's first 64 MiB were read"
        )


def estimate(job: Job) -> Estimate:
    """Add up a job's bytes; time the reading of a small part of the source."""
    proof = job.bytes_read + job.bytes_written if job.options.proof else 0
    moved = job.bytes_read + job.bytes_written + proof
    return Estimate(
        job.bytes_read,
        job.bytes_written,
        proof,
        job.bytes_written,
        moved / max(1.0, _read_speed(job.checkpoint.files)),
    )


def _read_speed(files: list[Path]) -> float:
    """Return bytes per second."""
    window, count, begin = bytearray(WINDOW_BYTES), 0, time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count < PROBE_BYTES and (got := stream.readinto(window)):
                count += got
    return count / max(1e-9, time.perf_counter() - begin)
