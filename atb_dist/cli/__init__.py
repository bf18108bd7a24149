"""The `atb-dist` command: one module of this package per subcommand. Imports no torch.

A subcommand module has HELP (one line), add_arguments(parser) and run(args) -> exit code. What
users did wrong ends in one line on stderr and exit code 2; what failed while running, in 1.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from atb_dist import __version__
from atb_dist.errors import AtbDistError, ConfigError


class OneLineParser(argparse.ArgumentParser):
    """argparse, except that a wrong flag costs one line and not a usage block."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where the right flags are listed; exit 2."""
        raise ConfigError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the process's exit code."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")  # to stderr
    try:
        args = build_parser().parse_args(argv)
        return int(args.run(args))
    except ConfigError as error:
        return _complain(error, 2)
    except AtbDistError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, e.g. `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = OneLineParser(
        prog="atb-dist", description="Tensor-parallel LLM inference on NPUs and plain CPU hosts."
    )
    parser.add_argument("--version", action="version", version=f"atb-dist {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in subcommands().items():
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def subcommands() -> dict[str, ModuleType]:
    """Return the modules of this package that are subcommands, by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"atb_dist.cli.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "HELP")}


def _complain(error: Exception, code: int) -> int:
    text = " ".join(str(error).split())
    print(f"atb-dist: error: {text}", file=sys.stderr, flush=True)
    return code
