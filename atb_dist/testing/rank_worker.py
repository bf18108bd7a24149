"""Inside a rank process: take tasks from pytest, load the module they name, run, report."""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import importlib.util
import os
import pickle
import signal
import socket
import sys
import types
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

from atb_dist.comm.rank import RankInfo
from atb_dist.testing.execute import execute, outcome_of
from atb_dist.testing.outcomes import Outcome
from atb_dist.testing.wire import Frames, Task

# No test uses it by accident, and faulthandler answers it in C: a rank that hangs in an extension
# module shows its stacks too.
STACKS_SIGNAL = signal.SIGRTMAX


def serve(connection: socket.socket, stdout: int, stderr: int, stacks: int) -> None:
    """Run tasks until the other end closes. The file descriptors take this rank's outputs."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(file=stacks)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    frames = Frames(connection)
    while not frames.closed:
        for task in frames.pull():
            outcome = _run(task)
            sys.stdout.flush()
            sys.stderr.flush()
            with contextlib.suppress(OSError):  # the session has ended meanwhile
                frames.send(outcome)


def _run(task: Task) -> Outcome:
    try:
        os.chdir(task.cwd)
        os.environ.clear()
        os.environ.update(task.env)
        sys.path[:] = task.sys_path
        if task.call.file:
            _load(task.call.module, Path(task.call.file))
        body, args, kwargs = pickle.loads(task.call.data)
    except BaseException as error:
        return outcome_of(task.rank, error)
    info = RankInfo(task.rank, task.size, task.rank, task.size, 0, 1, task.session, "atb-dist")
    return execute(info, task.terms, lambda first: body(first, *args, **kwargs))


def _load(name: str, file: Path) -> None:
    """Import the test module that holds the body, as pytest did: under its name, from its file.

    pytest's import modes put modules in places where the import system may not find them, or
    finds another one of the same name. Parents are imported where they can be.
    """
    present = sys.modules.get(name)
    if present is not None and _is_file(getattr(present, "__file__", None), file):
        return
    try:
        spec = importlib.util.find_spec(name) if present is None else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not _is_file(spec.origin, file):
        spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise ImportError(f"{file} is no Python module")
    if isinstance(spec.loader, SourceFileLoader):
        spec = _rewriting(spec, str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _is_file(found: str | None, file: Path) -> bool:
    return found is not None and Path(found).exists() and Path(found).samefile(file)


class _RewritingLoader(SourceFileLoader):
    """Compiles with pytest's assert rewriting, so that a failed assert in a rank shows its values.

    Reads and writes no bytecode file: pytest keeps its own.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        """Compile the source, rewritten where this pytest offers it."""
        path = self.get_filename(fullname)
        data = self.get_data(path)
        tree = ast.parse(data, path)
        with contextlib.suppress(ImportError):  # the function is not part of pytest's public names
            from _pytest.assertion.rewrite import rewrite_asserts

            rewrite_asserts(tree, data, path)
        return compile(tree, path, "exec", dont_inherit=True)


def _rewriting(spec: ModuleSpec, file: str) -> ModuleSpec:
    loader = _RewritingLoader(spec.name, file)
    search = spec.submodule_search_locations
    changed = importlib.util.spec_from_file_location(
        spec.name, file, loader=loader, submodule_search_locations=search
    )
    assert changed is not None
    return changed
