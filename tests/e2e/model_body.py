"""Running a checkpoint on the ranks of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atb_dist.batch import Batch
from atb_dist.comm import RankInfo, TensorParallel
from atb_dist.config import EngineConfig, SamplingParams
from atb_dist.engine.engine import Engine
from atb_dist.engine.sampler import gather_rows
from atb_dist.engine.startup import limits_of, prepare, start
from atb_dist.kv_cache import KVCache
from atb_dist.models.decoder import Decoder


class Recorder:
    """A model that keeps the logits it gave, whole rows, on rank 0."""

    def __init__(self, decoder: Decoder, tp: TensorParallel, vocab_size: int):
        self.decoder, self.tp, self.vocab_size = decoder, tp, vocab_size
        self.rows: list[Tensor] = []

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        logits = self.decoder.forward(batch, cache)
        rows = gather_rows(logits, self.tp, self.vocab_size)
        if rows is not None:
            self.rows += list(rows.clone())
        return logits


def decode(
    info: RankInfo,
    directory: str,
    prompts: list[list[int]],
    new: int,
    options: dict[str, Any] | None = None,
) -> tuple[list[list[int]], list[Tensor], bool]:
    """Decode prompts greedily → token ids by prompt, logit rows by time on rank 0, and whether
    the plan promises the same bits at any tp.
    """
    engine_config = EngineConfig(tp=info.size, threads=1, timeout_s=60, **(options or {}))
    job = prepare(Path(directory), engine_config, info.size, info.rank)
    started = start(job, engine_config, info)
    model = Recorder(started.decoder, started.tp, job.config.vocab_size)
    engine = Engine(model, started.cache, started.tp, limits_of(job, engine_config))
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    outputs: dict[int, list[int]] = {}
    if info.rank == 0:
        for prompt in prompts:
            engine.add(prompt, params)
    while True:
        for output in engine.step():
            outputs[output.request_id] = output.token_ids
        if not engine.has_work():
            break
    started.tp.close()
    return [outputs[i] for i in sorted(outputs)], model.rows, job.plan.bit_equal_across_tp


def stacked(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows)
