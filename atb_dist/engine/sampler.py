"""Sampling, on rank 0: one row of logits and its request's parameters give one token.

Nothing depends on the other rows of the batch or on the number of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atb_dist.comm.base import TensorParallel
from atb_dist.config import SamplingParams
from atb_dist.engine.request import TokenLogprobs
from atb_dist.errors import AtbDistError


@dataclass(frozen=True)
class Choice:
    """A token, with its log-probability and the best ones where they were asked for."""

    token: int
    logprob: float | None = None
    top_logprobs: TokenLogprobs | None = None


def is_plain_greedy(params: SamplingParams) -> bool:
    """Whether the token is the arg-max of the logits as they are, and nothing else is asked."""
    return params.temperature == 0 and params.repetition_penalty == 1.0 and params.logprobs is None


def gather_best(logits: Tensor, tp: TensorParallel, vocab_size: int) -> list[int] | None:
    """Find the arg-max of each row of split logits [L, V/N] → L token ids on rank 0, else None.

    Ties go to the lowest id. Padded ids are not looked at.
    """
    first = tp.rank * logits.shape[1]
    real = max(0, min(logits.shape[1], vocab_size - first))
    best = torch.full((logits.shape[0], 2), -torch.inf, dtype=torch.float64)
    if real:
        values, places = logits[:, :real].max(dim=1)
        best[:, 0], best[:, 1] = values, places + first
    if tp.size > 1:
        gathered = tp.stream.run(tp.data.gather, best)
        if gathered is None:
            return None
        best = gathered.view(tp.size, logits.shape[0], 2)
        winner = best[:, :, 0].argmax(dim=0)  # the first, so the lowest ids, among equals
        best = best[winner, torch.arange(logits.shape[0])]
    if best[:, 0].isnan().any():
        raise AtbDistError("the model gave logits that are not numbers; are the weights intact?")
    return [int(token) for token in best[:, 1].tolist()]


def gather_rows(logits: Tensor, tp: TensorParallel, vocab_size: int) -> Tensor | None:
    """Join split logits [L, V/N] → [L, V] fp32 on rank 0, without padding; None elsewhere."""
    if tp.size == 1:
        return logits[:, :vocab_size].float().cpu()
    gathered = tp.stream.run(tp.data.gather, logits.contiguous())
    if gathered is None:
        return None
    rows = gathered.view(tp.size, *logits.shape).transpose(0, 1).reshape(logits.shape[0], -1)
    return rows[:, :vocab_size].float().cpu()


def sample(row: Tensor, params: SamplingParams, tokens: Sequence[int], *, index: int) -> Choice:
    """Choose the token that follows `tokens` from logits row [V].

    index is the number of the continuation. The order is that of transformers: repetition penalty,
    temperature, top-k, top-p, min-p. Log-probabilities are those of the row as it came.

    Raises AtbDistError when the row holds anything that is not a number.
    """
    if row.isnan().any():
        raise AtbDistError("the model gave logits that are not numbers; are the weights intact?")
    scores = _penalise(row, tokens, params.repetition_penalty)
    if params.temperature == 0:
        token = int(scores.argmax())
    else:
        ids, weights = _candidates(scores.double() / params.temperature, params)
        token = _draw(ids, weights, uniform(params.seed, index, len(tokens)))
    if params.logprobs is None:
        return Choice(token)
    logprobs = row.log_softmax(dim=0)
    best = logprobs.sort(descending=True, stable=True)
    top = zip(best.indices[: params.logprobs], best.values[: params.logprobs], strict=True)
    return Choice(token, float(logprobs[token]), {int(i): float(p) for i, p in top})


def _penalise(row: Tensor, tokens: Sequence[int], penalty: float) -> Tensor:
    """Make tokens that were there less likely (Keskar et al. 2019, arXiv:1909.05858)."""
    if penalty == 1.0:
        return row
    seen = torch.tensor(sorted(set(tokens)))
    scores = row.clone()
    before = scores[seen]
    scores[seen] = torch.where(before < 0, before * penalty, before / penalty)
    return scores


def _candidates(scores: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return what may be drawn, likeliest first, ties by id: ids and probabilities (not summing
    to one after a cut).
    """
    ordered = scores.sort(descending=True, stable=True)
    probabilities = ordered.values.softmax(dim=0)
    keep = torch.ones_like(probabilities, dtype=torch.bool)
    if params.top_k:
        keep[params.top_k :] = False
        probabilities = torch.where(keep, probabilities, 0.0)
        probabilities = probabilities / probabilities.sum()
    if params.top_p < 1:
        before = probabilities.cumsum(dim=0) - probabilities
        keep &= before < params.top_p
        probabilities = torch.where(keep, probabilities, 0.0)
        probabilities = probabilities / probabilities.sum()
    if params.min_p > 0:
        keep &= probabilities >= params.min_p * probabilities[0]
    return ordered.indices[keep], probabilities[keep]


def _draw(ids: Tensor, weights: Tensor, u: float) -> int:
    """Invert the cumulative distribution at u in [0, 1)."""
    cumulative = weights.cumsum(dim=0)
    place = int(torch.searchsorted(cumulative, u * float(cumulative[-1]), right=True))
    return int(ids[min(place, len(ids) - 1)])


def uniform(seed: int, index: int, position: int) -> float:
    """Return a number in [0, 1) that depends on nothing but its arguments: a hash as generator."""
    words = b"".join(value.to_bytes(8, "little") for value in (seed, index, position))
    digest = hashlib.blake2b(words, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
