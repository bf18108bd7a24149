"""What goes wrong on Ascend hosts because of the environment, checked before any rank starts.

Facts are from the vendor's environment reference; nothing here was measured on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from atb_dist.errors import ConfigError
from atb_dist.launcher.placement import parse_cpus
from atb_dist.launcher.ports import claim, is_free, port_owner

HCCL_PORTS = 16  # HCCL takes this many from its base port on
DEFAULT_BASE_PORT = 60000
_PORTS = ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_IF_BASE_PORT")  # the first wins where both are set
_SWITCHES = {"HCCL_DETERMINISTIC": ("true", "false", "strict"),
             "LCCL_DETERMINISTIC": ("1", "true", "0", "false")}  # fmt: skip


def npu_cards() -> list[int]:
    """Numbers of the NPUs whose device files this host shows."""
    names = (path.name[len("davinci") :] for path in Path("/dev").glob("davinci[0-9]*"))
    return sorted(int(name) for name in names if name.isdigit())


def uses_npus(env: Mapping[str, str], device: str, cards: Sequence[int]) -> bool:
    """Whether ranks started with this environment and --device will look for NPUs.

    An empty ASCEND_RT_VISIBLE_DEVICES hides all NPUs on purpose.
    """
    if device != "auto":
        return device == "npu"
    return bool(env.get("ASCEND_RT_VISIBLE_DEVICES", cards))


def visible_cards(env: Mapping[str, str], cards: Sequence[int]) -> list[int]:
    """Cards by logical index: rank i of a host uses the i-th. The only place that maps them.

    Raises ConfigError where the runtime would silently see fewer devices, or none.
    """
    text = env.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return list(cards)
    name = f"ASCEND_RT_VISIBLE_DEVICES={text}"
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        raise ConfigError(
            f"{name} is not a list like 0,1,2,3; the runtime stops reading at the first other "
            "character (a space too) and sees fewer devices"
        )
    visible = [int(word) for word in text.split(",")]
    if len(set(visible)) != len(visible):
        raise ConfigError(f"{name} names a device twice; give each rank one of its own")
    if visible != sorted(visible):
        ordered = ",".join(map(str, sorted(visible)))
        raise ConfigError(
            f"{name} is not ascending: the runtime would report no device; use {ordered}"
        )
    if cards and (absent := [card for card in visible if card not in cards]):
        raise ConfigError(
            f"{name} names device {absent[0]}, but this host has "
            f"{','.join(map(str, cards))}; the runtime would ignore it and all after it"
        )
    return visible


def problems(env: Mapping[str, str], local_size: int, cards: Sequence[int]) -> list[str]:
    """List what would fail later and less clearly, one line each; empty when all is well."""
    found = []
    checks: list[Callable[[], None]] = [
        lambda: _check_count(visible_cards(env, cards), local_size),
        lambda: _check_ports(env),
        lambda: _check_buffer(env),
        lambda: _check_switches(env),
    ]
    for check_one in checks:
        try:
            check_one()
        except ConfigError as error:
            found.append(str(error))
    return found


def port_notices(env: Mapping[str, str], ephemeral: str, reserved: str) -> list[str]:
    """List HCCL ports that the kernel may give to any other process at any time.

    ephemeral   text of /proc/sys/net/ipv4/ip_local_port_range
    reserved    text of /proc/sys/net/ipv4/ip_local_reserved_ports
    """
    first, last = (int(word) for word in ephemeral.split())
    kept = set(parse_cpus(reserved))
    exposed = [p for p in hccl_ports(env) if first <= p <= last and p not in kept]
    if not exposed:
        return []
    span = f"{exposed[0]}-{exposed[-1]}"
    return [
        f"HCCL ports {span} lie in the kernel's ephemeral range {first}-{last}, so any process may "
        f"hold one; reserve them: sysctl -w net.ipv4.ip_local_reserved_ports={span}"
    ]


def hccl_ports(env: Mapping[str, str]) -> list[int]:
    """Host ports that HCCL will use: the given ranges, else 16 from the base port on.

    Raises ConfigError.
    """
    text = env.get("HCCL_HOST_SOCKET_PORT_RANGE")
    if text == "auto":
        return []
    if text is not None:
        return _port_ranges("HCCL_HOST_SOCKET_PORT_RANGE", text)
    base = env.get("HCCL_IF_BASE_PORT", str(DEFAULT_BASE_PORT))
    if not re.fullmatch(r"[0-9]{1,6}", base) or not 1024 <= int(base) <= 65520:
        raise ConfigError(f"HCCL_IF_BASE_PORT={base} is out of range; use 1024 to 65520")
    return list(range(int(base), int(base) + HCCL_PORTS))


@contextmanager
def ports(env: Mapping[str, str], device: str) -> Iterator[dict[str, str]]:
    """Keep this job's HCCL base ports to itself until it ends; choose them where nobody did.

    Yields defaults for the ranks' environment. Abstract sockets named after the ports keep two of
    our jobs apart before HCCL binds any; binding each port once keeps us off those in use.
    Raises ConfigError when the user's base port is taken.
    """
    if "HCCL_HOST_SOCKET_PORT_RANGE" in env or not uses_npus(env, device, npu_cards()):
        yield {}  # ranges may be shared: HCCL looks for a free port in them itself
        return
    base = env.get("HCCL_IF_BASE_PORT")
    # Below every common ephemeral range, above most services.
    candidates = hccl_ports(env)[:1] if base else range(20000, 30000, HCCL_PORTS)
    for first in candidates:
        with ExitStack() as held:
            wanted = range(first, first + HCCL_PORTS)
            if all(is_free(port) and claim(port, held) for port in wanted):
                yield {"HCCL_IF_BASE_PORT": str(first)}
                return
    raise ConfigError(
        f"HCCL_IF_BASE_PORT={base}: another job holds a port within {HCCL_PORTS} of it; "
        "choose another, or unset it and let the launcher choose"
        if base
        else f"found no {HCCL_PORTS} free ports in a row for HCCL; set HCCL_IF_BASE_PORT"
    )


def device_names(env: Mapping[str, str], local_size: int, device: str) -> list[str]:
    """Name each local rank's device for the table: logical index, and card behind it."""
    cards = npu_cards()
    if not uses_npus(env, device, cards):
        has_gpu = device == "cuda" or (device == "auto" and Path("/dev/nvidia0").exists())
        return [f"cuda:{i}" if has_gpu else "cpu" for i in range(local_size)]
    visible = visible_cards(env, cards)
    return [f"npu:{i} (card {visible[i]})" if i < len(visible) else f"npu:{i}"
            for i in range(local_size)]  # fmt: skip


