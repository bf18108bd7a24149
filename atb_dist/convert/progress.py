"""Telling how far a conversion is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

LINE_EVERY_S = 10.0


class Progress:
    """Counts bytes of one phase; any thread may advance it. quiet: say nothing."""

    def __init__(self, what: str, total_bytes: int, *, quiet: bool):
        from tqdm import tqdm

        self._what, self._total, self._quiet = what, total_bytes, quiet
        self._lock = threading.Lock()
        self._done = 0
        self._begin = self._told = time.monotonic()
        self._on_terminal = sys.stderr.isatty() and not quiet
        self._bar = tqdm(
            total=total_bytes, unit="B", unit_scale=True, desc=what, disable=not self._on_terminal
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def advance(self, count: int) -> None:
        """Count bytes that were dealt with."""
        with self._lock:
            self._done += count
            if self._on_terminal:
                self._bar.update(count)
            elif not self._quiet and time.monotonic() - self._told >= LINE_EVERY_S:
                self._told = time.monotonic()
                sys.stderr.write(self._line() + "\n")
                sys.stderr.flush()

    def _line(self) -> str:
        rate = self._done / max(1e-9, self._told - self._begin)
        left = (self._total - self._done) / rate if rate else 0.0
        return (
            f"{self._what}: {self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB, "
            f"{rate / 1e9:.2f} GB/s, {left:.0f} s left"
        )
