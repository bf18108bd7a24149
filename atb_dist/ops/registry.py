"""Who computes an operator: implementations by name, device and arguments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from atb_dist.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
REFERENCE = "reference"
VARIABLE = "ATB_DIST_OPS"


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operator.

    device  torch's device type, or None for any
    when    whether it takes these arguments; None for always
    """

    op: str
    name: str
    device: str | None
    when: Callable[..., bool] | None
    run: Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """A line of `atb-dist info`: the implementations of an operator on a device, best first."""

    op: str
    device: str
    implementations: tuple[str, ...]
    overridden: bool


class Op:
    """An operator: calls go to the best implementation that takes the arguments."""

    def __init__(self, name: str):
        self.name = name
        self.signature: inspect.Signature | None = None
        self.implementations: list[Implementation] = []
        # Called for every operator of every layer, with cold caches: as few look-ups as possible.
        self._served: dict[str, list[tuple[Callable[..., bool] | None, Callable[..., Any]]]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device = args[0].device.type
        served = self._served.get(device)
        if served is None:
            served = self._served[device] = [(i.when, i.run) for i in self.ranked(device)]
        for when, run in served:
            if when is None or when(*args, **kwargs):
                return run(*args, **kwargs)
        names = ", ".join(i.name for i in self.ranked(device)) or "none"
        raise ValueError(
            f"{self.name}: no implementation takes these arguments on {device} (tried {names}); "
            f"{VARIABLE} must leave {REFERENCE} to take them"
        )

    def add(self, implementation: Implementation) -> None:
        """Put an implementation before those that are there; the first one fixes the signature."""
        found = inspect.signature(implementation.run)
        if self.signature is None:
            self.signature = found
        elif _shape(found) != _shape(self.signature):
            raise ConfigError(
                f"register_op({self.name!r}, impl={implementation.name!r}) has signature {found}; "
                f"{self.name} is {self.signature}"
            )
        if any(i.name == implementation.name for i in self.implementations):
            raise ConfigError(f"{self.name} already has an implementation {implementation.name!r}")
        self.implementations.insert(0, implementation)
        self._served.clear()

    def ranked(self, device: str) -> list[Implementation]:
        """Return what may serve a device, best first: the latest registered, reference last."""
        mine = [i for i in self.implementations if i.device in (None, device)]
        if self.name in _overrides:
            return [i for i in mine if i.name == _overrides[self.name]]
        return sorted(mine, key=lambda i: i.name == REFERENCE)

    def forget_choices(self) -> None:
        """Choose again at the next call."""
        self._served.clear()


_ops: dict[str, Op] = {}
_overrides: dict[str, str] = {}


def op(name: str) -> Op:
    """Return the operator of that name; a new, empty one when there is none yet."""
    return _ops.setdefault(name, Op(name))


def register_op(
    name: str,
    *,
    impl: str,
    device: str | None = None,
    when: Callable[..., bool] | None = None,
) -> Callable[[F], F]:
    """Register the decorated function as an implementation of an operator.

    It must have the operator's signature: names, kinds and defaults of its parameters. `when`
    gets the call's arguments and says whether this implementation takes them. Later
    registrations are preferred to earlier ones.
    """

    def register(function: F) -> F:
        op(name).add(Implementation(name, impl, device, when, function))
        return function

    return register


def implementations(name: str) -> list[Implementation]:
    """Return all implementations of an operator, best first, reference last."""
    if name not in _ops:
        raise ConfigError(f"there is no operator {name!r}; there are {', '.join(sorted(_ops))}")
    return sorted(_ops[name].implementations, key=lambda i: i.name == REFERENCE)


def table(device: str = "cpu") -> list[Row]:
    """Return who serves what on a device."""
    return [
        Row(name, device, tuple(i.name for i in each.ranked(device)), name in _overrides)
        for name, each in sorted(_ops.items())
    ]


def apply_overrides(text: str | None = None) -> None:
    """Use the implementations named in "op=impl,op=impl" (default: ATB_DIST_OPS).

    Raises ConfigError for an operator or implementation that does not exist.
    """
    text = os.environ.get(VARIABLE, "") if text is None else text
    parsed: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, impl = item.partition("=")
        if name not in _ops:
            raise ConfigError(
                f"{VARIABLE}: {item!r} names no operator; use op=implementation, with one of "
                f"{', '.join(sorted(_ops))}"
            )
        known = [i.name for i in _ops[name].implementations]
        if impl not in known:
            raise ConfigError(f"{VARIABLE}: {name} has no {impl!r}; it has {', '.join(known)}")
        parsed[name] = impl
    _overrides.clear()
    _overrides.update(parsed)
    for each in _ops.values():
        each.forget_choices()


@contextmanager
def override(text: str) -> Iterator[None]:
    """Use other implementations for the length of a with block."""
    before = ",".join(f"{name}={impl}" for name, impl in _overrides.items())
    apply_overrides(text)
    try:
        yield
    finally:
        apply_overrides(before)


def _shape(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
    """Return what callers depend on: annotations may be spelled in many ways."""
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]
