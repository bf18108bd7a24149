"""Checkpoints: what is broken is named before a weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atb_dist.errors import ConfigError, ShardingError
from atb_dist.models import read_model
from atb_dist.testing.checkpoints import tiny_checkpoint
from atb_dist.weights.checkpoint import INDEX, SINGLE, Checkpoint
from atb_dist.weights.plan import ShardingPlan
from atb_dist.weights.safetensors_file import read_header

UP = "model.layers.1.mlp.up_proj.weight"


def check(directory: Path) -> None:
    family, config = read_model(directory)
    Checkpoint(directory).check(ShardingPlan.build(family, config, 2, 1))


def test_header_agrees_with_the_safetensors_library(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, dtype="bf16")
    wanted = load_file(tmp_path / SINGLE)
    found = read_header(tmp_path / SINGLE)
    assert {n: i.shape for n, i in found.items()} == {n: tuple(t.shape) for n, t in wanted.items()}
    info = found[UP]
    raw = (tmp_path / SINGLE).read_bytes()[info.offset : info.offset + info.num_bytes]
    assert raw == wanted[UP].view(torch.uint8).numpy().tobytes()


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop(UP), rf"{UP} is not in .*found 20 tensors.*'llama' checkpoint\?"),
        (lambda t: t.update({UP: torch.zeros(176, 63)}), r"\[176, 63\], but config.json makes it"),
        (lambda t: t.update({UP: t[UP].to(torch.int8)}), "is I8; use one of F64, F32"),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}),
            "q_proj.bias .* is not used",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], told: str
) -> None:
    tiny_checkpoint(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ShardingError, match=told) as error:
        check(tmp_path)
    assert "\n" not in str(error.value)


def test_what_every_runtime_recomputes_may_be_there(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    rewrite(tmp_path, lambda t: t.update({**extra, "lm_head.weight": torch.zeros(259, 64)}))
    check(tmp_path)


def cut_off(directory: Path) -> None:
    file = directory / SINGLE
    file.write_bytes(file.read_bytes()[:-1000])


def cut_in_header(directory: Path) -> None:
    file = directory / SINGLE
    file.write_bytes(file.read_bytes()[:100])


def overlap(directory: Path) -> None:
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }
    raw = json.dumps(header).encode()
    (directory / SINGLE).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(16))


def wrong_extent(directory: Path) -> None:
    raw = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    (directory / SINGLE).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(16))


def lose_file(directory: Path) -> None:
    (directory / "model-00002-of-00003.safetensors").unlink()


def lose_tensor(directory: Path) -> None:
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"]["model.extra"] = "model-00002-of-00003.safetensors"
    (directory / INDEX).write_text(json.dumps(index))


def leave_directory(directory: Path) -> None:
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"][UP] = "../model-00002-of-00003.safetensors"
    (directory / INDEX).write_text(json.dumps(index))


def break_index(directory: Path) -> None:
    (directory / INDEX).write_text("{}")


def old_format(directory: Path) -> None:
    (directory / SINGLE).rename(directory / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("files", "damage", "told"),
    [
        (1, cut_off, "is truncated: .* ends at byte"),
        (1, cut_in_header, "truncated or not a safetensors file"),
        (1, overlap, "a and b overlap"),
        (1, wrong_extent, "takes 8 bytes, but F32 .* needs 12"),
        (1, old_format, "is truncated, or older than torch 1.6"),
        (3, lose_file, "names model-00002-of-00003.safetensors, which is not in"),
        (3, lose_tensor, "model.extra is in model-00002"),
        (3, leave_directory, "which is not in"),
        (3, break_index, "is not an index of weights"),
    ],
)
def test_damaged_files_are_named(
    tmp_path: Path, files: int, damage: Callable[[Path], None], told: str
) -> None:
    tiny_checkpoint(tmp_path, files=files)
    damage(tmp_path)
    with pytest.raises(ConfigError, match=told) as error:
        check(tmp_path)
    assert "\n" not in str(error.value)


def test_digest_tells_checkpoints_apart(tmp_path: Path) -> None:
    one = Checkpoint(tiny_checkpoint(tmp_path / "one")).digest()
    same = Checkpoint(tiny_checkpoint(tmp_path / "same", seed=1)).digest()
    other = Checkpoint(tiny_checkpoint(tmp_path / "other", vocab_size=260)).digest()
    assert one == same, "values are not read"
    assert one != other
