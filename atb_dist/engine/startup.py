"""Bringing one rank up: check, connect, compare with the other ranks, load, reserve the cache."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from atb_dist import __version__, ops
from atb_dist.comm import RankInfo, TensorParallel, connect_tensor_parallel
from atb_dist.config import DTYPE_BYTES, EngineConfig, KVCacheConfig, ModelConfig
from atb_dist.device import Device
from atb_dist.engine.engine import Limits
from atb_dist.errors import ConfigError
from atb_dist.kv_cache import KVCache
from atb_dist.models import read_model
from atb_dist.models.decoder import Decoder
from atb_dist.weights.checkpoint import Checkpoint
from atb_dist.weights.loader import load_weights
from atb_dist.weights.manifest import refuse_other_run
from atb_dist.weights.plan import ShardingPlan
from atb_dist.weights.rules import Family

LOG = logging.getLogger("atb_dist.startup")

HOST_CACHE_SHARE = 0.25  # of what is free, divided by the ranks of the host
DEVICE_CACHE_SHARE = 0.9


@dataclass(frozen=True)
class Job:
    """What a rank is to run, checked without reading a weight."""

    directory: Path
    family: Family
    config: ModelConfig
    plan: ShardingPlan
    checkpoint: Checkpoint
    dtype: str
    kv: KVCacheConfig
    max_model_len: int


@dataclass
class Started:
    """A rank that is up. bytes_read and load_s tell what loading took."""

    device: Device
    tp: TensorParallel
    decoder: Decoder
    cache: KVCache
    bytes_read: int
    load_s: float


def prepare(directory: Path, engine: EngineConfig, tp: int, rank: int) -> Job:
    """Check everything that can be known before ranks connect.

    Raises ConfigError or ShardingError.
    """
    family, config = read_model(directory)
    plan = ShardingPlan.build(family, config, tp, rank)
    checkpoint = Checkpoint(directory)
    checkpoint.check(plan, model_type=config.model_type)
    length = config.max_position if engine.max_model_len is None else engine.max_model_len
    if length > config.max_position:
        raise ConfigError(
            f"max_model_len={length} exceeds the model's {config.max_position} positions"
        )
    dtype = config.dtype if engine.dtype == "auto" else engine.dtype
    if checkpoint.manifest is not None:
        refuse_other_run(checkpoint.manifest, directory, family=family.name, dtype=dtype)
    kv_dtype = dtype if engine.kv_dtype == "auto" else engine.kv_dtype
    kv = KVCacheConfig(kv_dtype, engine.block_size)
    return Job(directory, family, config, plan, checkpoint, dtype, kv, length)


def start(job: Job, engine: EngineConfig, rank: RankInfo) -> Started:
    """Bring this rank up. Collective.

    Raises ConfigError when ranks differ or memory is short, PeerFailure when one is lost.
    """
    logging.getLogger("atb_dist").setLevel(engine.log_level.upper())
    use_threads(engine, rank)
    device = Device.open(rank.local_rank)
    tp = connect_tensor_parallel(rank, engine.backend, device=device, timeout_s=engine.timeout_s)
    try:
        _compare(job, engine, tp)
        _refuse_too_large(job, rank, device)
        begin = time.perf_counter()
        loaded = load_weights(job.plan, job.checkpoint, device, job.dtype, progress=tp.rank == 0)
        seconds = time.perf_counter() - begin
        decoder = Decoder(job.config, job.plan.local, loaded.params, tp, max_len=job.max_model_len)
        blocks = _agree_on_blocks(job, engine, rank, device, tp=tp)
        cache = KVCache(blocks, job.config, job.plan.local.kv_heads, job.kv, device)
    except BaseException as error:
        for comm in (tp.data, tp.control):
            comm.abort(f"rank {tp.rank} failed while starting: {error}")
        tp.close()
        raise
    LOG.info(
        "rank %d of %d over %s: %.1f MB of weights in %.2f s, %d KV blocks of %d, %d threads",
        tp.rank, tp.size, tp.data.name, loaded.bytes_read / 1e6, seconds, blocks,
        job.kv.block_size, ops.num_threads(),
    )  # fmt: skip
    return Started(device, tp, decoder, cache, loaded.bytes_read, seconds)


def limits_of(job: Job, engine: EngineConfig, **more: Any) -> Limits:
    """Return what requests of the job must fit into; `more` are further fields of Limits."""
    return Limits(
        vocab_size=job.config.vocab_size, max_model_len=job.max_model_len,
        max_num_seqs=engine.max_num_seqs, max_batched_tokens=engine.max_batched_tokens, **more,
    )  # fmt: skip


def use_threads(engine: EngineConfig, rank: RankInfo) -> None:
    """Give this rank its share of the CPUs, or as many threads as the config says."""
    allowed = len(os.sched_getaffinity(0))
    threads = engine.threads or max(1, allowed // rank.local_size)
    ops.set_num_threads(threads)
    torch.set_num_threads(threads)


def _compare(job: Job, engine: EngineConfig, tp: TensorParallel) -> None:
    """Refuse ranks that would compute something else."""
    mine = {
        "version": __version__,
        "config.json": repr(job.config),
        "checkpoint": job.checkpoint.digest(),
        "engine options": repr(asdict(engine)),
        "SIMD level": ops.simd_level,
    }
    everyone = tp.control.all_gather_object(mine)
    for what in mine:
        other = next((r for r, theirs in enumerate(everyone) if theirs[what] != everyone[0][what]),
                     None)  # fmt: skip
        if other is not None:
            raise ConfigError(
                f"rank {other} has another {what} than rank 0 ({everyone[other][what][:200]} "
                f"against {everyone[0][what][:200]}); start all ranks alike"
            )


def _refuse_too_large(job: Job, rank: RankInfo, device: Device) -> None:
    needed = job.plan.num_elements() * DTYPE_BYTES[job.dtype]
    free = device.free_memory() // (rank.local_size if device.kind == "cpu" else 1)
    if needed > free:
        raise ConfigError(
            f"this rank's weights take {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free for it; "
            "use more ranks or a smaller dtype"
        )


def _agree_on_blocks(
    job: Job, engine: EngineConfig, rank: RankInfo, device: Device, *, tp: TensorParallel
) -> int:
    """Return how many KV blocks every rank can hold."""
    size = KVCache.block_bytes(job.config, job.plan.local.kv_heads, job.kv)
    if engine.kv_memory is not None:
        mine = engine.kv_memory // size
    else:
        free = device.free_memory()
        room = (
            int(free * HOST_CACHE_SHARE) // rank.local_size
            if device.kind == "cpu"
            else int(free * DEVICE_CACHE_SHARE)
        )
        full = engine.max_num_seqs * -(-job.max_model_len // job.kv.block_size)
        mine = min(room // size, full)
    blocks = min(tp.control.all_gather_object(mine))
    if blocks < 1:
        raise ConfigError(
            f"the KV cache holds no block of {size} bytes; raise kv_memory or free memory"
        )
    return blocks
