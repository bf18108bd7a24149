"""Deciding, on rank 0, when a continuation ends and what text of it may be shown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from atb_dist.config import SamplingParams


class Detokenizer(Protocol):
    """Turns tokens into text piece by piece (atb_dist.tokenizer)."""

    def add(self, token: int) -> str:
        """Return the text that the token completes."""

    def finish(self) -> str:
        """Return what was held back."""


@dataclass(frozen=True)
class Verdict:
    """What to show now, and why the continuation ends ("stop", "length") or None."""

    text: str
    finish_reason: str | None


class StopChecker:
    """Watches one continuation. Text that may be the beginning of a stop string is held back."""

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: Collection[int],
        max_tokens: int,
        detokenizer: Detokenizer | None,
    ):
        self._stop_ids = set(params.stop_token_ids)
        if not params.ignore_eos:
            self._stop_ids |= set(eos_ids)
        self._stop = tuple(params.stop)
        self._max_tokens = max_tokens
        self._detokenizer = detokenizer
        self._count = 0
        self._held = ""

    def add(self, token: int) -> Verdict:
        """Take the next token."""
        self._count += 1
        if token in self._stop_ids:  # its own text is not shown
            return Verdict(self._flush(), "stop")
        if self._detokenizer is not None:
            self._held += self._detokenizer.add(token)
        found = min((i for i in map(self._held.find, self._stop) if i >= 0), default=None)
        if found is not None:
            return Verdict(self._held[:found], "stop")
        if self._count >= self._max_tokens:
            text = self._flush()
            found = min((i for i in map(text.find, self._stop) if i >= 0), default=None)
            return Verdict(text, "length") if found is None else Verdict(text[:found], "stop")
        return Verdict(self._release(), None)

    def _flush(self) -> str:
        text = self._held + (self._detokenizer.finish() if self._detokenizer else "")
        self._held = ""
        return text

    def _release(self) -> str:
        """Give out the text that can't be part of a stop string any more."""
        keep = max(
            (n for s in self._stop for n in range(1, len(s)) if self._held.endswith(s[:n])),
            default=0,
        )
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return text
