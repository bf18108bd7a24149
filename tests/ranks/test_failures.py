"""What the report of a failed multi-rank test says, seen from outside by running pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SUITE = """
import ctypes, os, signal, sys, time
import pytest
import unfound
from atb_dist.testing import Killed

def one_raises(info):
    print("words of rank", info.rank)
    print("complaint of rank", info.rank, file=sys.stderr)
    if info.rank == 2:
        limit = 5
        assert info.rank > limit
    time.sleep(0.3)
    raise RuntimeError("a later one")

def one_exits(info):
    if info.rank == 1:
        os._exit(7)
    time.sleep(60)

def one_is_killed(info):
    if info.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)

def raises_before_barrier(comm):
    if comm.rank == 1:
        raise ValueError("not coming")
    comm.barrier()

def exits_before_barrier(comm):
    if comm.rank == 1:
        os._exit(7)
    comm.barrier()

def killed_before_barrier(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()

def hangs_before_barrier(comm):
    if comm.rank == 1:
        ctypes.PyDLL(None).sleep(60)  # keeps the GIL, as a hung extension module may
    comm.barrier()

def segfaults(info):
    ctypes.string_at(0)

def some_skip(info):
    if info.rank == 1:
        pytest.skip("no device here")

def all_skip(info):
    pytest.skip("no device anywhere")

def all_xfail(info):
    pytest.xfail("known")

def calls_exit(info):
    sys.exit("enough")

def fails(info):
    pytest.fail("not good")

def returns_a_lambda(info):
    return lambda: 0

class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")

def raises_odd(info):
    raise Odd(1, 2)

def raises_key_error(info):
    raise KeyError(info.rank)

def pids(info):
    return os.getpid()

BODIES = [one_raises, one_exits, one_is_killed, segfaults, some_skip, all_skip, all_xfail,
          calls_exit, fails, returns_a_lambda, raises_odd]

@pytest.mark.ranks(3)
@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_body(ranks, body):
    ranks.run(body, backend="none")

@pytest.mark.ranks(3)
@pytest.mark.parametrize("body", [raises_before_barrier, exits_before_barrier,
                                  killed_before_barrier, hangs_before_barrier],
                         ids=lambda b: b.__name__)
def test_body_on(ranks, body):
    ranks.run(body, timeout_s=3)

@pytest.mark.ranks(2)
def test_lambda(ranks):
    ranks.run(lambda info: 0, backend="none")

@pytest.mark.ranks(2)
def test_argument(ranks):
    ranks.run(pids, open(os.devnull), backend="none")

@pytest.mark.ranks(2)
@pytest.mark.xfail(raises=KeyError, strict=True)
def test_xfail_by_type(ranks):
    ranks.run(raises_key_error, backend="none")

@pytest.mark.ranks(2)
def test_raises_by_type(ranks):
    with pytest.raises(KeyError, match="^[01]$") as caught:
        ranks.run(raises_key_error, backend="none")
    assert "in raises_key_error" in str(caught.value.__cause__)

def test_without_marker(ranks):
    ranks.run(pids, backend="none")

@pytest.mark.ranks(3)
def test_replaced(ranks):
    before = ranks.run(pids, backend="none")
    with pytest.raises(Exception, match="SIGKILL"):
        ranks.run(one_is_killed, backend="none")
    after = ranks.run(pids, backend="none")
    assert [b == a for b, a in zip(before, after)] == [True, False, True]
    os.kill(after[0], signal.SIGKILL)  # between two runs
    time.sleep(0.2)
    assert ranks.run(pids, backend="none")[1:] == after[1:]
"""


class Session:
    """The output of one pytest run, by test."""

    def __init__(self, text: str):
        self.text = text
        parts = re.split(
            r"^_{3,} (.+?) _{3,}$", text.partition("short test summary")[0], flags=re.M
        )
        self.sections = dict(zip(parts[1::2], parts[2::2], strict=True))

    def failure(self, body: str) -> str:
        test = "test_body_on" if body.endswith("before_barrier") else "test_body"
        return self.sections[f"{test}[ranks3-{body}]"]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    directory = tmp_path_factory.mktemp("suite")
    (directory / "nested").mkdir()
    (directory / "nested" / "unfound.py").touch()  # found beside the test module only
    (directory / "nested" / "test_inner.py").write_text(textwrap.dedent(SUITE))
    run = run_pytest(directory, "-v", "-rA")
    assert run.returncode == 1, run.stdout + run.stderr
    return Session(run.stdout)


def run_pytest(directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error",
               "-W", "ignore:Module already imported", "--strict-markers", *flags]  # fmt: skip
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=100
    )


def lines_with(text: str, word: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines()) if word in line]


def test_first_failure_comes_first_with_its_values(session: Session) -> None:
    text = session.failure("one_raises")
    assert re.search(r"^rank 2 \(pid \d+\): AssertionError: assert 2 > 5$", text, flags=re.M)
    assert "in one_raises\n    assert info.rank > limit" in text
    assert len(lines_with(text, "s later: rank")) == 2
    assert lines_with(text, "assert 2 > 5")[0] < lines_with(text, "a later one")[0]
    assert 'ranks.run(body, backend="none")' in text


def test_output_is_kept_by_rank(session: Session) -> None:
    text = session.failure("one_raises")
    for rank in range(3):
        for stream, words in (("stdout", "words"), ("stderr", "complaint")):
            pattern = rf"Captured {stream} of rank {rank} -+\n{words} of rank {rank}\n"
            assert re.search(pattern, text), (rank, stream)


def test_exit_is_named_and_survivors_are_ended(session: Session) -> None:
    text = session.failure("one_exits")
    assert re.match(r"\nrank 1 \(pid \d+\) exited with code 7 without a result\n", text)
    assert (
        len(re.findall(r"rank [02] \(pid \d+\) was still running 5 s after the first", text)) == 2
    )
    assert text.count("in one_exits") == 1  # the stacks of one; the other's are the same


def test_signals_are_named(session: Session) -> None:
    assert re.match(
        r"\nrank 1 \(pid \d+\) was killed by SIGKILL\n", session.failure("one_is_killed")
    )
    text = session.failure("segfaults")
    assert re.match(r"\nrank \d \(pid \d+\) was killed by SIGSEGV\n", text)
    assert "in segfaults" in text


def test_hang_shows_the_stacks_of_all(session: Session) -> None:
    text = session.failure("hangs_before_barrier")
    for rank in range(3):
        pattern = rf"^rank {rank} \(pid \d+\) was still running 3 s after the start; it was killed$"
        assert re.search(pattern, text, flags=re.M), text
    assert "in barrier" in text
    assert text.count("in hangs_before_barrier") >= 2


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("raises_before_barrier", ": ValueError: not coming"),
        ("exits_before_barrier", " exited with code 7 without a result"),
        ("killed_before_barrier", " was killed by SIGKILL"),
    ],
)
def test_peers_at_a_barrier_fail_after_the_one_that_is_missing(
    session: Session, body: str, first: str
) -> None:
    text = session.failure(body)
    assert re.match(rf"\nrank 1 \(pid \d+\){re.escape(first)}\n", text)
    peers = re.findall(r"^\d\.\d+ s later: rank (\d) \(pid \d+\): PeerFailure", text, flags=re.M)
    assert sorted(peers) == ["0", "2"], text
    assert text.index("not coming" if "raises" in body else "rank 1") < text.index("PeerFailure")


def test_skips_count_when_all_agree(session: Session) -> None:
    assert "rank 0 returned, rank 1 skipped (no device here), rank 2 returned" in session.failure(
        "some_skip"
    )
    for outcome, body, reason in (
        ("SKIPPED", "all_skip", "no device anywhere"),
        ("XFAIL", "all_xfail", "known"),
    ):
        assert f"test_body[ranks3-{body}]" not in session.sections
        assert re.search(rf"{outcome}.*{reason}", session.text)


SAME_NAME = """
import dataclasses
from pathlib import Path
import pytest

@dataclasses.dataclass
class Place:
    directory: str

def place(info, given):
    assert isinstance(given, Place)
    return Place(Path(__file__).parent.name)

@pytest.mark.ranks(2)
def test_place(ranks):
    assert ranks.run(place, Place(""), backend="none") == [Place(Path(__file__).parent.name)] * 2
"""
IN_PACKAGE = """
import pytest
from . import numbers_of_package

class TestMethods:
    pytestmark = pytest.mark.ranks(1)

    def size(self, info, factor):
        return factor * numbers_of_package.ONE

    def test_method(self, ranks):
        assert ranks.run(self.size, 3, backend="none") == [3]
"""


def test_bodies_are_found_in_every_layout(tmp_path: Path) -> None:
    for name in ("one", "other", "package"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "test_same.py").write_text(SAME_NAME)
    (tmp_path / "other" / "test_same.py").write_text(SAME_NAME)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "numbers_of_package.py").write_text("ONE = 1")
    (tmp_path / "package" / "test_inner.py").write_text(IN_PACKAGE)
    run = run_pytest(tmp_path, "--import-mode=importlib")
    assert "3 passed" in run.stdout, run.stdout + run.stderr


def test_importing_the_plugin_is_cheap() -> None:
    code = "import sys, atb_dist.testing.plugin; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "False\n", run.stderr


def test_other_ends_have_one_clear_line(session: Session) -> None:
    for body, line in (
        ("calls_exit", "SystemExit: enough"),
        ("fails", "Failed: not good"),
        ("returns_a_lambda", "its result of type function can't be pickled"),
        ("raises_odd", "Odd: 1 and 2"),
    ):
        assert re.match(rf"\nrank \d \(pid \d+\): .*{line}", session.failure(body)), body


def test_refusals_have_one_clear_line(session: Session) -> None:
    for test, line in (
        ("test_lambda[ranks2]", "E .*can't be found by name in a rank process; define the body"),
        ("test_argument[ranks2]", "E .*argument 0, a TextIOWrapper, can't be sent"),
        ("ERROR at setup of test_without_marker", "needs the marker too, such as"),
    ):
        assert re.search(line, session.sections[test]), test


@pytest.mark.parametrize("test", ["test_xfail_by_type", "test_raises_by_type", "test_replaced"])
def test_inner_test_passes(session: Session, test: str) -> None:
    assert re.search(rf"::{test}\[ranks\d\] (PASSED|XFAIL)", session.text), session.text
