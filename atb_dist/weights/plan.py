"""ShardingPlan: what one rank holds, as integers. Imports no torch.

Rank r of N takes units ⌊r·U/N⌋ to ⌊(r+1)·U/N⌋ of whatever is cut, so that with N in 1, 2, 4, 8 cuts
fall on the borders of the 8 leaves that every row-parallel sum is made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atb_dist.config import ModelConfig
from atb_dist.errors import ShardingError
from atb_dist.weights.rules import Cut, Family, Piece, Row, Unit

LEAVES = 8


@dataclass(frozen=True)
class LocalShape:
    """Sizes on one rank. heads and kv_heads of attention; mlp units; vocab rows with padding.

    attn_leaves and mlp_leaves are the borders of this rank's leaves along the inner dimension of
    the row-parallel weights, in elements from 0.
    """

    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    first_vocab: int
    head_dim: int
    attn_leaves: tuple[int, ...]
    mlp_leaves: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """Elements start to stop of a source tensor along dim; they go to offset of the parameter."""

    source: str
    dim: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True)
class Param:
    """A parameter of one rank. What no slice covers (vocabulary padding) is zero."""

    name: str
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Span:
    """Consecutive units, start to stop."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many units."""
        return self.stop - self.start


@dataclass(frozen=True)
class Share:
    """Which units of each kind a rank holds; vocab_rows counts the padding too."""

    tp: int
    rank: int
    spans: dict[Unit, Span]
    vocab_rows: int


@dataclass(frozen=True)
class ShardingPlan:
    """One rank's share of a model. sources: every tensor it needs, with its whole shape."""

    tp: int
    rank: int
    local: LocalShape
    params: tuple[Param, ...]
    sources: dict[str, tuple[int, ...]]
    bit_equal_across_tp: bool

    @classmethod
    def build(cls, family: Family, config: ModelConfig, tp: int, rank: int) -> ShardingPlan:
        """Cut a model over tp ranks.

        Raises ShardingError, with the sizes that would work, if a rank would hold nothing.
        """
        if not 0 <= rank < tp:
            raise ShardingError(f"rank {rank} does not exist in tp={tp}; use tp >= 1, rank < tp")
        _refuse_empty_ranks(config, tp)
        share = _share(config, tp, rank)
        params: list[Param] = []
        sources: dict[str, tuple[int, ...]] = {}
        for row in family.rows(config):
            for layer in range(config.num_layers) if "{i}" in row.param else (0,):
                params.append(_param(row, layer, share))
                sources.update(_sources(row, layer))
        local, equal = _local(config, share), _is_bit_equal(config, tp)
        return cls(tp, rank, local, tuple(params), sources, equal)

    def num_elements(self) -> int:
        """Return how many weights this rank holds."""
        return sum(math.prod(param.shape) for param in self.params)


def _refuse_empty_ranks(config: ModelConfig, tp: int) -> None:
    for name, units in (("heads", config.num_heads), ("mlp units", config.intermediate_size),
                        ("vocabulary rows", config.vocab_size)):  # fmt: skip
        if units < tp:
            raise ShardingError(
                f"{name}={units} can't be cut over tp={tp}: {tp - units} ranks would hold none; "
                f"use tp <= {min(config.num_heads, config.intermediate_size, config.vocab_size)}"
            )


