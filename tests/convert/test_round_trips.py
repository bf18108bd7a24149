"""Conversions there and back, bit for bit, against safetensors' own reading of the original."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from atb_dist.cli import main
from atb_dist.convert.job import Options, prepare, run
from atb_dist.device import Device
from atb_dist.models import open_model
from atb_dist.testing.checkpoints import tiny_checkpoint
from atb_dist.weights.checkpoint import SINGLE
from atb_dist.weights.loader import load_weights
from atb_dist.weights.manifest import MANIFEST, read_manifest
from atb_dist.weights.plan import ShardingPlan

MODELS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "uneven": {"num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 8,
               "intermediate_size": 45},
    "mqa-tied": {"num_key_value_heads": 1, "tie_word_embeddings": True, "dtype": "bf16"},
    "biased-indexed": {"attention_bias": True, "mlp_bias": True, "files": 3, "dtype": "fp16"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
}  # fmt: skip


def convert(source: Path, target: Path, **options: Any) -> Path:
    run(prepare(source, target, Options(jobs=2, quiet=True, **options)))
    return target


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    files = sorted(directory.glob("*.safetensors"))
    return {name: t for file in files for name, t in load_file(file).items()}


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[n].dtype == other[n].dtype
        and one[n].shape == other[n].shape
        and torch.equal(one[n].view(torch.uint8), other[n].view(torch.uint8))
        for n in one
    )


@pytest.mark.parametrize("model", MODELS)
def test_bug_50_51_uneven_and_fused_shards_come_back_bit_for_bit(
    tmp_path: Path, model: str
) -> None:
    source = tiny_checkpoint(tmp_path / "source", **MODELS[model])
    wanted = tensors(source)
    for tp in (1, 2, 3, 4, 8):
        ranks = convert(source, tmp_path / f"ranks{tp}", tp=tp)
        back = convert(ranks, tmp_path / f"back{tp}", to="hf")
        assert same_bits(tensors(back), wanted), tp
    across = convert(tmp_path / "ranks3", tmp_path / "across", tp=8)
    direct = tmp_path / "ranks8"
    for file in sorted(direct.glob("*.safetensors")):
        assert (across / file.name).read_bytes() == file.read_bytes(), "N to M is N to 1 to M"


def test_bug_25_26_every_rank_holds_its_slice_of_fused_weights(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    oracle = AutoModelForCausalLM.from_pretrained(source, dtype="auto").state_dict()
    convert(source, tmp_path / "ranks", tp=2)
    for rank in range(2):
        held = load_file(tmp_path / "ranks" / f"rank-{rank:02d}-of-02.safetensors")
        mlp = "model.layers.1.mlp."
        half = slice(88 * rank, 88 * rank + 88)
        gate_up = [oracle[f"{mlp}{name}_proj.weight"][half] for name in ("gate", "up")]
        assert torch.equal(held["layers.1.gate_up"], torch.cat(gate_up))
        down = oracle[f"{mlp}down_proj.weight"][:, half]
        assert torch.equal(held["layers.1.down"], down)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_bug_52_types_change_as_torch_rounds_and_only_when_asked(
    tmp_path: Path, dtype: str
) -> None:
    source = tiny_checkpoint(tmp_path / "source", dtype="bf16")
    target = convert(source, tmp_path / "target", to="hf", dtype=dtype)
    to = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert same_bits(tensors(target), {n: t.to(to) for n, t in tensors(source).items()})
    assert AutoModelForCausalLM.from_pretrained(target, dtype="auto").dtype == to


def test_bug_31_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", tie_word_embeddings=True)
    ranks = convert(source, tmp_path / "ranks", tp=3)
    manifest = read_manifest(ranks)
    assert manifest is not None
    assert manifest.tied
    assert "head" not in load_file(ranks / "rank-00-of-03.safetensors")
    assert "lm_head.weight" not in tensors(convert(ranks, tmp_path / "back", to="hf"))


def test_bug_28_29_padded_vocabulary_is_zero_and_goes_away(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", vocab_size=259)
    ranks = convert(source, tmp_path / "ranks", tp=8)
    last = load_file(ranks / "rank-07-of-08.safetensors")
    assert last["embed"].shape == last["head"].shape == (33, 64)
    assert not last["embed"][259 - 7 * 33 :].any()
    back = tensors(convert(ranks, tmp_path / "back", to="hf"))
    assert back["model.embed_tokens.weight"].shape == (259, 64)


def as_bin(directory: Path) -> None:
    held = load_file(directory / SINGLE)
    torch.save(held, directory / "pytorch_model.bin")
    (directory / SINGLE).unlink()


def as_bin_files(directory: Path) -> None:
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    weight_map = {}
    for name in names:
        held = load_file(directory / name)
        torch.save(held, directory / name.replace("safetensors", "bin"))
        weight_map.update(dict.fromkeys(held, name.replace("safetensors", "bin")))
        (directory / name).unlink()
    (directory / "model.safetensors.index.json").unlink()
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(("files", "change"), [(1, as_bin), (3, as_bin_files)])
def test_pickled_checkpoints_are_read_by_their_byte_ranges(
    tmp_path: Path, files: int, change: Callable[[Path], None]
) -> None:
    source = tiny_checkpoint(tmp_path / "source", files=files, dtype="bf16")
    wanted = tensors(source)
    change(source)
    ranks = convert(source, tmp_path / "ranks", tp=3)
    assert same_bits(tensors(convert(ranks, tmp_path / "back", to="hf")), wanted)


def test_large_checkpoints_get_an_index_that_transformers_reads(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    target = convert(source, tmp_path / "target", to="hf", max_file_bytes=100_000)
    assert len(list(target.glob("*.safetensors"))) > 2
    found = AutoModelForCausalLM.from_pretrained(target, dtype="auto").state_dict()
    assert same_bits(found, tensors(source))


@pytest.mark.parametrize(("held", "asked"), [(4, 4), (4, 2), (2, 4), (8, 1), (1, 8)])
def test_a_run_loads_the_same_from_ranks_as_from_the_original(
    tmp_path: Path, held: int, asked: int
) -> None:
    source = tiny_checkpoint(tmp_path / "source", dtype="bf16")
    ranks = convert(source, tmp_path / "ranks", tp=held)
    for rank in range(asked):
        loaded = []
        for directory in (source, ranks):
            opened = open_model(directory)
            plan = ShardingPlan.build(opened.family, opened.config, asked, rank)
            loaded.append(
                load_weights(plan, opened.checkpoint, Device("cpu"), "bf16", progress=False)
            )
        assert same_bits(loaded[0].params, loaded[1].params)
        assert (loaded[1].bytes_read == 0) == (held == asked), "its own file is mapped"


def test_holes_stay_holes_in_both_directions(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", hidden_size=512, intermediate_size=4096)
    file = source / SINGLE
    held = {name: t.clone() for name, t in load_file(file).items()}  # the file is rewritten
    hole, stamp = torch.zeros(4096, 512), torch.zeros(512, 4096)
    stamp[100, 200] = 7.0
    held["model.layers.0.mlp.up_proj.weight"] = hole
    held["model.layers.1.mlp.down_proj.weight"] = stamp
    for name, tensor in held.items():
        if "mlp" in name and tensor is not hole and tensor is not stamp:
            tensor.zero_()
    save_file(held, tmp_path / "dense")
    data, size = (tmp_path / "dense").read_bytes(), (tmp_path / "dense").stat().st_size
    with file.open("wb") as stream:
        for first in range(0, size, 4096):
            page = data[first : first + 4096]
            if any(page):
                os.pwrite(stream.fileno(), page, first)
        stream.truncate(size)
    ranks = convert(source, tmp_path / "ranks", tp=2)
    back = convert(ranks, tmp_path / "back", to="hf")
    assert same_bits(tensors(back), held)
    for directory in (source, ranks, back):
        files = [path.stat() for path in directory.glob("*.safetensors")]
        assert sum(s.st_blocks * 512 for s in files) < sum(s.st_size for s in files) / 2


def test_verify_sees_one_changed_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny_checkpoint(tmp_path / "source")
    ranks = convert(source, tmp_path / "ranks", tp=2)
    assert main(["verify", str(ranks)]) == 0
    assert main(["verify", str(ranks), "--against", str(source)]) == 0
    assert "every element" not in capsys.readouterr().err
    file = ranks / "rank-01-of-02.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert main(["verify", str(ranks)]) == 2
    assert "in rank-01-of-02.safetensors is not what" in capsys.readouterr().err
    assert main(["verify", str(ranks), "--against", str(source)]) == 2
    assert (ranks / MANIFEST).exists()
