"""Errors that callers may want to tell apart. Each text says what was asked, found, and works."""

from __future__ import annotations


class AtbDistError(RuntimeError):
    """Anything this package refuses or gives up on while it runs."""


class PeerFailure(AtbDistError):
    """Another rank died, aborted, fell silent past the deadline, or issued another collective."""


class OutOfBlocks(AtbDistError):
    """The paged KV cache cannot hold what a request needs."""


class ConfigError(ValueError):
    """A flag, environment, config or checkpoint is wrong; raised before any work starts."""


class ShardingError(ConfigError):
    """The model cannot be cut as asked, or the checkpoint does not hold what the cut needs."""
