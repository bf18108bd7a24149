"""What is to be started: the launcher's flags, checked, and each rank's environment."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from atb_dist.comm.rank import without_launcher
from atb_dist.errors import ConfigError
from atb_dist.launcher.placement import BINDINGS

DEVICES = ("auto", "cpu", "npu", "cuda")


@dataclass(frozen=True)
class Job:
    """One host's part of a job: local_size ranks of command.

    rendezvous   "host:port" where node 0 listens; needed when there are several nodes
    timeout_s    how long nodes wait for each other
    """

    command: tuple[str, ...]
    local_size: int
    num_nodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""
    bind: str = "none"
    device: str = "auto"
    quiet: bool = False
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what cannot start, before anything does.

        Raises ConfigError.
        """
        if self.local_size < 1:
            raise ConfigError(f"-n {self.local_size} starts no rank; use -n >= 1")
        if self.num_nodes < 1:
            raise ConfigError(f"--nodes {self.num_nodes} is out of range; use --nodes >= 1")
        if not 0 <= self.node_rank < self.num_nodes:
            raise ConfigError(
                f"--node-rank {self.node_rank} does not fit --nodes {self.num_nodes}; "
                f"use 0 to {self.num_nodes - 1}, a different one on each host"
            )
        if self.num_nodes > 1 and not self.rendezvous:
            raise ConfigError(
                f"--nodes {self.num_nodes} needs --rendezvous HOST:PORT, "
                "an address of node 0 that every node can reach"
            )
        if self.rendezvous:
            parse_address(self.rendezvous)
        for flag, value, choices in (
            ("--bind", self.bind, BINDINGS),
            ("--device", self.device, DEVICES),
        ):
            if value not in choices:
                raise ConfigError(f"{flag} {value} is unknown; use {', '.join(choices)}")
        if not 0 < self.timeout_s < float("inf"):
            raise ConfigError(f"--timeout {self.timeout_s:g} is out of range; use seconds > 0")
        _check_command(self.command)

    @property
    def size(self) -> int:
        """Ranks of the whole job."""
        return self.local_size * self.num_nodes

    @property
    def ranks(self) -> range:
        """Ranks of this host."""
        return range(self.node_rank * self.local_size, (self.node_rank + 1) * self.local_size)


@dataclass(frozen=True)
class Meeting:
    """What all nodes of a job agreed on before any rank starts."""

    session: str
    master_addr: str
    master_port: int


def parse_address(text: str) -> tuple[str, int]:
    """Split "host:port" or "[v6 address]:port".

    Raises ConfigError.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\s\[\]]+)):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ConfigError(f"--rendezvous {text} is not HOST:PORT, such as node0:29400")
    return match[1] or match[2], int(match[3])


def rank_environment(
    job: Job, meeting: Meeting, rank: int, env: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Build a rank's environment: torchrun's names, and defaults for what env leaves unset."""
    return {
        **defaults,
        **without_launcher(env),
        "RANK": str(rank),
        "WORLD_SIZE": str(job.size),
        "LOCAL_RANK": str(rank - job.ranks.start),
        "LOCAL_WORLD_SIZE": str(job.local_size),
        "GROUP_RANK": str(job.node_rank),
        "GROUP_WORLD_SIZE": str(job.num_nodes),
        "MASTER_ADDR": meeting.master_addr,
        "MASTER_PORT": str(meeting.master_port),
        "ATB_DIST_SESSION": meeting.session,
        "ATB_DIST_LAUNCHER": "atb-dist",
    }


def _check_command(command: tuple[str, ...]) -> None:
    if not command:
        raise ConfigError("no command given; use atb-dist launch -n N -- COMMAND [ARGUMENT ...]")
    name = command[0]
    if shutil.which(name) is not None:
        return
    if os.path.dirname(name) and os.path.exists(name):  # noqa: PTH110, PTH120  (as the shell does)
        hint = f"; use -- python {name}" if name.endswith(".py") else ""
        raise ConfigError(f"{name} is not an executable file{hint}")
    raise ConfigError(f"command not found: {name}")
