"""The LLaMA family: how its Hugging Face config is read and its weights are cut. No torch.

Serves LLaMA 2, 3, 3.1, 3.2, CodeLLaMA, TinyLlama and Mistral, as transformers 4 and 5 write them.
"""

from __future__ import annotations

from typing import Any

from atb_dist.config import ModelConfig, RopeScaling, parse_dtype, token_ids
from atb_dist.errors import ConfigError
from atb_dist.weights.rules import Cut, Family, Piece, Row, Unit

ROPE_KINDS = ("default", "linear", "llama3")
LAYER = "model.layers.{i}."
MAX_SIZE = 1 << 24  # no dimension of a real model is larger; a plan of more would fill the memory
MAX_LAYERS = 1 << 12


def llama_rows(c: ModelConfig) -> list[Row]:
    """Return the table of the weights. The only place that knows LLaMA's names."""
    hidden, mlp = c.hidden_size, c.intermediate_size
    attention, mlp_prefix = LAYER + "self_attn.", LAYER + "mlp."
    qkv = [("q_proj", c.num_heads, Unit.QUERY_HEAD), ("k_proj", c.num_kv_heads, Unit.KV_HEAD),
           ("v_proj", c.num_kv_heads, Unit.KV_HEAD)]  # fmt: skip

    def heads(suffix: str) -> tuple[Piece, ...]:
        return tuple(
            Piece(f"{attention}{name}.{suffix}", count * c.head_dim, unit, c.head_dim)
            for name, count, unit in qkv
        )

    def gate_up(suffix: str) -> tuple[Piece, ...]:
        names = ("gate_proj", "up_proj")
        return tuple(Piece(f"{mlp_prefix}{name}.{suffix}", mlp, Unit.MLP) for name in names)

    o = Piece(attention + "o_proj.weight", c.num_heads * c.head_dim, Unit.QUERY_HEAD, c.head_dim)
    down = Piece(mlp_prefix + "down_proj.weight", mlp, Unit.MLP)
    rows = [
        Row("embed", (_vocab("model.embed_tokens.weight", c),), Cut.VOCAB, hidden),
        _copy("layers.{i}.input_norm", LAYER + "input_layernorm.weight", hidden),
        Row("layers.{i}.qkv", heads("weight"), Cut.COLUMN, hidden),
        Row("layers.{i}.o", (o,), Cut.ROW, hidden),
        _copy("layers.{i}.post_norm", LAYER + "post_attention_layernorm.weight", hidden),
        Row("layers.{i}.gate_up", gate_up("weight"), Cut.COLUMN, hidden),
        Row("layers.{i}.down", (down,), Cut.ROW, hidden),
        _copy("norm", "model.norm.weight", hidden),
    ]
    if not c.tie_word_embeddings:
        rows.append(Row("head", (_vocab("lm_head.weight", c),), Cut.VOCAB, hidden))
    if c.qkv_bias:
        rows.append(Row("layers.{i}.qkv_bias", heads("bias"), Cut.COLUMN))
    if c.o_bias:
        rows.append(_copy("layers.{i}.o_bias", attention + "o_proj.bias", hidden))
    if c.mlp_bias:
        rows.append(Row("layers.{i}.gate_up_bias", gate_up("bias"), Cut.COLUMN))
        rows.append(_copy("layers.{i}.down_bias", mlp_prefix + "down_proj.bias", hidden))
    return rows


def _vocab(source: str, c: ModelConfig) -> Piece:
    return Piece(source, c.vocab_size, Unit.VOCAB)


def _copy(param: str, source: str, length: int) -> Row:
    return Row(param, (Piece(source, length),), Cut.COPY)


