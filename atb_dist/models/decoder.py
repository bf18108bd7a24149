"""Decoder: the transformer of every family, on one rank's share of the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from atb_dist import ops
from atb_dist.batch import Batch
from atb_dist.comm.base import TensorParallel
from atb_dist.config import ModelConfig, RopeScaling
from atb_dist.kv_cache import KVCache
from atb_dist.weights.plan import LocalShape


@dataclass(frozen=True)
class Layer:
    """One layer's parameters on this rank; biases that the model lacks are None."""

    input_norm: Tensor  # [D]
    qkv: Tensor  # [(H + 2K)·E, D]
    qkv_bias: Tensor | None
    o: Tensor  # [D, H·E]
    o_bias: Tensor | None
    post_norm: Tensor  # [D]
    gate_up: Tensor  # [2F, D]
    gate_up_bias: Tensor | None
    down: Tensor  # [D, F]
    down_bias: Tensor | None


class Decoder:
    """Embedding, layers and head of a LLaMA-like model, cut over the ranks of `tp`.

    params: parameters by the names of the family's table. max_len: positions that may occur.
    """

    def __init__(
        self,
        config: ModelConfig,
        local: LocalShape,
        params: dict[str, Tensor],
        tp: TensorParallel,
        *,
        max_len: int,
    ):
        self._local = local
        self._tp = tp
        self._eps = config.rms_norm_eps
        self._scale = config.head_dim**-0.5
        self._embed = params["embed"]
        self._norm = params["norm"]
        self._head = params.get("head", self._embed)
        self._layers = [_layer(params, i) for i in range(config.num_layers)]
        self._cos_sin = rotary_table(config, max_len).to(self._embed.device)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute a step and write its keys and values → logits [L, V/N] of batch.logit_rows."""
        x = ops.embedding(batch.token_ids, self._embed, first_id=self._local.first_vocab)
        if self._tp.size > 1:
            x = self._tp.stream.run(self._tp.data.all_reduce, x)
        for index, layer in enumerate(self._layers):
            x = self._attend(x, layer, batch, cache.layer(index))
            x = self._feed_forward(x, layer)
        rows = ops.rms_norm(x[batch.logit_rows], self._norm, eps=self._eps)
        return ops.linear(rows, self._head)

    def _attend(self, x: Tensor, layer: Layer, batch: Batch, kv: tuple[Tensor, Tensor]) -> Tensor:
        local = self._local
        keys, values = kv
        normed = ops.rms_norm(x, layer.input_norm, eps=self._eps)
        qkv = ops.linear(normed, layer.qkv, layer.qkv_bias)
        heads = qkv.view(x.shape[0], local.heads + 2 * local.kv_heads, local.head_dim)
        q = heads[:, : local.heads]
        k = heads[:, local.heads : local.heads + local.kv_heads]
        v = heads[:, local.heads + local.kv_heads :]
        ops.rope(q, k, batch.positions, self._cos_sin)
        ops.reshape_and_cache(k, v, keys, values, batch.slots)
        attended = ops.paged_attention(
            q, keys, values, batch.block_tables, batch.query_starts, batch.context_lens,
            scale=self._scale,
        )  # fmt: skip
        return ops.linear_parallel(
            attended.view(x.shape[0], -1), layer.o, self._tp, bias=layer.o_bias, residual=x,
            leaves=local.attn_leaves,
        )  # fmt: skip

    def _feed_forward(self, x: Tensor, layer: Layer) -> Tensor:
        normed = ops.rms_norm(x, layer.post_norm, eps=self._eps)
        gate_up = ops.linear(normed, layer.gate_up, layer.gate_up_bias)
        return ops.linear_parallel(
            ops.swiglu(gate_up), layer.down, self._tp, bias=layer.down_bias, residual=x,
            leaves=self._local.mlp_leaves,
        )  # fmt: skip


def _layer(params: dict[str, Tensor], index: int) -> Layer:
    prefix = f"layers.{index}."
    return Layer(
        input_norm=params[prefix + "input_norm"],
        qkv=params[prefix + "qkv"],
        qkv_bias=params.get(prefix + "qkv_bias"),
        o=params[prefix + "o"],
        o_bias=params.get(prefix + "o_bias"),
        post_norm=params[prefix + "post_norm"],
        gate_up=params[prefix + "gate_up"],
        gate_up_bias=params.get(prefix + "gate_up_bias"),
        down=params[prefix + "down"],
        down_bias=params.get(prefix + "down_bias"),
    )


def rotary_table(config: ModelConfig, max_len: int) -> Tensor:
    """Return cosines and sines by position [max_len, E]: E/2 cosines, then E/2 sines, fp32.

    Rotary embedding of Su et al. 2021 (arXiv:2104.09864), frequencies θ^(-2i/E).
    """
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = _scaled(1.0 / config.rope_theta**exponent, config.rope_scaling)
    angles = torch.outer(torch.arange(max_len).float(), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Stretch frequencies: "linear" divides all; "llama3" only those of long wavelength."""
    if scaling.kind == "default":
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_position * frequencies / (2 * math.pi)  # in the original length
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
