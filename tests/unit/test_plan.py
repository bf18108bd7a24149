"""The sharding plan and the budget, as integers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atb_dist.cli import main
from atb_dist.config import ModelConfig
from atb_dist.errors import ConfigError, ShardingError
from atb_dist.models import FAMILIES, read_model
from atb_dist.weights.budget import budget
from atb_dist.weights.plan import LEAVES, ShardingPlan, leaf_borders
from atb_dist.weights.rules import Cut

LLAMA = FAMILIES["llama"]
LLAMA_70B = ModelConfig(
    hidden_size=8192, num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128,
    intermediate_size=28672, vocab_size=32000, max_position=4096, dtype="bf16",
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    kv_heads, group = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    head_dim = 2 * draw(st.integers(1, 8))
    return ModelConfig(
        hidden_size=draw(st.integers(1, 64)), num_layers=draw(st.integers(1, 3)),
        num_heads=kv_heads * group, num_kv_heads=kv_heads, head_dim=head_dim,
        intermediate_size=draw(st.integers(8, 100)), vocab_size=draw(st.integers(36, 100)),
        tie_word_embeddings=draw(st.booleans()), qkv_bias=draw(st.booleans()),
        o_bias=draw(st.booleans()), mlp_bias=draw(st.booleans()),
    )  # fmt: skip


def plans(config: ModelConfig, tp: int) -> list[ShardingPlan]:
    return [ShardingPlan.build(LLAMA, config, tp, rank) for rank in range(tp)]


@settings(deadline=None, max_examples=200)
@given(configs(), st.integers(1, 9))
def test_slices_cover_every_source_exactly_once_but_for_replicas(
    config: ModelConfig, tp: int
) -> None:
    if tp > min(config.num_heads, config.intermediate_size):
        with pytest.raises(ShardingError, match=r"use tp <= "):
            plans(config, tp)
        return
    cut_of = {row.param.replace("{i}", "0"): row.cut for row in LLAMA.rows(config)}
    covered: dict[str, list[int]] = {}
    for plan in plans(config, tp):
        for param in plan.params:
            end = 0
            for part in param.slices:
                assert part.offset == end, "slices join without gaps"
                end += part.stop - part.start
                length = plan.sources[part.source][part.dim]
                count = covered.setdefault(part.source, [0] * length)
                for i in range(part.start, part.stop):
                    count[i] += 1
            padding = param.shape[param.slices[0].dim] - end
            assert padding == 0 or cut_of.get(param.name) == Cut.VOCAB
    for source, count in covered.items():
        if "norm" in source or source.endswith(("o_proj.bias", "down_proj.bias")):
            assert set(count) == {tp}, "a copy on every rank"
        elif ("k_proj" in source or "v_proj" in source) and config.num_kv_heads < tp:
            assert min(count) >= 1, "replicated, never lost"
        else:
            assert set(count) == {1}, source


@settings(deadline=None, max_examples=200)
@given(configs(), st.sampled_from([1, 2, 4, 8]))
def test_leaves_of_aligned_ranks_are_the_whole_models_leaves(config: ModelConfig, tp: int) -> None:
    if tp > min(config.num_heads, config.intermediate_size):
        return
    attn, mlp, first_head, first_mlp = [0], [0], 0, 0
    for plan in plans(config, tp):
        assert len(plan.local.mlp_leaves) == LEAVES // tp + 1
        mlp += [first_mlp + b for b in plan.local.mlp_leaves[1:]]
        attn += [first_head + b for b in plan.local.attn_leaves[1:]]
        first_mlp += plan.local.mlp
        first_head += plan.local.heads * config.head_dim
    assert mlp == leaf_borders(config.intermediate_size)
    if plans(config, tp)[0].bit_equal_across_tp:
        assert attn == [b * config.head_dim for b in leaf_borders(config.num_heads)]


@settings(deadline=None, max_examples=200)
@given(configs(), st.integers(1, 9))
def test_every_rank_serves_query_heads_of_its_own_kv_heads(config: ModelConfig, tp: int) -> None:
    if tp > min(config.num_heads, config.intermediate_size):
        return
    group = config.num_heads // config.num_kv_heads
    for plan in plans(config, tp):
        qkv = next(p for p in plan.params if p.name == "layers.0.qkv")
        q, k, v = qkv.slices
        assert (k.start, k.stop) == (v.start, v.stop)
        kv_heads = range(k.start // config.head_dim, k.stop // config.head_dim)
        heads = range(q.start // config.head_dim, q.stop // config.head_dim)
        assert {h // group for h in heads} == set(kv_heads)
        assert len(heads) == plan.local.heads >= 1
        assert len(heads) % len(kv_heads) == 0, "the kernel shares a KV head evenly"


def test_plan_of_seven_heads_over_sixteen_says_what_works() -> None:
    with pytest.raises(ShardingError) as error:
        ShardingPlan.build(LLAMA, LLAMA_70B, 128, 0)
    assert str(error.value) == (
        "heads=64 can't be cut over tp=128: 64 ranks would hold none; use tp <= 64"
    )


def test_budget_of_llama_70b_over_eight_cards() -> None:
    found = budget(
        LLAMA, LLAMA_70B, 8, dtype="bf16", kv_dtype="bf16", max_model_len=4096,
        device_memory_bytes=64 * 10**9,
    )  # fmt: skip
    h, kv, f, v = 8192, 8 * 128, 28672, 32000
    matrices = 80 * (h * h + 2 * h * kv + h * h + 3 * h * f) + 2 * v * h
    norms = (2 * 80 + 1) * h
    assert found.weight_bytes == (2 * (matrices // 8 + norms),) * 8
    assert found.kv_bytes_per_token == (2 * 80 * 128 * 2,) * 8  # one KV head a rank, K and V
    assert found.all_reduces == 161
    assert found.all_reduce_bytes == 161 * 8192 * 4
    free = (64 * 10**9 - found.weight_bytes[0]) * 9 // 10
    assert found.blocks == free // (16 * found.kv_bytes_per_token[0])
    assert found.bit_equal_across_tp


def test_plan_command_prints_the_numbers_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
        "vocab_size": 32000, "torch_dtype": "float16", "max_position_embeddings": 4096,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = ["plan", "--model", str(tmp_path), "--tp", "8", "--device-memory-gb", "64"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weight_bytes"][0] == 17246470144
    assert main(command) == 0
    assert "161 all-reduces" in capsys.readouterr().out
    assert main([*command[:-1], "16"]) == 1, "17 GB of weights do not fit into 16"


HF = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 176, "vocab_size": 259,
}  # fmt: skip


def read(tmp_path: Path, **changes: object) -> ModelConfig:
    hf = {key: value for key, value in {**HF, **changes}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(hf))
    return read_model(tmp_path)[1]


def test_rope_is_read_as_transformers_4_and_5_write_it(tmp_path: Path) -> None:
    scaling = {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    }  # fmt: skip
    old = read(tmp_path, rope_theta=500000.0, rope_scaling=scaling, torch_dtype="bfloat16")
    new = read(tmp_path, rope_parameters={**scaling, "rope_theta": 500000.0}, dtype="bfloat16")
    assert old == new
    assert old.rope_theta == 500000.0
    assert old.rope_scaling.kind == "llama3"
    assert old.dtype == "bf16"
    assert read(tmp_path, rope_scaling={"type": "linear", "factor": 2.0}).rope_scaling.factor == 2.0


def test_mistral_window_limits_the_length(tmp_path: Path) -> None:
    changes = {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}
    assert read(tmp_path, **changes, sliding_window=4096).max_position == 4096
    assert read(tmp_path, **changes).max_position == 32768


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, r"'gpt2'.*llama"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers='2'"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads=3"),
        ({"hidden_size": 60}, "not a multiple of num_attention_heads=8"),
        ({"head_dim": 7}, "head_dim=7 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "'yarn' is not known"),
        ({"rope_scaling": {"type": "linear"}}, "factor=None"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\)"),
        ({"dtype": "float8"}, "float8 is not a known type"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
        ({"rope_parameters": 5}, "rope parameters 5 must be an object"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>' must be an id"),
        ({"architectures": "GPT2LMHeadModel"}, "architectures GPT2LMHeadModel"),
    ],
)
def test_a_config_that_would_go_wrong_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        read(tmp_path, **changes)
    assert "\n" not in str(error.value)


def test_a_missing_or_broken_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="can't be read"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds a list"):
        read_model(tmp_path)
