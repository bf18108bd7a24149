"""Packing: a step's plan as the tensors of a Batch."""

from __future__ import annotations

import torch

from atb_dist.batch import Batch
from atb_dist.engine.scheduler import StepPlan


def pack(plan: StepPlan, block_size: int, device: torch.device) -> Batch:
    """Lay the rows of a plan end to end. Short block tables are padded with block 0."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_starts = [0]
    logit_rows: list[int] = []
    for entry in plan.entries:
        stop = entry.start + entry.count
        token_ids += entry.sequence.tokens[entry.start : stop]
        positions += range(entry.start, stop)
        table = entry.sequence.table
        slots += [
            table[p // block_size] * block_size + p % block_size for p in range(entry.start, stop)
        ]
        query_starts.append(len(token_ids))
        if entry.samples:
            logit_rows.append(len(token_ids) - 1)
    width = max(len(entry.sequence.table) for entry in plan.entries)
    tables = [e.sequence.table + [0] * (width - len(e.sequence.table)) for e in plan.entries]
    lens = [e.start + e.count for e in plan.entries]
    return Batch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        slots=torch.tensor(slots, dtype=torch.int32, device=device),
        query_starts=torch.tensor(query_starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
    )
