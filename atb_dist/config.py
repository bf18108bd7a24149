"""Everything a run can be told, with its defaults, as plain dataclasses. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from atb_dist.errors import ConfigError

DTYPES = {
    "fp32": "fp32", "float32": "fp32",
    "bf16": "bf16", "bfloat16": "bf16",
    "fp16": "fp16", "float16": "fp16",
}  # fmt: skip
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
BACKENDS = ("auto", "local", "lcal", "gloo", "mpi", "lcal+gloo", "lcal+mpi", "hccl", "nccl")
LOG_LEVELS = ("debug", "info", "warning", "error")


def parse_dtype(name: str, *, flag: str) -> str:
    """Return "auto", "fp32", "bf16" or "fp16" for any accepted spelling of it."""
    if name == "auto":
        return name
    if name not in DTYPES:
        raise ConfigError(f"{flag}={name} is not a known type; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def token_ids(value: Any, name: str) -> tuple[int, ...]:
    """Return an id, a list of ids or null, as JSON files hold them, as a tuple.

    Raises ConfigError that starts with name.
    """
    listed = [] if value is None else value if isinstance(value, list) else [value]
    wrong = [v for v in listed if not isinstance(v, int) or isinstance(v, bool) or v < 0]
    if wrong:
        raise ConfigError(f"{name}={value!r} must be an id >= 0, a list of them, or null")
    return tuple(listed)


@dataclass
class RopeScaling:
    """How rotary frequencies are stretched. kind: "default", "linear" or "llama3".

    llama3 is the rule of the LLaMA-3.1 release: wavelengths above original_max_position /
    low_freq_factor are divided by factor, those below original_max_position / high_freq_factor
    stay, and those between are blended.
    """

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass
class ModelConfig:
    """A model's global sizes: never a rank's share (that is LocalShape).

    Fields may be set one by one, as users of the two-call API do; `models.read_model` fills
    them from a checkpoint directory.
    """

    model_type: str = "llama"
    hidden_size: int = 0
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    max_position: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "fp32"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


@dataclass
class SamplingParams:
    """How one prompt is continued. temperature 0 is greedy; top_k 0 and top_p 1 are off.

    logprobs K asks for the K best log-probabilities beside the chosen token's own.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    n: int = 1
    stop: Sequence[str] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name.

        Raises ConfigError.
        """
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        self.stop_token_ids = tuple(self.stop_token_ids)
        checks: list[tuple[str, Any, bool, str]] = [
            ("max_tokens", self.max_tokens, self.max_tokens >= 1, ">= 1"),
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), ">= 0"),
            ("top_k", self.top_k, self.top_k >= 0, ">= 0 (0 is off)"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1]"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "> 0"),
            ("n", self.n, self.n >= 1, ">= 1"),
            ("seed", self.seed, 0 <= self.seed < 2**64, "in [0, 2^64)"),
            ("stop", self.stop, all(self.stop), "non-empty strings"),
            ("logprobs", self.logprobs, self.logprobs is None or 0 <= self.logprobs <= 100,
             "in [0, 100]"),
        ]  # fmt: skip
        for name, value, holds, range_text in checks:
            if not holds:
                raise ConfigError(f"{name}={value} is out of range; use {name} {range_text}")


@dataclass
class KVCacheConfig:
    """Layout of the paged KV cache. format: "fp32", "bf16" or "fp16"; block_size in tokens."""

    format: str = "fp32"
    block_size: int = 16


@dataclass
class EngineConfig:
    """What an engine is started with. None means: worked out at start, printed by `info`."""

    tp: int | None = None
    backend: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    block_size: int = 16
    kv_memory: int | None = None
    max_num_seqs: int = 16
    max_batched_tokens: int = 512
    max_model_len: int | None = None
    threads: int | None = None
    timeout_s: float = 300.0
    log_level: str = "warning"

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name.

        Raises ConfigError.
        """
        self.dtype = parse_dtype(self.dtype, flag="dtype")
        self.kv_dtype = parse_dtype(self.kv_dtype, flag="kv_dtype")
        if self.backend not in BACKENDS:
            raise ConfigError(f"backend={self.backend} is unknown; use {', '.join(BACKENDS)}")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"log_level={self.log_level} is unknown; use {', '.join(LOG_LEVELS)}")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s={self.timeout_s} is out of range; use seconds > 0")
        for name in ("tp", "block_size", "kv_memory", "max_num_seqs", "max_batched_tokens",
                     "max_model_len", "threads"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} is out of range; use {name} >= 1")
