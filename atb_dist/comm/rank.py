"""Who this process is among its peers, read from whatever started it. Imports no torch.

The innermost launcher counts: Slurm's variables stay visible below torchrun and mpirun (where
they number nodes, not ranks), so they are read only when no other launcher left its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from atb_dist.errors import ConfigError

# Names of rank, size, local rank, local size; in the order in which launchers are believed.
_NAMES = {
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpich": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
}
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID")
_OWN = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|NODE_RANK|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_.*|ATB_DIST_(SESSION|LAUNCHER)"
    r"|OMPI_.*|PMIX?_.*|HYDI?_.*|MPI_LOCALN?RANK.*"
    r"|SLURM_(PROCID|LOCALID|NODEID|STEPID|STEP_.*)"
)
_SAFE_SESSION = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class RankInfo:
    """This process's place in its job.

    local_rank, local_size   counted on this host
    node_rank, num_nodes     hosts; where the launcher does not number them, ranks are taken to
                             fill one host after the other
    session                  one per job, the same on all its ranks; safe in a socket name
    launcher                 "none", "torchrun", "atb-dist", "openmpi", "mpich" or "slurm"
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int
    session: str
    launcher: str

    def __post_init__(self) -> None:
        """Refuse numbers that cannot belong to one job.

        Raises ConfigError.
        """
        for name, value, limit, limit_name in (
            ("rank", self.rank, self.size, "size"),
            ("local rank", self.local_rank, self.local_size, "local size"),
            ("node rank", self.node_rank, self.num_nodes, "number of nodes"),
        ):
            if not 0 <= value < limit:
                raise ConfigError(
                    f"{self.launcher}: {name} {value} does not fit {limit_name} {limit}; "
                    f"use 0 <= {name} < {limit_name}"
                )
        if self.local_size > self.size or self.local_rank > self.rank:
            raise ConfigError(
                f"{self.launcher}: local rank {self.local_rank} of {self.local_size} does not fit "
                f"rank {self.rank} of {self.size}; local numbers count this host's ranks only"
            )
        if self.num_nodes > self.size:
            raise ConfigError(
                f"{self.launcher}: {self.num_nodes} nodes for {self.size} ranks; "
                "every node runs at least one"
            )
        if not _SAFE_SESSION.fullmatch(self.session):
            raise ConfigError(
                f"ATB_DIST_SESSION={self.session!r} can't name a socket; "
                "use 1 to 64 letters, digits, '.', '_' or '-'"
            )

    @classmethod
    def single(cls, session: str = "") -> RankInfo:
        """Return the only rank of a job of its own."""
        return cls(0, 1, 0, 1, 0, 1, session or f"none-{secrets.token_hex(8)}", "none")

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> RankInfo:
        """Read what torchrun, `atb-dist launch`, Open MPI, MPICH or Slurm left in the environment.

        Without any of them: a job of one rank. ATB_DIST_SESSION replaces the session found.
        Raises ConfigError when variables are half set, not numbers, or contradict each other.
        """
        env = {name: value for name, value in env.items() if value}
        found = [name for name in _NAMES if any(v in env for v in _NAMES[name])]
        if found == ["mpich"] and env.get("PMI_RANK", "?") == env.get("SLURM_PROCID"):
            found = []  # srun --mpi=pmi2 speaks PMI itself; its own names say more
        if found:
            return _from_launcher(env, found)
        if "SLURM_STEP_ID" in env and "SLURM_STEP_NUM_TASKS" in env:  # not in a batch script itself
            return _from_slurm(env)
        return cls.single(env.get("ATB_DIST_SESSION", ""))


def without_launcher(env: Mapping[str, str]) -> dict[str, str]:
    """Copy env without what any launcher left in it, so that a new job can start below it."""
    return {name: value for name, value in env.items() if not _OWN.fullmatch(name)}


