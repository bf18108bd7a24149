"""KVCache: the paged keys and values of all layers on one rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atb_dist.config import DTYPE_BYTES, KVCacheConfig, ModelConfig
from atb_dist.device import Device

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class KVCache:
    """Blocks of P tokens. Per layer keys and values [B, P, K, E]; kv_heads K is this rank's.

    Host memory is reserved at once and touched block by block as it is first written.
    """

    def __init__(
        self,
        num_blocks: int,
        config: ModelConfig,
        kv_heads: int,
        kv: KVCacheConfig,
        device: Device,
    ):
        shape = (num_blocks, kv.block_size, kv_heads, config.head_dim)
        self.num_blocks = num_blocks
        self.block_size = kv.block_size
        self._layers = [
            (
                torch.empty(shape, dtype=FORMATS[kv.format], device=device.torch_device),
                torch.empty(shape, dtype=FORMATS[kv.format], device=device.torch_device),
            )
            for _ in range(config.num_layers)
        ]

    @staticmethod
    def block_bytes(config: ModelConfig, kv_heads: int, kv: KVCacheConfig) -> int:
        """Return the bytes of one block over all layers, keys and values."""
        token = 2 * config.num_layers * kv_heads * config.head_dim * DTYPE_BYTES[kv.format]
        return token * kv.block_size

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer, each [B, P, K, E]."""
        return self._layers[index]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy block source to block target for each pair, in all layers: copy on write."""
        for keys, values in self._layers:
            for source, target in pairs:
                keys[target].copy_(keys[source])
                values[target].copy_(values[source])
