"""`atb-dist bench matmul`: every type has its line, wrong flags one."""

from __future__ import annotations

import json

import pytest

from atb_dist.bench.matmul import TYPES
from atb_dist.cli import main


def test_every_type_is_timed_beside_torch(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--shapes", "48x64", "--rows", "1,20", "--seconds", "0", "--json"]
    assert main(["bench", "matmul", *flags]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["kernel"] for r in rows] == ["torch fp32", *TYPES] * 2
    assert {r["rows"] for r in rows} == {1, 20}
    assert all(r["ms"] > 0 and r["gflops"] > 0 for r in rows)


@pytest.mark.parametrize("flags", [["--shapes", "48"], ["--rows", "one"], ["--threads", "0"]])
def test_flags_that_mean_nothing_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "matmul", *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1
