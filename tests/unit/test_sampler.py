"""Sampling: against transformers' processors, and independent of everything but its arguments."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from atb_dist.config import SamplingParams
from atb_dist.engine import sampler
from atb_dist.errors import AtbDistError

ROW = torch.randn(50, generator=torch.Generator().manual_seed(3)) * 2
TOKENS = [1, 7, 7, 30]


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    row = torch.tensor([0.0, 5.0, 1.0, 5.0])
    assert sampler.sample(row, SamplingParams(), [0], index=0).token == 1


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_k=7),
        SamplingParams(temperature=1.0, top_p=0.6),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=0.9, top_k=20, top_p=0.8, min_p=0.05, repetition_penalty=1.4),
    ],
    ids=str,
)
def test_what_may_be_drawn_is_what_transformers_would_draw(params: SamplingParams) -> None:
    processors = LogitsProcessorList()
    if params.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(MinPLogitsWarper(params.min_p))
    wanted = processors(torch.tensor([TOKENS]), ROW.clone()[None])[0].softmax(0)
    drawn = Counter(
        sampler.sample(ROW, params, [*TOKENS, *[7] * i], index=0).token for i in range(3000)
    )
    assert set(drawn) <= set(wanted.nonzero().flatten().tolist())
    for token, count in drawn.most_common(5):
        assert count / 3000 == pytest.approx(float(wanted[token]), abs=0.04)


def test_a_draw_depends_on_seed_continuation_and_position_only() -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    draws = [sampler.sample(ROW, params, [1] * n, index=0).token for n in range(40)]
    again = [sampler.sample(ROW.clone(), params, [2] * n, index=0).token for n in range(40)]
    assert draws == again
    assert draws != [sampler.sample(ROW, params, [1] * n, index=1).token for n in range(40)]
    other = SamplingParams(temperature=1.0, seed=6)
    assert draws != [sampler.sample(ROW, other, [1] * n, index=0).token for n in range(40)]


def test_logprobs_are_of_the_row_as_it_came() -> None:
    params = SamplingParams(temperature=0.5, logprobs=3, repetition_penalty=2.0)
    choice = sampler.sample(ROW, params, TOKENS, index=0)
    wanted = ROW.log_softmax(0)
    assert choice.logprob == float(wanted[choice.token])
    assert choice.top_logprobs is not None
    assert list(choice.top_logprobs) == wanted.topk(3).indices.tolist()


def test_a_row_with_nan_is_refused() -> None:
    row = ROW.clone()
    row[3] = float("nan")
    with pytest.raises(AtbDistError, match="not numbers"):
        sampler.sample(row, SamplingParams(), [0], index=0)
