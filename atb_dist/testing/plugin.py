"""The pytest plugin: what `pytest` loads in every project that has atb_dist installed.

    @pytest.mark.ranks(2, 4)
    def test_sum(ranks):
        assert ranks.run(sum_of_ranks) == [sum(range(ranks.size))] * ranks.size

    def sum_of_ranks(comm):
        return int(comm.all_reduce(torch.tensor(comm.rank)))

Importing this file is cheap; processes and torch come with the first `ranks.run`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from atb_dist.testing.ranks import Ranks, Runner


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known to --strict-markers."""
    config.addinivalue_line("markers", "ranks(*sizes): run the test once for each rank count")
    if not config.pluginmanager.has_plugin("pytest_mpi"):
        config.addinivalue_line("markers", "mpi: the test can run under mpirun (pytest-mpi)")


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


_runner_key: pytest.StashKey[Runner] = pytest.StashKey()


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Run module-level functions on several ranks; see `atb_dist.testing.Ranks`."""
    from atb_dist.testing.ranks import Ranks

    if not hasattr(request, "param"):
        pytest.fail("a test that uses the ranks fixture needs the marker too, "
                    "such as @pytest.mark.ranks(2, 4)", pytrace=False)  # fmt: skip
    return Ranks(request.param, lambda: _get_runner(request.config))


def _get_runner(config: pytest.Config) -> Runner:
    from atb_dist.testing.pool import RankPool

    if _runner_key not in config.stash:
        pool = RankPool()
        config.stash[_runner_key] = pool
        config.add_cleanup(pool.close)
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
