"""Everything the launcher writes to stderr: lines of ranks with a prefix, and its own."""

from __future__ import annotations

import os
import re
import select
from collections import defaultdict, deque
from collections.abc import Sequence

Source = tuple[int, str]  # rank, and "stdout" or "stderr"
TAIL_LINES = 20
_LINE_END = re.compile(rb"\r\n|\n|\r")
_MAX_PARTIAL_BYTES = 1 << 16
_MAX_PENDING_BYTES = 1 << 20


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Set text in columns as wide as they need to be; the last one is left-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join([*(f"{word:>{w}}" for word, w in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in (head, *rows)
    ]


class Log:
    """Cuts what ranks write into lines and keeps each line whole.

    Writing never blocks the launcher: while stderr's reader is slow, lines wait here, and
    `is_full` tells the caller to stop reading from ranks.
    """

    def __init__(self, fd: int = 2):
        self._fd = fd
        self._pending = bytearray()
        self._held: list[tuple[Source, bytes]] | None = None
        self._held_bytes = 0
        self._partial: defaultdict[Source, bytes] = defaultdict(bytes)
        self._open: Source | None = None  # whose unfinished line stands last on stderr
        self._open_text = b""
        self._tails: defaultdict[int, deque[bytes]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
        self._writers: deque[int] = deque(maxlen=TAIL_LINES)

    @property
    def is_full(self) -> bool:
        """Whether a slow reader has left too much waiting here."""
        return len(self._pending) > _MAX_PENDING_BYTES

    @property
    def has_pending(self) -> bool:
        """Whether `write_some` has anything to do."""
        return bool(self._pending)

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Take what a rank wrote to "stdout" or "stderr"; a line may come in several parts.

        A carriage return ends a line too: progress bars redraw themselves with it.
        """
        data = self._partial[rank, stream] + data
        end = 0
        for match in _LINE_END.finditer(data):
            self._line((rank, stream), data[end : match.end()])
            end = match.end()
        rest = data[end:]
        if len(rest) > _MAX_PARTIAL_BYTES:
            self._line((rank, stream), rest + b"\n")
            rest = b""
        self._partial[rank, stream] = rest

    def has_unfinished(self, rank: int) -> bool:
        """Whether `show_unfinished` has anything to do."""
        return bool(self._partial.get((rank, "stderr"))) and self._held is None

    def show_unfinished(self, rank: int) -> None:
        """Write a line that has no end yet: a prompt, perhaps, that somebody is to answer."""
        source = (rank, "stderr")
        text = self._partial.pop(source)
        shown = self._open_text if self._open == source else b""
        self._write(source, text)
        self._open, self._open_text = source, shown + text

    def end(self, rank: int) -> None:
        """Write out what a rank that ended left without a line end."""
        for stream in ("stdout", "stderr"):
            rest = self._partial.pop((rank, stream), b"")
            if rest or self._open == (rank, stream):
                self._line((rank, stream), rest + b"\n")

    def tail(self, rank: int) -> list[str]:
        """Return the last lines that a rank wrote to stderr."""
        return [line.decode(errors="replace").rstrip() for line in self._tails[rank]]

    def hold(self) -> None:
        """Keep back what ranks write from here on, until `release`."""
        if self._held is None:
            self._held = []

    def release(self, rank: int | None = None) -> None:
        """Write what was kept back, or only one rank's part of it."""
        held = self._held or []
        self._held = None if rank is None else [item for item in held if item[0][0] != rank]
        for source, text in held:
            if rank in (None, source[0]):
                self._write(source, text)

    def say(self, text: str) -> None:
        """Write the launcher's own words, ahead of what is kept back."""
        self._close_line()
        self._pending += f"{text}\n".encode()

    def say_tail(self, rank: int, title: str, lines: list[str]) -> None:
        """Repeat a rank's last lines under a title, unless they stand directly above anyway."""
        self.release(rank)
        if lines and set(list(self._writers)[-len(lines) :]) != {rank}:
            self.say(title)
            for line in lines:
                self.say(f"[rank {rank}] {line}")

    def write_some(self) -> None:
        """Write as much as can be written without blocking; call when the file is writable."""
        # A pipe that polls writable takes PIPE_BUF bytes at once.
        piece = bytes(self._pending[: select.PIPE_BUF])
        try:
            written = os.write(self._fd, piece)
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more
            written = len(self._pending)
        del self._pending[:written]

    def flush(self, stall_s: float) -> None:
        """Write everything, but give up on a reader that takes nothing for this long."""
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        while self._pending and poller.poll(stall_s * 1000):
            self.write_some()

    def _line(self, source: Source, line: bytes) -> None:
        if line == b"\r":  # what a progress bar starts with
            return
        if source[1] == "stderr" and line.endswith(b"\n"):
            shown = self._open_text if self._open == source else b""
            self._tails[source[0]].append(shown + line)
        if self._held is None:
            self._write(source, line)
        elif self._held_bytes < _MAX_PENDING_BYTES:
            self._held_bytes += len(line)
            self._held.append((source, line))

    def _write(self, source: Source, text: bytes) -> None:
        self._writers.append(source[0])
        if self._open != source:
            self._close_line()
            self._pending += b"[rank %d] " % source[0]
        self._pending += text
        self._open = None

    def _close_line(self) -> None:
        if self._open is not None:
            self._pending += b"\n"
            self._open = None
