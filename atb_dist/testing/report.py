"""How pytest prints a run that failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _pytest._code.code import ReprFileLocation, TracebackEntry

from atb_dist.testing.outcomes import Run

_HERE = Path(__file__).parent


class RankFailureRepr:
    """Ranks first, then the line of the test that called `ranks.run`.

    Has what pytest asks of any representation: reprcrash for the line in the summary, toterminal
    for the text.
    """

    def __init__(self, run: Run, traceback: Sequence[TracebackEntry]):
        outside = [entry for entry in traceback if _HERE not in Path(entry.path).parents]
        entry = (outside or traceback)[-1]
        self.reprcrash = ReprFileLocation(str(entry.path), entry.lineno + 1, run.headline)
        self._text = f"{run.report()}\n\nin {entry.name}:\n{str(entry.statement).strip()}"

    def toterminal(self, writer: Any) -> None:
        """Print to pytest's terminal."""
        writer.line(self._text)
        writer.line("")
        self.reprcrash.toterminal(writer)

    def __str__(self) -> str:
        return self._text
