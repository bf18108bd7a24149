"""Conversions that end early, and targets and sources that are refused: one line, no damage."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from atb_dist.cli import main
from atb_dist.convert import copying, target
from atb_dist.convert.job import Options, prepare, run
from atb_dist.errors import AtbDistError, ConfigError
from atb_dist.testing.checkpoints import tiny_checkpoint
from atb_dist.weights.checkpoint import Checkpoint
from atb_dist.weights.manifest import MANIFEST

QUIET = Options(tp=2, jobs=1, quiet=True)
RESUME = Options(tp=2, jobs=1, quiet=True, resume=True)


def end_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> list[int]:
    """Let the disk be full after some writes; the list counts them."""
    count, pwrite = [0], os.pwrite

    def limited(descriptor: int, memory: Any, offset: int) -> int:
        count[0] += 1
        if count[0] > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, memory, offset)

    monkeypatch.setattr(copying.os, "pwrite", limited)
    return count


def test_a_full_disk_is_named_and_the_run_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, goal = tiny_checkpoint(tmp_path / "source"), tmp_path / "ranks"
    whole = run(prepare(source, tmp_path / "other", QUIET))
    before = {f.name: f.read_bytes() for f in source.iterdir()}
    with monkeypatch.context() as patch:
        end_after(patch, 20)
        with pytest.raises(AtbDistError, match=r"No space left .* go on with --resume"):
            run(prepare(source, goal, QUIET))
    assert not goal.exists()
    assert {f.name: f.read_bytes() for f in source.iterdir()} == before
    with pytest.raises(ConfigError, match="go on with --resume, or delete"):
        prepare(source, goal, QUIET)
    for refused in (Checkpoint, lambda d: prepare(d, tmp_path / "x", QUIET)):
        with pytest.raises(ConfigError):
            refused(tmp_path / "ranks.partial")
    report = run(prepare(source, goal, RESUME))
    assert report.resumed > 5
    assert report.bytes_written < whole.bytes_written
    for file in (tmp_path / "other").glob("rank*"):
        assert (goal / file.name).read_bytes() == file.read_bytes()
    assert {f.name for f in goal.iterdir()} == {f.name for f in (tmp_path / "other").iterdir()}


def test_resume_of_another_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    with monkeypatch.context() as patch:
        end_after(patch, 20)
        with pytest.raises(AtbDistError):
            run(prepare(source, tmp_path / "ranks", QUIET))
    tiny_checkpoint(tmp_path / "source", seed=1)
    with pytest.raises(ConfigError, match="left from another conversion"):
        run(prepare(source, tmp_path / "ranks", RESUME))


def test_a_wrong_byte_is_found_by_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, calls = os.pwrite, [0]

    def flip(descriptor: int, memory: memoryview, offset: int) -> int:
        calls[0] += 1
        raw = bytearray(memory)
        raw[0] ^= calls[0] == 7
        return pwrite(descriptor, raw, offset)

    source = tiny_checkpoint(tmp_path / "source")
    with monkeypatch.context() as patch:
        patch.setattr(copying.os, "pwrite", flip)
        with pytest.raises(ConfigError, match=r"is not what .* says: sha256 .*convert again"):
            run(prepare(source, tmp_path / "ranks", QUIET))
    assert not (tmp_path / "ranks").exists()
    assert run(prepare(source, tmp_path / "ranks", RESUME)).resumed == 0


def test_too_little_room_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    monkeypatch.setattr(target, "SPARE_BYTES", 1 << 60)
    with pytest.raises(ConfigError, match=r"needs 1152921504.* GB, its disk has .* GB free"):
        prepare(source, tmp_path / "ranks", QUIET)
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize(
    ("place", "told"),
    [("source", "overlap"), ("source/inside", "overlap"), (".", "overlap"),
     ("full", "exists and is not empty"), ("none/there", "does not exist")],
)  # fmt: skip
def test_targets_that_would_do_harm_are_refused(tmp_path: Path, place: str, told: str) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    tiny_checkpoint(tmp_path / "full")
    with pytest.raises(ConfigError, match=told) as error:
        prepare(source, tmp_path / place, QUIET)
    assert "\n" not in str(error.value)


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    flags = ["convert", str(source), str(tmp_path / "ranks"), "--tp", "2", "--dry-run", "--json"]
    assert main(flags) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["read_bytes"] == sum(
        t.nbytes for t in load_file(source / "model.safetensors").values()
    )
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


def lose_slice(raw: dict[str, Any]) -> None:
    raw["files"]["rank-01-of-02.safetensors"][0]["slices"] = []


def shift_slice(raw: dict[str, Any]) -> None:
    raw["files"]["rank-01-of-02.safetensors"][0]["slices"][0][2] -= 1


def newer(raw: dict[str, Any]) -> None:
    raw["format"] = 2


def leave(raw: dict[str, Any]) -> None:
    raw["files"]["../x.safetensors"] = raw["files"].pop("rank-01-of-02.safetensors")


def other_shape(raw: dict[str, Any]) -> None:
    entry = next(e for e in raw["files"]["rank-01-of-02.safetensors"] if e["name"] == "norm")
    entry["shape"], entry["slices"] = [63], [["model.norm.weight", 0, 0, 63, 0]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lose_slice, "is held by the files up to|leaves a gap"),
        (shift_slice, "overlaps|does not fit"),
        (newer, "has format 2, this version reads 1"),
        (leave, "is no file of this directory"),
        (other_shape, r"says norm is F32 \[63\], the file has F32 \[64\]"),
    ],
)
def test_manifests_that_lie_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    run(prepare(source, tmp_path / "ranks", QUIET))
    file = tmp_path / "ranks" / MANIFEST
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=told):
        Checkpoint(tmp_path / "ranks")


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/should-not-exist",)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": Runs()}, r"asks to run .*\.system; a checkpoint holds tensors only"),
        ([torch.zeros(1)], "holds a list, not a dictionary"),
        ({"a": 3}, "'a' is no tensor"),
        ({"a": torch.zeros(3, 4).T}, "a is stored transposed"),
    ],
)
def test_pickles_that_are_no_tensors_are_refused(tmp_path: Path, value: Any, told: str) -> None:
    source = tiny_checkpoint(tmp_path)
    (source / "model.safetensors").unlink()
    torch.save(value, source / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=told):
        Checkpoint(source)
    assert not Path("/tmp/should-not-exist").exists()


def test_a_value_that_fp16_can_not_hold_is_named(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    held = {n: t.clone() for n, t in load_file(source / "model.safetensors").items()}
    held["model.norm.weight"][3] = 1e5
    save_file(held, source / "model.safetensors")
    options = Options(to="hf", dtype="fp16", quiet=True)
    with pytest.raises(ConfigError, match=r"model.norm.weight holds 1e\+05, fp16 ends at 65504"):
        run(prepare(source, tmp_path / "half", options))
    assert not (tmp_path / "half").exists()
