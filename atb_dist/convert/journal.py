"""What a conversion has finished, kept beside its files so that a killed one goes on. No torch."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from atb_dist.errors import ConfigError

JOURNAL = "convert.journal"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """A line for the job, then one for each source tensor that is in the files whole.

    Lines count only for the boot that they were written in: what a killed process wrote is in the
    page cache, what a lost host wrote may not be.
    """

    def __init__(self, directory: Path, identity: str):
        """identity: a hash of all that decides what the files hold."""
        self._file = directory / JOURNAL
        self._head = json.dumps({"identity": identity, "boot": BOOT_ID.read_text().strip()})
        self._lock = threading.Lock()
        self._descriptor = -1

    def finished(self) -> set[str] | None:
        """Return the tensors of an earlier run that need no more work; None to begin anew.

        Raises ConfigError when the earlier run was another job.
        """
        try:
            lines = self._file.read_text(errors="replace").split("\n")[:-1]  # a torn last one goes
            head = json.loads(lines[0])
            mine = json.loads(self._head)
            if head["identity"] != mine["identity"]:
                raise ConfigError(
                    f"{self._file.parent} is left from another conversion (other source, layout "
                    "or version); delete it, or give another target"
                )
            return set(lines[1:]) if head["boot"] == mine["boot"] else None
        except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            return None

    def begin(self, *, again: bool) -> None:
        """Open for adding; again: keep the lines that are there."""
        if not again:
            self._file.write_text(self._head + "\n")
        self._descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def add(self, tensor: str) -> None:
        """Note that a source tensor is in all files that hold some of it."""
        with self._lock:
            os.write(self._descriptor, f"{tensor}\n".encode())

    def close(self) -> None:
        """Stop adding."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Forget the job: its files are whole."""
        self.close()
        self._file.unlink()
