"""Batch: the tensors of one step. One layout serves prefill, chunked prefill and decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """T tokens of S sequences, packed end to end; L rows need logits."""

    token_ids: Tensor  # [T]  int64
    positions: Tensor  # [T]  int64
    slots: Tensor  # [T]  int32   block · P + offset where each token's K and V go
    query_starts: Tensor  # [S+1] int32  sequence s owns rows query_starts[s] : query_starts[s+1]
    context_lens: Tensor  # [S]  int32   tokens visible to the last row of s
    block_tables: Tensor  # [S, ⌈max/P⌉] int32
    logit_rows: Tensor  # [L]  int64   rows whose logits are wanted