def _check_count(visible: list[int], local_size: int) -> None:
    if len(visible) < local_size:
        shown = ",".join(map(str, visible)) or "none"
        raise ConfigError(
            f"-n {local_size} needs {local_size} NPUs, but {len(visible)} are visible ({shown}); "
            f"start fewer ranks, extend ASCEND_RT_VISIBLE_DEVICES, or use --device cpu"
        )


def _check_ports(env: Mapping[str, str]) -> None:
    given = [name for name in _PORTS if name in env]
    taken = [port for port in hccl_ports(env) if given and not is_free(port)]
    # A range may be longer than what one job needs; a base port names exactly what it takes.
    if taken and (given[0] == "HCCL_IF_BASE_PORT" or len(taken) == len(hccl_ports(env))):
        raise ConfigError(
            f"{given[0]}={env[given[0]]}: port {taken[0]} is held by {port_owner(taken[0])}; "
            "choose another range, or unset it and let the launcher choose"
        )
    if (text := env.get("HCCL_NPU_SOCKET_PORT_RANGE", "auto")) != "auto":
        _port_ranges("HCCL_NPU_SOCKET_PORT_RANGE", text)


def _check_buffer(env: Mapping[str, str]) -> None:
    text = env.get("HCCL_BUFFSIZE")
    if text is not None and (not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1):
        raise ConfigError(f"HCCL_BUFFSIZE={text} is not a number of MB; use a whole number >= 1")


def _check_switches(env: Mapping[str, str]) -> None:
    on = {}
    for name, values in _SWITCHES.items():
        if name not in env:
            continue
        value = env[name].lower()
        if value not in values:
            raise ConfigError(f"{name}={env[name]} is not a known value; use {', '.join(values)}")
        on[name] = value not in ("false", "0")
    if len(set(on.values())) > 1:
        both = " and ".join(f"{name}={env[name]}" for name in on)
        raise ConfigError(f"{both} contradict: results would repeat on one library only")


def _port_ranges(name: str, text: str) -> list[int]:
    listed: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1024 <= first <= last <= 65535:
            raise ConfigError(
                f"{name}={text} is not a list of ports or ranges within 1024 to 65535, like "
                "50000-50031 or 50000,50010-50019, or auto"
            )
        listed += range(first, last + 1)
    if len(set(listed)) != len(listed):
        raise ConfigError(f"{name}={text} names a port twice; ranges must not overlap")
    return listed


@dataclass(frozen=True)
class Findings:
    """What to refuse and what only to mention, one line each."""

    problems: list[str]
    notices: list[str]


def check(env: Mapping[str, str], *, device: str, local_size: int) -> Findings:
    """Look at this host and an environment that NPU ranks would get; nothing where none would."""
    cards = npu_cards()
    if not uses_npus(env, device, cards):
        return Findings([], [])
    if found := problems(env, local_size, cards):
        return Findings(found, [])
    notices = [
        f"{name} is set: on A2 cards it does not work together with fused communication operators "
        "(AllGatherMatmul and its kind)"
        for name in ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE")
        if name in env
    ]
    if any(name in env for name in _PORTS):  # else the launcher will choose
        ephemeral = kernel_text("ip_local_port_range") or "32768 60999"
        notices += port_notices(env, ephemeral, kernel_text("ip_local_reserved_ports"))
    return Findings([], notices)


def kernel_text(name: str) -> str:
    """Text of a file under /proc/sys/net/ipv4; empty where it can't be read."""
    try:
        return Path(f"/proc/sys/net/ipv4/{name}").read_text().strip()
    except OSError:
        return ""
