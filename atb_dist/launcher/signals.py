"""Signals for a loop that waits on files."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_on_socket() -> Iterator[socket.socket]:
    """Turn SIGCHLD and the signals that end a job into bytes on a socket, one per signal."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    old = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield reader
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        reader.close()
        writer.close()