def config_from_hf(hf: dict[str, Any]) -> ModelConfig:
    """Read a config.json of the family.

    Raises ConfigError for what is missing, nonsensical, or would change results silently.
    """
    heads = _integer(hf, "num_attention_heads")
    hidden = _integer(hf, "hidden_size")
    kv_heads = _integer(hf, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(
            f"config.json: num_attention_heads={heads} is not a multiple of "
            f"num_key_value_heads={kv_heads}"
        )
    if hf.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"config.json: hidden_size={hidden} is not a multiple of num_attention_heads={heads} "
            "and head_dim is not given"
        )
    head_dim = _integer(hf, "head_dim", default=hidden // heads)
    if head_dim % 2:
        raise ConfigError(f"config.json: head_dim={head_dim} is odd; rotary embedding needs pairs")
    layers = _integer(hf, "num_hidden_layers")
    if layers > MAX_LAYERS:
        raise ConfigError(f"config.json: num_hidden_layers={layers} exceeds {MAX_LAYERS}")
    _refuse_unknown_traits(hf)
    theta, scaling = _rope(hf)
    attention_bias = bool(hf.get("attention_bias", False))
    return ModelConfig(
        model_type=str(hf.get("model_type", "llama")),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_integer(hf, "intermediate_size"),
        vocab_size=_integer(hf, "vocab_size"),
        max_position=_max_position(hf),
        rms_norm_eps=_number(hf, "rms_norm_eps", default=1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
        dtype=_dtype(hf),
        bos_token_id=_bos(hf),
        eos_token_ids=token_ids(hf.get("eos_token_id"), "config.json: eos_token_id"),
    )


LLAMA = Family("llama", ("LlamaForCausalLM",), config_from_hf, llama_rows)
MISTRAL = Family("mistral", ("MistralForCausalLM",), config_from_hf, llama_rows)


def _bos(hf: dict[str, Any]) -> int | None:
    ids = token_ids(hf.get("bos_token_id"), "config.json: bos_token_id")
    return ids[0] if ids else None


def _integer(hf: dict[str, Any], key: str, *, default: int | None = None) -> int:
    value = hf.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f"config.json has no {key}; is it the config of a whole model?")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
        raise ConfigError(f"config.json: {key}={value!r} must be an integer from 1 to {MAX_SIZE}")
    return value


def _number(values: dict[str, Any], key: str, *, default: float | None = None) -> float:
    value = values.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"config.json: {key}={value!r} must be a number > 0")
    return float(value)


def _refuse_unknown_traits(hf: dict[str, Any]) -> None:
    if hf.get("quantization_config") is not None:
        found = hf["quantization_config"]
        method = found.get("quant_method", "unnamed") if isinstance(found, dict) else found
        raise ConfigError(f"the checkpoint is quantised ({method}); use one in fp32, bf16 or fp16")
    if hf.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"config.json: hidden_act={hf['hidden_act']!r} is not known; use silu")


def _max_position(hf: dict[str, Any]) -> int:
    """Return how many positions give exact results: a sliding window ends them."""
    length = _integer(hf, "max_position_embeddings", default=2048)
    window = hf.get("sliding_window")
    return length if window is None else min(length, _integer(hf, "sliding_window"))


def _rope(hf: dict[str, Any]) -> tuple[float, RopeScaling]:
    """Return base and scaling from rope_parameters (5.x) or rope_theta, rope_scaling (4.x)."""
    found = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ConfigError(f"config.json: rope parameters {found!r} must be an object")
    rope: dict[str, Any] = found
    theta = _number(rope, "rope_theta", default=_number(hf, "rope_theta", default=10000.0))
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind not in ROPE_KINDS:
        raise ConfigError(
            f"config.json: rope type {kind!r} is not known; there are {', '.join(ROPE_KINDS)}"
        )
    if rope.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ConfigError("config.json: partial_rotary_factor must be 1 for this family")
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling("linear", _number(rope, "factor"))
    length = "original_max_position_embeddings"
    original = rope.get(length, hf.get("max_position_embeddings"))
    return theta, RopeScaling(
        "llama3",
        _number(rope, "factor"),
        _number(rope, "low_freq_factor"),
        _number(rope, "high_freq_factor"),
        _integer(
            {"original_max_position_embeddings": original}, "original_max_position_embeddings"
        ),
    )


def _dtype(hf: dict[str, Any]) -> str:
    name = str(hf.get("dtype") or hf.get("torch_dtype") or "float32").removeprefix("torch.")
    dtype = parse_dtype(name, flag="config.json: dtype")
    return "fp32" if dtype == "auto" else dtype
