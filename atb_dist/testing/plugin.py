"""The pytest plugin: what `pytest` loads in every project that has atb_dist installed.

    @pytest.mark.ranks(2, 4)
    def test_sum(ranks):
        assert ranks.run(sum_of_ranks) == [sum(range(ranks.size))] * ranks.size

    def sum_of_ranks(comm):
        return int(comm.all_reduce(torch.tensor(comm.rank)))

Importing this file is cheap; processes and torch come with the first `ranks.run`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from atb_dist.testing.faults import Faults
    from atb_dist.testing.ranks import Ranks, Runner


_NEEDS_MPI = "need --with-mpi option to run"  # the reason of the skip that pytest-mpi adds
_runner_key: pytest.StashKey[Runner] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the seed of injected faults."""
    parser.addoption(
        "--ranks-seed",
        type=int,
        default=None,
        metavar="N",
        help="seed of the rank_faults fixture (default: one of its own for each test, always the "
        "same)",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known to --strict-markers; pytest-mpi may have registered its own."""
    os.environ.setdefault("ATB_DIST_LCAL", "default")  # tests measure nothing at start-up
    config.addinivalue_line("markers", "ranks(*sizes): run the test once for each rank count")
    if not any(line.startswith("mpi:") for line in config.getini("markers")):
        config.addinivalue_line("markers", "mpi: a ranks test that may also run under mpirun")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take back pytest-mpi's skip from tests that the pool can run without mpirun."""
    for item in items:
        if item.get_closest_marker("ranks") is not None:
            item.own_markers[:] = [
                mark
                for mark in item.own_markers
                if mark.name != "skip" or mark.kwargs.get("reason") != _NEEDS_MPI
            ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn the sizes of the closest `ranks` marker into parameters."""
    marker = metafunc.definition.get_closest_marker("ranks")
    if marker is None or "ranks" not in metafunc.fixturenames:
        return
    sizes = marker.args
    if marker.kwargs or not sizes or not all(type(n) is int and n > 0 for n in sizes):
        pytest.fail(f"{metafunc.definition.nodeid}: {marker} needs rank counts, "
                    "such as @pytest.mark.ranks(2, 4)", pytrace=False)  # fmt: skip
    metafunc.parametrize("ranks", sizes, indirect=True, ids=[f"ranks{n}" for n in sizes])


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Run module-level functions on several ranks; see `atb_dist.testing.Ranks`."""
    from atb_dist.testing.ranks import Ranks

    if not hasattr(request, "param"):
        pytest.fail("a test that uses the ranks fixture needs the marker too, "
                    "such as @pytest.mark.ranks(2, 4)", pytrace=False)  # fmt: skip
    runner = _get_runner(request.config)
    if runner.size not in (None, request.param):
        pytest.skip(f"needs {request.param} ranks; this launch has {runner.size}")
    return Ranks(request.param, runner, request.node.nodeid)


@pytest.fixture
def rank_faults(request: pytest.FixtureRequest) -> Callable[..., Faults]:
    """Make `Faults` whose seed is this test's own; --ranks-seed sets another for all tests."""
    from atb_dist.testing.faults import Faults

    seed = request.config.getoption("--ranks-seed")
    if seed is None:
        seed = zlib.crc32(request.node.nodeid.encode())
    return functools.partial(Faults, seed=seed)


def _get_runner(config: pytest.Config) -> Runner:
    if _runner_key not in config.stash:
        from atb_dist.comm.rank import RankInfo
        from atb_dist.testing.launched import LaunchedRanks
        from atb_dist.testing.pool import RankPool

        info = RankInfo.from_env()
        runner: Runner = RankPool()
        if info.size > 1:
            capture: Any = config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                runner = LaunchedRanks(info, os.dup(2))
        config.stash[_runner_key] = runner
        config.add_cleanup(runner.close)
    return config.stash[_runner_key]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failed run by rank: the first failure in full, then the others, then outputs."""
    run: Any = getattr(call.excinfo.value, "rank_run", None) if call.excinfo else None
    report = yield
    if call.excinfo and run is not None and report.failed:
        from atb_dist.testing.report import RankFailureRepr

        report.longrepr = RankFailureRepr(run, call.excinfo.traceback)  # type: ignore[assignment]
        for outcome in run.outcomes:
            for name in ("stdout", "stderr"):
                if text := getattr(outcome, name):
                    report.sections.append((f"Captured {name} of rank {outcome.rank}", text))
    return report
