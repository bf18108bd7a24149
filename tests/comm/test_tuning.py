"""Where lcal changes its algorithm: measured once, kept, overridden, refused; never a wrong sum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bodies
import pytest
import torch

from atb_dist.comm import tuning
from atb_dist.comm.base import Communicator
from atb_dist.comm.lcal import LcalComm
from atb_dist.comm.tuning import Choice
from atb_dist.errors import ConfigError

CHOICES = [Choice(0, 4096), Choice(4096, 8192), Choice(1 << 20, 512 << 10), Choice(50_000, 65536)]


def sums_of(comm: Communicator) -> None:
    assert isinstance(comm, LcalComm)
    for choice in CHOICES:
        comm.choose(choice)
        assert comm.choice == choice
        for size in (1, 1000, 12_500, 70_001):
            everyone = [bodies.noise(r, size, torch.float32) for r in range(comm.size)]
            found = comm.all_reduce(everyone[comm.rank].clone())
            assert torch.equal(found, bodies.tree(everyone, "sum")), (choice, size)


@pytest.mark.ranks(2, 3)
def test_no_choice_changes_a_bit(ranks: Any) -> None:
    ranks.run(sums_of)


def tuned(comm: Communicator, home: str, told: str) -> tuple[Choice, Choice] | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", home)
        patch.setenv(tuning.VARIABLE, told)
        assert isinstance(comm, LcalComm)
        try:
            found = tuning.tune(comm)
        except ConfigError as error:
            return str(error)
        twin = comm.split(0)
        assert isinstance(twin, LcalComm)
        return found, twin.choice


@pytest.mark.ranks(2, 4)
def test_a_sweep_is_kept_and_used_again(ranks: Any, tmp_path: Path) -> None:
    first = ranks.run(tuned, str(tmp_path), "")
    assert len(set(first)) == 1
    assert first[0][0] == first[0][1], "a split of all ranks follows"
    kept = json.loads((tmp_path / "atb_dist" / "lcal.json").read_text())
    (name,) = kept
    assert f"{ranks.size} ranks" in name
    kept[name] = {"one_shot_bytes": 12345, "piece_bytes": 8192}
    (tmp_path / "atb_dist" / "lcal.json").write_text(json.dumps(kept))
    assert ranks.run(tuned, str(tmp_path), "")[1][0] == Choice(12345, 8192)


@pytest.mark.ranks(2)
def test_a_broken_cache_is_measured_anew(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "atb_dist").mkdir()
    for text in ("", "[]", '{"x": 3}'):
        (tmp_path / "atb_dist" / "lcal.json").write_text(text)
        assert isinstance(ranks.run(tuned, str(tmp_path), "")[0][0], Choice)


@pytest.mark.ranks(2)
def test_the_environment_overrides_and_is_checked(ranks: Any, tmp_path: Path) -> None:
    home = str(tmp_path)
    found = ranks.run(tuned, home, "one_shot_bytes=4096,piece_bytes=65536")
    assert found[1][0] == Choice(4096, 65536)
    assert ranks.run(tuned, home, "default")[0][0] == Choice()
    for bad in ("fast", "one_shot_bytes=-1", "pieces=4", "piece_bytes=5"):
        said = ranks.run(tuned, home, bad)
        assert all("ATB_DIST_LCAL" in each for each in said), said
    assert not list(tmp_path.iterdir()), "nothing was measured"
