"""The engine with a model whose tokens betray any wrong slot, position or block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from atb_dist.batch import Batch
from atb_dist.comm.base import TensorParallel
from atb_dist.comm.local import LocalComm
from atb_dist.config import KVCacheConfig, ModelConfig, SamplingParams
from atb_dist.device import CpuStream, Device
from atb_dist.engine.engine import Engine, Limits
from atb_dist.engine.request import Output
from atb_dist.errors import AtbDistError, ConfigError, OutOfBlocks
from atb_dist.kv_cache import KVCache

VOCAB = 97
CONFIG = ModelConfig(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2, vocab_size=VOCAB)


class HistoryModel:
    """Writes each token and position into the cache and reads its history back from there: the
    next token is a hash of all of it. Also counts the tokens it computed.
    """

    def __init__(self) -> None:
        self.computed = 0
        self.batches: list[int] = []

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        keys, values = cache.layer(0)
        flat_keys, flat_values = keys.view(-1, 2), values.view(-1, 2)
        slots = batch.slots.long()
        flat_keys[slots, 0] = batch.token_ids.float()
        flat_values[slots, 0] = batch.positions.float()
        self.computed += len(slots)
        self.batches.append(len(slots))
        logits = torch.zeros(len(batch.logit_rows), VOCAB)
        for i, row in enumerate(batch.logit_rows.tolist()):
            s = int(torch.searchsorted(batch.query_starts.long(), row, right=True)) - 1
            length = int(batch.context_lens[s]) - (int(batch.query_starts[s + 1]) - 1 - row)
            size = cache.block_size
            table = batch.block_tables[s].tolist()
            places = [table[p // size] * size + p % size for p in range(length)]
            assert flat_values[places, 0].tolist() == list(range(length)), "positions in the cache"
            logits[i, next_token([int(t) for t in flat_keys[places, 0].tolist()])] = 9.0
        return logits


def next_token(history: list[int]) -> int:
    value = 7
    for token in history:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def engine(num_blocks: int = 64, block_size: int = 4, **limits: Any) -> tuple[Engine, HistoryModel]:
    defaults: dict[str, Any] = {
        "vocab_size": VOCAB, "max_model_len": 128, "max_num_seqs": 8, "max_batched_tokens": 64,
    }  # fmt: skip
    model = HistoryModel()
    cache = KVCache(num_blocks, CONFIG, 1, KVCacheConfig("fp32", block_size), Device("cpu"))
    tp = TensorParallel(LocalComm(), LocalComm(), CpuStream())
    return Engine(model, cache, tp, Limits(**{**defaults, **limits})), model


def drain(run: Engine) -> dict[tuple[int, int], Output]:
    outputs = {}
    for _ in range(2000):
        if not run.has_work():
            return outputs
        for output in run.step():
            outputs[output.request_id, output.index] = output
    raise AssertionError("the engine does not come to an end")


PROMPTS = [[5], [1, 2, 3, 4], [9] * 17, list(range(40)), [1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_batched_tokens": 8},
        {"block_size": 1},
        {"block_size": 32, "max_num_seqs": 2},
        {"num_blocks": 16, "max_num_seqs": 5},
        {"num_blocks": 13, "max_batched_tokens": 9},
    ],
    ids=str,
)
def test_any_batching_gives_the_tokens_of_each_prompt_alone(options: dict[str, Any]) -> None:
    run, _ = engine(**options)
    params = SamplingParams(max_tokens=11, ignore_eos=True)
    ids = [run.add(prompt, params) for prompt in PROMPTS]
    outputs = drain(run)
    for request_id, prompt in zip(ids, PROMPTS, strict=True):
        assert outputs[request_id, 0].token_ids == expected(prompt, 11)
        assert outputs[request_id, 0].finish_reason == "length"
    pool = run.scheduler.pool
    assert pool.num_free == pool.num_blocks, "blocks were lost"


def test_short_memory_preempts_and_recomputes() -> None:
    run, model = engine(num_blocks=14, block_size=2)
    for prompt in PROMPTS[:3]:
        run.add(prompt, SamplingParams(max_tokens=8))
    outputs = drain(run)
    assert run.scheduler.num_preemptions > 0
    assert model.computed > sum(len(p) + 7 for p in PROMPTS[:3])
    for i, prompt in enumerate(PROMPTS[:3]):
        assert outputs[i, 0].token_ids == expected(prompt, 8)


def test_a_known_prefix_is_not_computed_again() -> None:
    run, model = engine()
    first = run.add(list(range(40)), SamplingParams(max_tokens=3))
    drain(run)
    before = model.computed
    second = run.add([*range(36), 77], SamplingParams(max_tokens=3))
    outputs = drain(run)
    assert first != second
    assert model.computed - before == 1 + 2, "36 of 37 prompt tokens were there"
    assert outputs[second, 0].token_ids == expected([*range(36), 77], 3)


def test_a_prompt_that_is_wholly_known_still_computes_its_last_token() -> None:
    run, model = engine()
    for _ in range(2):
        before = model.computed
        run.add(list(range(8)), SamplingParams(max_tokens=2))
        outputs = drain(run)
    assert model.computed - before == 4 + 1
    assert outputs[1, 0].token_ids == expected(list(range(8)), 2)


@pytest.mark.parametrize("length", [6, 8])
def test_continuations_share_the_prompt_and_part_on_write(length: int) -> None:
    run, model = engine()
    prompt = list(range(length))
    run.add(prompt, SamplingParams(n=3, max_tokens=6, temperature=1.0, seed=3))
    outputs = drain(run)
    assert sorted(outputs) == [(0, 0), (0, 1), (0, 2)]
    assert model.computed == length + 3 * 5
    assert all(len(o.token_ids) == 6 for o in outputs.values())
    greedy, _ = engine()
    greedy.add(prompt, SamplingParams(n=3, max_tokens=6))
    assert {tuple(o.token_ids) for o in drain(greedy).values()} == {tuple(expected(prompt, 6))}


def test_seeds_give_the_same_tokens_in_any_company() -> None:
    params = SamplingParams(max_tokens=9, temperature=3.0, seed=11)
    alone, _ = engine()
    alone.add([4, 5, 6], params)
    wanted = drain(alone)[0, 0].token_ids
    assert wanted != expected([4, 5, 6], 9), "temperature has an effect"
    company, _ = engine(max_batched_tokens=8)
    for prompt in PROMPTS:
        company.add(prompt, SamplingParams(max_tokens=9, temperature=2.0, seed=1))
    last = company.add([4, 5, 6], params)
    assert drain(company)[last, 0].token_ids == wanted


def test_eos_ends_and_ignore_eos_does_not() -> None:
    tokens = expected([5], 10)
    run, _ = engine(eos_ids=[tokens[4]])
    run.add([5], SamplingParams(max_tokens=10))
    run.add([5], SamplingParams(max_tokens=10, ignore_eos=True))
    outputs = drain(run)
    end = tokens.index(tokens[4]) + 1
    assert outputs[0, 0].token_ids == tokens[:end]
    assert outputs[0, 0].finish_reason == "stop"
    assert outputs[1, 0].token_ids == tokens


def test_the_model_length_ends_a_sequence() -> None:
    run, _ = engine(max_model_len=20)
    run.add([1] * 15, SamplingParams(max_tokens=50))
    output = drain(run)[0, 0]
    assert (len(output.token_ids), output.finish_reason) == (5, "length")


def test_a_cancelled_request_gives_its_blocks_back() -> None:
    run, _ = engine()
    run.add([1, 2, 3], SamplingParams(max_tokens=100))
    kept = run.add([4], SamplingParams(max_tokens=4))
    run.step()
    run.cancel(0)
    outputs = drain(run)
    assert outputs[kept, 0].token_ids == expected([4], 4)
    assert (0, 0) not in outputs or outputs[0, 0].finish_reason is None
    assert run.scheduler.pool.num_free == run.scheduler.pool.num_blocks


@pytest.mark.parametrize(
    ("prompt", "params", "error", "told"),
    [
        ([], {}, ConfigError, "the prompt is empty"),
        ([VOCAB], {}, ConfigError, f"token id {VOCAB} is out of range"),
        ([-1], {}, ConfigError, "token id -1 is out of range"),
        ([1] * 128, {}, ConfigError, "has 128 tokens; .* at most 127 fit"),
        ([1], {"n": 9}, ConfigError, "n=9 exceeds max_num_seqs=8"),
        ([1] * 100, {"max_tokens": 20}, OutOfBlocks, "needs 30 blocks of 4 tokens, 28 exist"),
    ],
)
def test_requests_that_can_not_run_are_refused(
    prompt: list[int], params: dict[str, Any], error: type[Exception], told: str
) -> None:
    run, _ = engine(num_blocks=28)
    with pytest.raises(error, match=told):
        run.add(prompt, SamplingParams(**params))
    assert not run.has_work(), "nothing was queued"


def test_fewer_batched_tokens_than_sequences_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_batched_tokens=4 can't hold a token of each of"):
        engine(max_batched_tokens=4)


def test_a_model_that_gives_nan_is_named() -> None:
    run, model = engine()
    model.forward = lambda batch, _cache: torch.full(  # type: ignore[method-assign]
        (len(batch.logit_rows), VOCAB), torch.nan
    )
    run.add([1], SamplingParams())
    with pytest.raises(AtbDistError, match="logits that are not numbers"):
        run.step()
