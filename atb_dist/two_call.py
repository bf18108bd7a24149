"""TransformerModel: the two-call API, prefill and decode_step, over the same decoder."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from atb_dist.batch import Batch
from atb_dist.comm import RankInfo
from atb_dist.config import EngineConfig, KVCacheConfig, ModelConfig
from atb_dist.engine.startup import Job, Started, prepare, start
from atb_dist.errors import ConfigError
from atb_dist.kv_cache import KVCache
from atb_dist.weights.hub import find_model

# What a user of the two-call API sets; the rest comes from the checkpoint.
CHECKED = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
           "intermediate_size", "vocab_size")  # fmt: skip
FIRST_BLOCKS = 8


@dataclass
class GrowingCache:
    """The keys and values of one sequence, and the logits [1, V] of its last token."""

    cache: KVCache
    length: int
    logits: Tensor


class TransformerModel:
    """A model for one sequence at a time, called step by step.

    config fields that were set must agree with the checkpoint; those left at 0 are taken from it.
    Under torchrun, mpirun or `atb-dist launch` every rank makes the same calls.
    """

    def __init__(self, config: ModelConfig | None = None):
        self.config = config or ModelConfig()
        self._job: Job | None = None
        self._started: Started | None = None

    def load_weights(self, directory: str | Path) -> None:
        """Load a checkpoint, this rank's share of it. Collective.

        Raises ConfigError that names the fields in which config and checkpoint differ.
        """
        if self._started is not None:
            raise ConfigError("weights are loaded already; make another TransformerModel")
        rank = RankInfo.from_env()
        engine = EngineConfig(tp=rank.size, max_num_seqs=1)
        job = prepare(find_model(str(directory)), engine, rank.size, rank.rank)
        self._compare(job.config)
        for field in fields(ModelConfig):
            setattr(self.config, field.name, getattr(job.config, field.name))
        self._started = start(job, engine, rank)
        self._job = job

    def _compare(self, found: ModelConfig) -> None:
        differing = [
            f"{name}={getattr(self.config, name)} (checkpoint: {getattr(found, name)})"
            for name in CHECKED
            if getattr(self.config, name) not in (0, getattr(found, name))
        ]
        if self.config.model_type != found.model_type:
            differing.insert(0, f"model_type={self.config.model_type!r} "
                                f"(checkpoint: {found.model_type!r})")  # fmt: skip
        if differing:
            raise ConfigError(f"the config does not fit the checkpoint: {', '.join(differing)}")

    def prefill(self, input_ids: Tensor, position_ids: Tensor) -> GrowingCache:
        """Compute a prompt, input_ids [1, T] at position_ids [T] = 0 … T-1 → its cache.

        Raises ConfigError for ids or positions that the model does not have.
        """
        job, _ = self._loaded()
        length = input_ids.shape[-1]
        if input_ids.shape != (1, length) or length == 0:
            raise ConfigError(f"input_ids is {list(input_ids.shape)}; use [1, T] with T >= 1")
        if position_ids.tolist() != list(range(length)):
            raise ConfigError(f"position_ids must be 0 to {length - 1} for {length} input_ids")
        blocks = max(FIRST_BLOCKS, -(-length // job.kv.block_size))
        state = GrowingCache(self._new_cache(blocks), 0, torch.empty(0))
        state.logits = self._step(input_ids[0], state)
        return state

    def decode_step(self, ids: Tensor, kv_cache: GrowingCache) -> tuple[Tensor, GrowingCache]:
        """Append one token, ids [1, 1] → (logits [1, V], the same cache, longer)."""
        if ids.shape != (1, 1):
            raise ConfigError(f"ids is {list(ids.shape)}; decode_step takes [1, 1]")
        kv_cache.logits = self._step(ids[0], kv_cache)
        return kv_cache.logits, kv_cache

    def close(self) -> None:
        """Let go of communicators and memory."""
        if self._started is not None:
            self._started.tp.close()
            self._started = None

    @torch.inference_mode()
    def _step(self, tokens: Tensor, state: GrowingCache) -> Tensor:
        job, started = self._loaded()
        count, size = len(tokens), job.kv.block_size
        start_at, stop = state.length, state.length + count
        if stop > job.max_model_len:
            raise ConfigError(f"position {stop - 1} is beyond the model's {job.max_model_len}")
        if not bool(((tokens >= 0) & (tokens < job.config.vocab_size)).all()):
            raise ConfigError(f"a token id is out of range 0 to {job.config.vocab_size - 1}")
        if stop > state.cache.num_blocks * size:
            state.cache = self._grown(state.cache, -(-stop // size))
        place = started.device.torch_device
        positions = torch.arange(start_at, stop, device=place)
        blocks = torch.arange(state.cache.num_blocks, dtype=torch.int32, device=place)
        batch = Batch(
            token_ids=tokens.to(place, torch.int64),
            positions=positions,
            slots=positions.to(torch.int32),  # block i holds tokens i·P to (i + 1)·P
            query_starts=torch.tensor([0, count], dtype=torch.int32, device=place),
            context_lens=torch.tensor([stop], dtype=torch.int32, device=place),
            block_tables=blocks.view(1, -1),
            logit_rows=torch.tensor([count - 1], device=place),
        )
        logits = started.decoder.forward(batch, state.cache)
        state.length = stop
        if started.tp.size > 1:
            gathered = started.tp.stream.run(started.tp.data.all_gather, logits.contiguous())
            logits = gathered.view(1, -1)
        return logits[:, : job.config.vocab_size].clone()

    def _grown(self, cache: KVCache, needed: int) -> KVCache:
        job, _ = self._loaded()
        larger = self._new_cache(max(needed, 2 * cache.num_blocks))
        for layer in range(job.config.num_layers):
            for old, new in zip(cache.layer(layer), larger.layer(layer), strict=True):
                new[: cache.num_blocks] = old
        return larger

    def _new_cache(self, blocks: int) -> KVCache:
        job, started = self._loaded()
        kv = KVCacheConfig(job.kv.format, job.kv.block_size)
        return KVCache(blocks, job.config, job.plan.local.kv_heads, kv, started.device)

    def _loaded(self) -> tuple[Job, Started]:
        if self._job is None or self._started is None:
            raise ConfigError("no weights are loaded; call load_weights(directory) first")
        return self._job, self._started
