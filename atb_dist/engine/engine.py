"""Engine: the loop that every rank runs. Rank 0 takes requests and decides; the others follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from atb_dist.batch import Batch
from atb_dist.comm.base import TensorParallel
from atb_dist.config import SamplingParams
from atb_dist.engine import sampler
from atb_dist.engine.blocks import BlockPool
from atb_dist.engine.packer import pack
from atb_dist.engine.request import Output, Request, Sampled, check_request
from atb_dist.engine.scheduler import Entry, Scheduler, StepPlan
from atb_dist.engine.stop import Detokenizer, StopChecker
from atb_dist.errors import OutOfBlocks
from atb_dist.kv_cache import KVCache


class Model(Protocol):
    """What the engine runs."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute a step's rows → this rank's logits [L, V/N] fp32."""


@dataclass(frozen=True)
class Limits:
    """What a request must fit into, and what ends it. detokenizer: None gives ids without text."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_batched_tokens: int
    eos_ids: Collection[int] = ()
    detokenizer: Callable[[Sequence[int]], Detokenizer] | None = None


@dataclass
class Message:
    """What rank 0 tells the others at the end of a step, or to wake them."""

    samples: list[Sampled] = field(default_factory=list)
    added: list[Request] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    closing: bool = False


@dataclass
class Meter:
    """Where time went, in seconds, on this rank. A step that computes any prompt counts there.

    compute_s is the model's own time: forward passes without the waits for communication.
    """

    prefill_s: float = 0.0
    decode_s: float = 0.0
    compute_s: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    steps: int = 0


class Engine:
    """Continuous batching over one model and its KV cache."""

    def __init__(self, model: Model, cache: KVCache, tp: TensorParallel, limits: Limits):
        self.limits = limits
        self.meter = Meter()
        self.scheduler = Scheduler(
            BlockPool(cache.num_blocks), block_size=cache.block_size,
            max_num_seqs=limits.max_num_seqs, max_batched_tokens=limits.max_batched_tokens,
        )  # fmt: skip
        self._model = model
        self._cache = cache
        self._tp = tp
        self._next_id = 0
        self._inbox = Message()
        self._outputs: dict[tuple[int, int], Output] = {}
        self._checkers: dict[tuple[int, int], StopChecker] = {}
        self.is_closing = False

    def check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Refuse what can't be run.

        Raises ConfigError, or OutOfBlocks when the KV cache could never hold it.
        """
        check_request(
            prompt, params, vocab_size=self.limits.vocab_size,
            max_model_len=self.limits.max_model_len, max_num_seqs=self.limits.max_num_seqs,
        )  # fmt: skip
        self._check_blocks(len(prompt), params)

    def _check_blocks(self, prompt: int, params: SamplingParams) -> None:
        length = min(prompt + params.max_tokens, self.limits.max_model_len)
        size = self._cache.block_size
        if -(-length // size) > self._cache.num_blocks:
            room = self._cache.num_blocks * size - prompt
            advice = f"use max_tokens <= {room}" if room > 0 else "shorten the prompt"
            raise OutOfBlocks(
                f"the request needs {-(-length // size)} blocks of {size} tokens, "
                f"{self._cache.num_blocks} exist; raise kv_memory or {advice}"
            )

    def add(self, prompt: Sequence[int], params: SamplingParams, text: str | None = None) -> int:
        """Queue a prompt of token ids on rank 0, and the text it came from; return its id.

        Raises what check raises; then nothing was queued.
        """
        self.check(prompt, params)
        request = Request(self._next_id, tuple(prompt), params, text)
        self._next_id += 1
        self._inbox.added.append(request)
        return request.id

    def cancel(self, request_id: int) -> None:
        """Drop a request on rank 0; it gives no more outputs."""
        self._inbox.cancelled.append(request_id)

    def close(self) -> None:
        """Let `follow` end on the other ranks. Call on rank 0, when no step is running."""
        if not self.is_closing and self._tp.rank == 0:
            self._inbox.closing = True
            self._share(Message(), idle=True)

    def has_work(self) -> bool:
        """Whether a step would compute anything; on rank 0, queued requests count."""
        return self.scheduler.has_work() or bool(self._inbox.added)

    def follow(self) -> None:
        """Run steps on ranks other than 0 until rank 0 closes."""
        while not self.is_closing:
            self.step()

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Compute one step → the outputs it extended, the same on every rank.

        Waits for rank 0 when there is nothing to do.
        """
        if not self.scheduler.has_work():
            self._share(Message(), idle=True)
            if not self.scheduler.has_work():
                return []
        begin = time.perf_counter()
        plan = self.scheduler.schedule()
        logits = self._forward(plan)
        message = self._share(Message(samples=self._decide(plan, logits)), plan=plan)
        extended = self._extend(plan, message.samples)
        self._count(plan, time.perf_counter() - begin)
        return extended

    def _forward(self, plan: StepPlan) -> Tensor:
        if plan.copies:
            self._cache.copy_blocks(plan.copies)
        batch = pack(plan, self._cache.block_size, self._cache.layer(0)[0].device)
        begin, exposed = time.perf_counter(), self._tp.stream.exposed_s
        logits = self._model.forward(batch, self._cache)
        waited = self._tp.stream.exposed_s - exposed
        self.meter.compute_s += time.perf_counter() - begin - waited
        return logits

    def _share(self, mine: Message, plan: StepPlan | None = None, *, idle: bool = False) -> Message:
        """Tell the others what rank 0 decided and received; act on it, on every rank alike."""
        if self._tp.rank == 0:
            inbox, self._inbox = self._inbox, Message()
            mine = Message(mine.samples, inbox.added, inbox.cancelled, inbox.closing)
        message = mine
        if self._tp.size > 1:
            received = self._tp.control.broadcast_object(
                mine if self._tp.rank == 0 else None, idle=idle
            )
            assert received is not None
            message = received
        if plan is not None:
            self.scheduler.commit(plan, message.samples)
        for request in message.added:
            self.scheduler.add(request)
        for request_id in message.cancelled:
            self._drop(request_id)
        self.is_closing = message.closing
        return message

    def _drop(self, request_id: int) -> None:
        self.scheduler.cancel(request_id)
        for held in (self._outputs, self._checkers):
            for key in [key for key in held if key[0] == request_id]:
                del held[key]

    def _decide(self, plan: StepPlan, logits: Tensor) -> list[Sampled]:
        """Sample and judge every continuation of the plan, on rank 0."""
        entries = [entry for entry in plan.entries if entry.samples]
        if not entries:
            return []
        vocab = self.limits.vocab_size
        if all(sampler.is_plain_greedy(e.sequence.request.params) for e in entries):
            best = sampler.gather_best(logits, self._tp, vocab)
            drawn = [] if best is None else [[sampler.Choice(token)] for token in best]
            chosen = [each * e.samples for each, e in zip(drawn, entries, strict=False)]
        else:
            rows = sampler.gather_rows(logits, self._tp, vocab)
            chosen = [] if rows is None else [
                [
                    sampler.sample(row, e.sequence.request.params, e.sequence.tokens,
                                   index=e.sequence.index + i)
                    for i in range(e.samples)
                ]
                for e, row in zip(entries, rows, strict=True)
            ]  # fmt: skip
        if self._tp.rank != 0:
            return []
        return [
            self._judge(entry, i, choice)
            for entry, choices in zip(entries, chosen, strict=True)
            for i, choice in enumerate(choices)
        ]

    def _judge(self, entry: Entry, offset: int, choice: sampler.Choice) -> Sampled:
        request, index = entry.sequence.request, entry.sequence.index + offset
        checker = self._checkers.get((request.id, index))
        if checker is None:
            room = self.limits.max_model_len - len(request.prompt)
            text = self.limits.detokenizer
            checker = self._checkers[request.id, index] = StopChecker(
                request.params, self.limits.eos_ids, min(request.params.max_tokens, room),
                None if text is None else text(request.prompt),
            )  # fmt: skip
        verdict = checker.add(choice.token)
        if verdict.finish_reason is not None:
            del self._checkers[request.id, index]
        return Sampled(choice.token, verdict.finish_reason, verdict.text, choice.logprob,
                       choice.top_logprobs)  # fmt: skip

    def _extend(self, plan: StepPlan, samples: list[Sampled]) -> list[Output]:
        drawn = iter(samples)
        extended = []
        for entry in plan.entries:
            for i in range(entry.samples):
                request, index = entry.sequence.request, entry.sequence.index + i
                key = (request.id, index)
                output = self._outputs.get(key)
                if output is None:
                    output = Output(request.id, index, request.prompt, request.text)
                    self._outputs[key] = output
                output.extend(next(drawn))
                if output.finish_reason is not None:
                    del self._outputs[key]
                extended.append(output)
        return extended

    def _count(self, plan: StepPlan, seconds: float) -> None:
        self.meter.steps += 1
        prompt = sum(e.count for e in plan.entries if e.count > 1)
        if prompt:
            self.meter.prefill_tokens += prompt
            self.meter.prefill_s += seconds
        else:
            self.meter.decode_tokens += len(plan.entries)
            self.meter.decode_s += seconds
