"""Prompts: what a user gives, as token ids that were checked against the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from atb_dist.config import SamplingParams
from atb_dist.engine.request import check_request
from atb_dist.engine.startup import Job
from atb_dist.errors import ConfigError
from atb_dist.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Prepared:
    """A prompt that was checked: its text where there was one, its ids, how to continue it."""

    text: str | None
    ids: tuple[int, ...]
    params: SamplingParams


def open_tokenizer(directory: Path) -> Tokenizer | None:
    """Return the checkpoint's tokenizer; None when there is none, for prompts of token ids."""
    if any((directory / name).exists() for name in ("tokenizer.json", "tokenizer.model")):
        return Tokenizer.from_dir(directory)
    return None


def prepare_prompts(
    job: Job,
    tokenizer: Tokenizer | None,
    prompts: Prompt | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams],
) -> list[Prepared]:
    """Tokenise prompts and check them against the model's limits.

    Raises ConfigError.
    """
    is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    every = cast(list[Prompt], [prompts] if is_one else list(prompts))
    given = [params] * len(every) if isinstance(params, SamplingParams) else list(params)
    if len(given) != len(every):
        raise ConfigError(f"{len(every)} prompts came with {len(given)} SamplingParams")
    prepared = []
    for prompt, how in zip(every, given, strict=True):
        text, ids = _encode(tokenizer, prompt)
        check_request(
            ids, how, vocab_size=job.config.vocab_size, max_model_len=job.max_model_len,
            max_num_seqs=max(how.n, 1),
        )  # fmt: skip
        prepared.append(Prepared(text, tuple(ids), how))
    return prepared


def _encode(tokenizer: Tokenizer | None, prompt: Prompt) -> tuple[str | None, list[int]]:
    if not isinstance(prompt, str):
        return (None if tokenizer is None else tokenizer.decode(prompt)), list(prompt)
    if not prompt:
        raise ConfigError("the prompt is empty; give at least one character")
    if tokenizer is None:
        raise ConfigError("the checkpoint has no tokenizer.json; give prompts as token ids")
    return prompt, tokenizer.encode(prompt)
