"""Loading, against transformers' own loading and against the bytes a rank should read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from atb_dist.device import Device
from atb_dist.errors import ConfigError
from atb_dist.models import read_model
from atb_dist.testing.checkpoints import tiny_checkpoint
from atb_dist.weights.checkpoint import SINGLE, Checkpoint
from atb_dist.weights.loader import Loaded, load_weights
from atb_dist.weights.mapping import TORCH_DTYPES
from atb_dist.weights.plan import ShardingPlan

CPU = Device("cpu")
CONFIGS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "indexed": {"files": 3},
    "biased": {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "mqa-tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "bf16": {"dtype": "bf16"},
    "wide": {"hidden_size": 2048, "num_attention_heads": 16, "head_dim": 256,
             "num_hidden_layers": 1, "intermediate_size": 4096},
}  # fmt: skip


def load(directory: Path, tp: int, rank: int, dtype: str) -> tuple[ShardingPlan, Loaded]:
    family, config = read_model(directory)
    plan = ShardingPlan.build(family, config, tp, rank)
    return plan, load_weights(plan, Checkpoint(directory), CPU, dtype, progress=False)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_parameters_are_the_slices_that_the_plan_names(
    tmp_path: Path, name: str, dtype: str
) -> None:
    tiny_checkpoint(tmp_path, **CONFIGS[name])
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").state_dict()
    for tp in (1, 3, 8):
        for rank in {0, tp - 1}:
            plan, loaded = load(tmp_path, tp, rank, dtype)
            for param in plan.params:
                found = loaded.params[param.name]
                assert tuple(found.shape) == param.shape
                assert found.dtype == TORCH_DTYPES[dtype]
                end = 0
                for part in param.slices:
                    wanted = oracle[part.source].narrow(
                        part.dim, part.start, part.stop - part.start
                    )
                    end = part.offset + wanted.shape[part.dim]
                    mine = found.narrow(part.dim, part.offset, wanted.shape[part.dim])
                    assert torch.equal(mine, wanted.to(found.dtype)), param.name
                rest = found.shape[param.slices[0].dim] - end
                assert not found.narrow(param.slices[0].dim, end, rest).any(), "padding is zero"


def test_a_rank_reads_its_own_bytes_only(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, **CONFIGS["wide"])
    for rank in range(2):
        plan, loaded = load(tmp_path, 2, rank, "fp32")
        padded = plan.local.vocab - (259 - plan.local.vocab if rank else plan.local.vocab)
        shard = 4 * (plan.num_elements() - 2 * padded * 2048)
        assert loaded.bytes_read == shard


def test_a_file_that_shrinks_after_the_check_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(tmp_path)
    family, config = read_model(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    file = tmp_path / SINGLE
    file.write_bytes(file.read_bytes()[:-1000])
    plan = ShardingPlan.build(family, config, 1, 0)
    with pytest.raises(ConfigError, match=r"ended at byte .*, inside "):
        load_weights(plan, checkpoint, CPU, "fp32", progress=False)


def test_progress_is_not_drawn_into_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_checkpoint(tmp_path)
    family, config = read_model(tmp_path)
    plan = ShardingPlan.build(family, config, 1, 0)
    load_weights(plan, Checkpoint(tmp_path), CPU, "fp32", progress=True)
    assert capsys.readouterr().err == ""
