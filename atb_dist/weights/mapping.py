"""A rank's own file of a converted checkpoint, mapped into memory: nothing is copied."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from atb_dist.weights.checkpoint import Checkpoint
from atb_dist.weights.plan import ShardingPlan
from atb_dist.weights.safetensors_file import read_header

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SOURCE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
                 "BF16": torch.bfloat16}  # fmt: skip


def map_rank(plan: ShardingPlan, checkpoint: Checkpoint, dtype: str) -> dict[str, Tensor] | None:
    """Return a rank's parameters as views of its file; None where the file holds anything else.

    Pages are shared with other processes and with the page cache until someone writes to them.
    """
    manifest = checkpoint.manifest
    if manifest is None or manifest.tp != plan.tp or manifest.quant is not None:
        return None
    file, entries = list(manifest.files.items())[plan.rank]
    held = {e.name: (SOURCE_DTYPES.get(e.dtype), e.shape, e.slices, e.pairs) for e in entries}
    wanted = {p.name: (TORCH_DTYPES[dtype], p.shape, p.slices, 0) for p in plan.params}
    if held != wanted:
        return None
    path = checkpoint.directory / file
    with path.open("rb") as stream:
        memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    found = {}
    for name, info in read_header(path).items():
        count = math.prod(info.shape)
        flat = torch.frombuffer(memory, dtype=TORCH_DTYPES[dtype], count=count, offset=info.offset)
        found[name] = flat.view(info.shape)
    return found
