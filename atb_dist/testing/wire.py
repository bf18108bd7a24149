"""What pytest, the rank server and rank processes say to each other: framed pickles, and tasks."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from atb_dist.testing.call import Call
from atb_dist.testing.execute import Terms

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Task:
    """One rank's part of one `ranks.run`.

    env   the caller's environment with this rank's own names in it
    """

    rank: int
    size: int
    session: str
    terms: Terms
    call: Call
    env: dict[str, str]
    sys_path: list[str]
    cwd: str


class Frames:
    """Length-prefixed pickles over a stream socket, readable piece by piece.

    Both ends are processes of one test session, so unpickling is as safe as importing the tests.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.closed = False
        self._received = bytearray()

    def fileno(self) -> int:
        """The socket, for a selector."""
        return self.connection.fileno()

    def send(self, message: Any) -> None:
        """Send one message. Raises OSError when the other end is gone or takes too long."""
        data = pickle.dumps(message)
        self.connection.sendall(_LENGTH.pack(len(data)))
        self.connection.sendall(data)

    def pull(self) -> list[Any]:
        """Read what has come, once; return the messages that are complete. Sets closed at the end.

        Blocks while there is nothing to read: a caller with deadlines selects first.
        """
        try:
            data = self.connection.recv(1 << 20)
        except OSError:
            data = b""
        self.closed |= not data
        self._received += data
        messages = []
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                break
            messages.append(pickle.loads(self._received[_LENGTH.size : end]))
            del self._received[:end]
        return messages

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self.closed = True
        self.connection.close()
