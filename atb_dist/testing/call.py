"""Pickle a body and its arguments for rank processes, or say in one line why that can't be."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """A pickled (body, args, kwargs), and the module and file that must be loaded before it."""

    module: str
    file: str
    data: bytes

    @classmethod
    def of(cls, body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Pickle a call.

        Raises TypeError when rank processes could not find body or would not get an argument.
        """
        __tracebackhide__ = True  # pytest shows the test's own line
        function: Any = body
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__qualname__", repr(function))
        module = getattr(function, "__module__", None) or type(function).__module__
        if "<lambda>" in name or "<locals>" in name:
            raise TypeError(
                f"ranks.run: {module}.{name} can't be found by name in a rank process; "
                "define the body with def at module level and pass what it needs as arguments"
            )
        if module == "__main__":
            raise TypeError(
                f"ranks.run: {name} lives in the main script, which rank processes don't run; "
                "move it to a module"
            )
        try:
            data = pickle.dumps((body, tuple(args), dict(kwargs)))
        except Exception as error:
            raise TypeError(f"ranks.run: {_culprit(body, args, kwargs)}: {error}") from None
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        return cls(module, file, data)


def _culprit(body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = [(f"argument {i}", value) for i, value in enumerate(args)]
    named += [(f"argument {name}", value) for name, value in kwargs.items()]
    for name, value in named:
        try:
            pickle.dumps(value)
        except Exception:
            return f"{name}, a {type(value).__name__}, can't be sent to rank processes"
    return f"body {body!r} can't be sent to rank processes"
