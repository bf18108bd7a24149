"""LLM: generate text with one object, in a plain script or on every rank of a launcher."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from atb_dist.comm import RankInfo
from atb_dist.config import EngineConfig, SamplingParams
from atb_dist.engine.engine import Engine, Meter
from atb_dist.engine.prompts import Prepared, Prompt, open_tokenizer, prepare_prompts
from atb_dist.engine.request import Output
from atb_dist.engine.startup import limits_of, prepare, start
from atb_dist.engine.workers import Workers
from atb_dist.errors import AtbDistError, ConfigError
from atb_dist.tokenizer import read_generation_config
from atb_dist.weights.hub import find_model

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Of the last generate or stream, on this rank. Rates of 0 mean that nothing was measured.

    comm_s is time in collectives, exposed_comm_s the part during which the model stood still,
    compute_s the model's own.
    """

    load_s: float
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    compute_s: float
    comm_s: float
    exposed_comm_s: float


class LLM:
    """A model over `tp` ranks.

    In a plain script the caller is rank 0 and the others are started, without running the script
    again; they end with it, or at `close`. Under torchrun, mpirun, Slurm or `atb-dist launch` the
    ranks that were started are used: each makes the same calls, rank 0's prompts count, all get
    the same outputs. options are the fields of EngineConfig.

    Raises ConfigError or ShardingError for what can't work, before any weight is read, and
    PeerFailure when a rank is lost.
    """

    def __init__(self, model: str | Path, *, tp: int | None = None, **options: Any):
        known = [field.name for field in fields(EngineConfig)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ConfigError(f"LLM has no option {unknown[0]!r}; there are {', '.join(known)}")
        rank = RankInfo.from_env()
        self._is_launched = rank.size > 1
        if self._is_launched and tp not in (None, rank.size):
            raise ConfigError(f"tp={tp}, but the launcher started {rank.size} ranks; leave tp out")
        size = rank.size if self._is_launched else tp or 1
        engine = EngineConfig(tp=size, **options)
        directory = find_model(str(model))
        self.job = prepare(directory, engine, size, rank.rank)
        self.tokenizer = open_tokenizer(directory)
        self._workers: Workers | None = None
        if not self._is_launched and size > 1:
            self._workers = Workers(directory, asdict(engine), size, timeout_s=engine.timeout_s)
            rank = self._workers.rank_info
        self._broken: str | None = None
        self._in_use = threading.Lock()
        try:
            started = start(self.job, engine, rank)
        except BaseException:
            if self._workers is not None:
                self._workers.kill()
            raise
        self.rank, self.tp = rank.rank, size
        self.backend = started.tp.data.name
        self.bytes_read = started.bytes_read
        self._started = started
        self._engine = self._make_engine(started.decoder, engine)
        self.timing = Timing(started.load_s, 0, 0, 0, 0, 0, 0)

    def _make_engine(self, decoder: Any, engine: EngineConfig) -> Engine:
        defaults = read_generation_config(self.job.directory)
        eos = set(defaults.pop("eos_ids", ())) | set(self.job.config.eos_token_ids)
        self.default_params = SamplingParams(**defaults)
        text = None if self.tokenizer is None else self.tokenizer.detokenizer
        limits = limits_of(self.job, engine, eos_ids=eos, detokenizer=text)
        return Engine(decoder, self._started.cache, self._started.tp, limits)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Continue prompts, texts or lists of token ids → outputs in their order, n for each.

        params: one for all, one for each, or None for the model's generation_config.json.
        Raises ConfigError or OutOfBlocks when a prompt can't be run; then none was started.
        """
        finished: dict[tuple[int, int], Output] = {}
        for output in self.stream(prompts, params):
            if output.finish_reason is not None:
                finished[output.request_id, output.index] = output
        return [finished[key] for key in sorted(finished)]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Output]:
        """Like generate, yielding an output each time it has grown; text never ends in half a
        character. An output that is yielded is extended later: copy what must not change.
        """
        self._refuse_if_broken()
        if not self._in_use.acquire(blocking=False):
            raise AtbDistError(
                "another thread, or a stream that was not read to its end, uses this LLM; give "
                "it all prompts in one call, or make an LLM for each"
            )
        try:
            yield from self._stream(prompts, params)
        finally:
            self._in_use.release()

    def _stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> Iterator[Output]:
        prepared = self._agree(prompts, params)
        begin, before = time.perf_counter(), self._snapshot()
        first_s = 0.0
        ids: list[int] = []
        try:
            if self.rank == 0:
                ids = [self._engine.add(p.ids, p.params, p.text) for p in prepared]
            pending = bool(prepared)
            while pending:
                for output in self._engine.step():
                    first_s = first_s or time.perf_counter() - begin
                    yield output
                pending = self._engine.has_work()
        except GeneratorExit:
            self._drain(ids)
            raise
        except BaseException as error:
            self._give_up(error)
            raise
        self.timing = self._timing(before, first_s)

    def _drain(self, ids: list[int]) -> None:
        """Take back requests whose stream the caller has left, so that the next one is clean."""
        if self._is_launched:
            self._give_up(AtbDistError("a stream was left before its end"))
            return
        for request_id in ids:
            self._engine.cancel(request_id)
        while self._engine.has_work():
            self._engine.step()

    def _agree(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Prepared]:
        """Check the prompts; under a launcher every rank learns rank 0's, or its refusal."""
        refusal: ConfigError | AtbDistError | None = None
        prepared: list[Prepared] = []
        if self.rank == 0:
            try:
                prepared = self.prepare_prompts(prompts, params)
                for each in prepared:
                    self._engine.check(each.ids, each.params)
            except (ConfigError, AtbDistError) as error:
                refusal = error
        if self._is_launched:
            control = self._started.tp.control
            told = control.broadcast_object((refusal, prepared), idle=True)
            refusal, prepared = told
        if refusal is not None:
            raise refusal
        return prepared

    def prepare_prompts(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Prepared]:
        """Tokenise and check prompts against the model, not against memory."""
        return prepare_prompts(self.job, self.tokenizer, prompts, params or self.default_params)

    def share(self, value: T | None) -> T | None:
        """Return rank 0's value on every rank of a launcher, however long rank 0 takes over it."""
        if not self._is_launched:
            return value
        return self._started.tp.control.broadcast_object(value, idle=True)

    def close(self) -> None:
        """End the other ranks and let go of memory. Safe to call twice."""
        workers, self._workers = self._workers, None
        if self._broken is None:
            self._broken = "this LLM is closed"
            if workers is not None:
                try:
                    self._engine.close()
                except AtbDistError:
                    workers.kill()
        self._started.tp.close()
        if workers is not None:
            workers.wait()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse_if_broken(self) -> None:
        if self._broken is not None:
            raise AtbDistError(f"no more calls are possible: {self._broken}")

    def _give_up(self, error: BaseException) -> None:
        """Wake the other ranks with the reason; this object is of no use any more."""
        self._broken = f"{type(error).__name__}: {error}"
        for comm in (self._started.tp.data, self._started.tp.control):
            comm.abort(f"rank {self.rank} failed: {self._broken}")
        if self._workers is not None:
            self._workers.kill()

    def _snapshot(self) -> tuple[Meter, float, float]:
        stream = self._started.tp.stream
        return replace(self._engine.meter), stream.busy_s, stream.exposed_s

    def _timing(self, before: tuple[Meter, float, float], first_s: float) -> Timing:
        meter, busy, exposed = self._snapshot()
        was, busy_was, exposed_was = before

        def rate(tokens: int, seconds: float) -> float:
            return tokens / seconds if seconds > 0 else 0.0

        return Timing(
            load_s=self._started.load_s,
            ttft_ms=first_s * 1e3,
            prefill_tokens_per_s=rate(
                meter.prefill_tokens - was.prefill_tokens, meter.prefill_s - was.prefill_s
            ),
            decode_tokens_per_s=rate(
                meter.decode_tokens - was.decode_tokens, meter.decode_s - was.decode_s
            ),
            compute_s=meter.compute_s - was.compute_s,
            comm_s=busy - busy_was,
            exposed_comm_s=exposed - exposed_was,
        )
