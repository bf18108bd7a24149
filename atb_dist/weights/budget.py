"""What a run costs each rank, worked out from sizes alone. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from atb_dist.config import DTYPE_BYTES, ModelConfig
from atb_dist.weights.plan import ShardingPlan
from atb_dist.weights.rules import Family

ACTIVATION_BYTES = 4  # partial sums cross ranks in fp32


@dataclass(frozen=True)
class Budget:
    """Bytes and counts per rank; blocks only where a device's memory was given.

    all_reduces counts those of one step: embedding, and two per layer. all_reduce_bytes is what
    they sum for one token of the step (a decode step of one sequence, or one prefill token).
    """

    tp: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    weight_bytes: tuple[int, ...]
    kv_bytes_per_token: tuple[int, ...]
    all_reduces: int
    all_reduce_bytes: int
    logit_bytes: int
    bit_equal_across_tp: bool
    max_model_len: int
    block_size: int
    blocks: int | None
    block_memory_bytes: int | None

    @property
    def sequences(self) -> int | None:
        """How many sequences of max_model_len the blocks hold."""
        if self.blocks is None:
            return None
        return self.blocks // -(-self.max_model_len // self.block_size)


def budget(
    family: Family,
    config: ModelConfig,
    tp: int,
    *,
    dtype: str,
    kv_dtype: str,
    max_model_len: int,
    device_memory_bytes: int | None = None,
    block_size: int = 16,
) -> Budget:
    """Work out every rank's share. dtype and kv_dtype are "fp32", "bf16" or "fp16".

    Raises ShardingError when the model can't be cut over tp. Blocks take 90% of the memory that
    weights leave free; the fullest rank decides.
    """
    plans = [ShardingPlan.build(family, config, tp, rank) for rank in range(tp)]
    weights = tuple(plan.num_elements() * DTYPE_BYTES[dtype] for plan in plans)
    token = 2 * config.num_layers * config.head_dim * DTYPE_BYTES[kv_dtype]
    kv = tuple(token * plan.local.kv_heads for plan in plans)
    blocks = memory = None
    if device_memory_bytes is not None:
        free = [max(0, device_memory_bytes - taken) * 9 // 10 for taken in weights]
        blocks = min(room // (each * block_size) for room, each in zip(free, kv, strict=True))
        memory = blocks * block_size * max(kv)
    all_reduces = 2 * config.num_layers + 1 if tp > 1 else 0
    return Budget(
        tp=tp,
        heads=tuple(plan.local.heads for plan in plans),
        kv_heads=tuple(plan.local.kv_heads for plan in plans),
        weight_bytes=weights,
        kv_bytes_per_token=kv,
        all_reduces=all_reduces,
        all_reduce_bytes=all_reduces * config.hidden_size * ACTIVATION_BYTES,
        logit_bytes=plans[0].local.vocab * tp * ACTIVATION_BYTES,
        bit_equal_across_tp=plans[0].bit_equal_across_tp,
        max_model_len=max_model_len,
        block_size=block_size,
        blocks=blocks,
        block_memory_bytes=memory,
    )