def _from_launcher(env: Mapping[str, str], found: list[str]) -> RankInfo:
    launcher = found[0]
    names = _NAMES[launcher]
    rank, size, local_rank, local_size = (_integer(env, name, names) for name in names)
    for other in found[1:]:
        for name, same in zip(names, _NAMES[other], strict=True):
            if same in env and _integer(env, same, _NAMES[other]) != int(env[name]):
                raise ConfigError(
                    f"{name}={env[name]} ({launcher}) contradicts {same}={env[same]} ({other}); "
                    "start ranks with one launcher, or unset the other's variables"
                )
    num_nodes = -(-size // local_size) if local_size > 0 else 1
    node_rank = rank // local_size if local_size > 0 else 0
    if launcher == "torchrun":
        if "GROUP_WORLD_SIZE" in env or "GROUP_RANK" in env:
            group = ("GROUP_RANK", "GROUP_WORLD_SIZE")
            node_rank, num_nodes = (_integer(env, name, group) for name in group)
        if env.get("ATB_DIST_LAUNCHER") == "atb-dist":
            launcher = "atb-dist"
            if "TORCHELASTIC_RUN_ID" in env:
                raise ConfigError(
                    "torchrun was started below atb-dist launch, so several jobs would share "
                    "one session; start ranks with one of them"
                )
    elif launcher == "mpich" and (proxy := _hydra_proxy()) and num_nodes > 1:
        node_rank = int(proxy.get("--proxy-id", node_rank))
        num_nodes = max(num_nodes, node_rank + 1)
    session = env.get("ATB_DIST_SESSION") or _session(env, launcher, num_nodes)
    return RankInfo(rank, size, local_rank, local_size, node_rank, num_nodes, session, launcher)


def _from_slurm(env: Mapping[str, str]) -> RankInfo:
    rank, size, local_rank, node_rank = (_integer(env, name, _SLURM) for name in _SLURM)
    tasks = _tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
    if sum(tasks) != size or not 0 <= node_rank < len(tasks):
        raise ConfigError(
            f"SLURM_STEP_NUM_TASKS={size} and SLURM_NODEID={node_rank} contradict "
            f"SLURM_STEP_TASKS_PER_NODE={env.get('SLURM_STEP_TASKS_PER_NODE')}; start with srun"
        )
    session = env.get("ATB_DIST_SESSION") or _session(env, "slurm", len(tasks))
    return RankInfo(
        rank, size, local_rank, tasks[node_rank], node_rank, len(tasks), session, "slurm"
    )


def _integer(env: Mapping[str, str], name: str, together: tuple[str, ...]) -> int:
    if name not in env:
        given = next(other for other in together if other in env)
        raise ConfigError(
            f"{given}={env[given]} is set but {name} is not; "
            f"set all of {', '.join(together)}, or none"
        )
    if not re.fullmatch(r"-?[0-9]{1,9}", env[name]):
        raise ConfigError(f"{name}={env[name]!r} is not a whole number")
    return int(env[name])


def _tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's short form: "2(x3),1" → [2, 2, 2, 1]."""
    tasks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={text} is not like 2(x3),1")
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _session(env: Mapping[str, str], launcher: str, num_nodes: int) -> str:
    """Name the job by what all its ranks see and no other job does at the same time."""
    parts: list[str | None]
    if launcher in ("torchrun", "atb-dist"):
        # The agent's error directory is made by mkdtemp, so it tells jobs apart that were given
        # the same address and port; it exists per host, hence only where there is one host.
        error_file = env.get("TORCHELASTIC_ERROR_FILE", "").rpartition("/attempt_")[0]
        parts = [env.get("MASTER_ADDR"), env.get("MASTER_PORT"),
                 env.get("TORCHELASTIC_RUN_ID", ""), env.get("TORCHELASTIC_RESTART_COUNT", ""),
                 error_file if num_nodes == 1 else ""]  # fmt: skip
        missing = "MASTER_ADDR and MASTER_PORT"
    elif launcher == "openmpi":
        parts = [env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")]
        missing = "PMIX_NAMESPACE"
    elif launcher == "slurm":
        parts = [env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID")]
        missing = "SLURM_JOB_ID"
    else:
        proxy = _hydra_proxy()
        on_host = proxy.get("started") if num_nodes == 1 else proxy.get("--control-port")
        parts = [proxy.get("--control-port", ""), on_host]
        missing = "hydra_pmi_proxy among this process's parents"
    if None in parts:
        raise ConfigError(
            f"{launcher}: found no {missing}, so this job can't be told from others; "
            "set ATB_DIST_SESSION to a name of its own, the same on all ranks"
        )
    text = "\0".join(part or "" for part in parts)
    return f"{launcher}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _hydra_proxy() -> dict[str, str]:
    """Return the options of the Hydra proxy above this process and its pid and start time.

    There is one proxy per host and job. All proxies of a job are given the same --control-port,
    mpiexec's own. A shell between proxy and rank does no harm. Empty when there is none.
    """
    pid = os.getppid()
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            return {}
        fields = rest.split()
        if name.startswith("hydra_"):
            options = {w: v for w, v in pairwise(words) if w.startswith("--")}
            return {**options, "started": f"{pid}.{fields[19]}"}  # start time, in ticks
        pid = int(fields[1])
    return {}