def _share(config: ModelConfig, tp: int, rank: int) -> Share:
    kv, query = _heads(config, tp, rank)
    rows = -(-config.vocab_size // tp)
    first = min(rank * rows, config.vocab_size)
    spans = {
        Unit.KV_HEAD: kv,
        Unit.QUERY_HEAD: query,
        Unit.MLP: _even(config.intermediate_size, tp, rank),
        Unit.VOCAB: Span(first, min(first + rows, config.vocab_size)),
    }
    return Share(tp, rank, spans, rows)


def _even(units: int, parts: int, part: int) -> Span:
    return Span(part * units // parts, (part + 1) * units // parts)


def _heads(config: ModelConfig, tp: int, rank: int) -> tuple[Span, Span]:
    """Return this rank's KV heads and query heads.

    Whole KV groups while there are enough; else ranks are dealt to KV heads by the same rule and
    cut the query heads of theirs.
    """
    group = config.num_heads // config.num_kv_heads
    if config.num_kv_heads >= tp:
        kv = _even(config.num_kv_heads, tp, rank)
        return kv, Span(kv.start * group, kv.stop * group)
    head = rank * config.num_kv_heads // tp
    sharing = [r for r in range(tp) if r * config.num_kv_heads // tp == head]
    mine = _even(group, len(sharing), sharing.index(rank))
    return Span(head, head + 1), Span(head * group + mine.start, head * group + mine.stop)


def _local(config: ModelConfig, share: Share) -> LocalShape:
    spans, heads = share.spans, config.num_heads
    return LocalShape(
        heads=spans[Unit.QUERY_HEAD].count,
        kv_heads=spans[Unit.KV_HEAD].count,
        mlp=spans[Unit.MLP].count,
        vocab=share.vocab_rows,
        first_vocab=share.rank * share.vocab_rows,
        head_dim=config.head_dim,
        attn_leaves=_leaves(share, Unit.QUERY_HEAD, heads, config.head_dim),
        mlp_leaves=_leaves(share, Unit.MLP, config.intermediate_size, 1),
    )


def leaf_borders(units: int) -> list[int]:
    """Return where the 8 leaves of a whole inner dimension of that many units begin and end."""
    return [i * units // LEAVES for i in range(LEAVES + 1)]


def _leaves(share: Share, unit: Unit, units: int, width: int) -> tuple[int, ...]:
    """Return the leaf borders within a rank's span, in elements from the span's start.

    An aligned rank keeps exactly its 8/N leaves, empty ones too: its tree is a subtree of the
    whole. Elsewhere a leaf that the cut divides is summed in two parts.
    """
    span, borders = share.spans[unit], leaf_borders(units)
    low, high = share.rank * LEAVES // share.tp, (share.rank + 1) * LEAVES // share.tp
    if LEAVES % share.tp == 0 and (borders[low], borders[high]) == (span.start, span.stop):
        mine = borders[low : high + 1]
    else:
        mine = [span.start, *(b for b in borders if span.start < b < span.stop), span.stop]
    return tuple((b - span.start) * width for b in mine)


def _is_bit_equal(config: ModelConfig, tp: int) -> bool:
    """Whether every rank's cut falls on leaf borders, so that tp does not change any bit."""
    if LEAVES % tp:
        return False
    return all(
        _heads(config, tp, rank)[1] == _even(config.num_heads, tp, rank) for rank in range(tp)
    )


def _param(row: Row, layer: int, share: Share) -> Param:
    dim = 1 if row.cut == Cut.ROW else 0
    slices: list[Slice] = []
    offset = 0
    for piece in row.pieces:
        start, stop = _extent(row, piece, share)
        source = piece.source.replace("{i}", str(layer))
        slices.append(Slice(source, dim, piece.start + start, piece.start + stop, offset))
        offset += stop - start
    length = share.vocab_rows if row.cut == Cut.VOCAB else offset
    shape = (length,) if row.other is None else (length, row.other)
    return Param(row.param.replace("{i}", str(layer)), shape[::-1] if dim else shape, tuple(slices))


def _extent(row: Row, piece: Piece, share: Share) -> tuple[int, int]:
    if row.cut == Cut.COPY or piece.unit == Unit.NONE:
        return 0, piece.length
    span = share.spans[piece.unit]
    return span.start * piece.width, span.stop * piece.width


def _sources(row: Row, layer: int) -> dict[str, tuple[int, ...]]:
    """Return the whole shape of each checkpoint tensor that a row reads."""
    lengths: dict[str, int] = {}
    for piece in row.pieces:
        source = piece.source.replace("{i}", str(layer))
        lengths[source] = max(lengths.get(source, 0), piece.start + piece.length)
    if row.other is None:
        return {source: (length,) for source, length in lengths.items()}
    other = row.other
    flip = row.cut == Cut.ROW
    return {s: (other, n) if flip else (n, other) for s, n in lengths.items()}
