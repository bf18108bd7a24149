"""Requests, the sequences they consist of, and what is told about them. Imports no torch."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from atb_dist.config import SamplingParams
from atb_dist.errors import ConfigError

TokenLogprobs = dict[int, float]


def check_request(
    prompt: Seq[int], params: SamplingParams, *, vocab_size: int, max_model_len: int,
    max_num_seqs: int,
) -> None:  # fmt: skip
    """Refuse a request that can't be run, whatever memory there is.

    Raises ConfigError.
    """
    if not prompt:
        raise ConfigError("the prompt is empty; give at least one token")
    wrong = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise ConfigError(
            f"token id {wrong} is out of range; the vocabulary has ids 0 to {vocab_size - 1}"
        )
    if len(prompt) >= max_model_len:
        raise ConfigError(
            f"the prompt has {len(prompt)} tokens; with max_model_len={max_model_len} at most "
            f"{max_model_len - 1} fit"
        )
    if params.n > max_num_seqs:
        raise ConfigError(f"n={params.n} exceeds max_num_seqs={max_num_seqs}; raise the latter")


@dataclass(frozen=True)
class Request:
    """A prompt to be continued params.n times."""

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    text: str | None = None  # the prompt as the user gave it


@dataclass(frozen=True)
class Sampled:
    """What rank 0 decided for one sequence in one step. Every rank acts on this alone.

    text is what the token adds to the visible text: it may be empty, or end an earlier part.
    finish_reason: "stop", "length", or None to go on.
    """

    token: int
    finish_reason: str | None
    text: str = ""
    logprob: float | None = None
    top_logprobs: TokenLogprobs | None = None


@dataclass
class Output:
    """One continuation. token_ids end with the token that finished it, text before it."""

    request_id: int
    index: int
    prompt_ids: tuple[int, ...]
    prompt: str | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def extend(self, sampled: Sampled) -> None:
        """Append what a step gave."""
        self.token_ids.append(sampled.token)
        self.text += sampled.text
        self.finish_reason = sampled.finish_reason
        if sampled.logprob is not None:
            self.logprobs.append(sampled.logprob)
            self.top_logprobs.append(sampled.top_logprobs or {})


class Sequence:
    """One continuation under way: its tokens, how many have K and V, and in which blocks.

    Continuation 0 stands for all n until the prompt is done and they part (`is_whole`).
    """

    def __init__(self, request: Request, index: int, tokens: list[int], *, is_whole: bool):
        self.request = request
        self.index = index
        self.tokens = tokens
        self.num_computed = 0
        self.table: list[int] = []
        self.is_whole = is_whole
        self._keys: list[bytes] = []

    @property
    def slots(self) -> int:
        """How many sequences this will be."""
        return self.request.params.n if self.is_whole else 1

    @property
    def num_pending(self) -> int:
        """Tokens without K and V."""
        return len(self.tokens) - self.num_computed

    def block_keys(self, block_size: int, count: int) -> list[bytes]:
        """Return the names of the first `count` full blocks: each depends on all tokens so far."""
        while len(self._keys) < count:
            first = len(self._keys) * block_size
            before = self._keys[-1] if self._keys else b""
            words = array("q", self.tokens[first : first + block_size]).tobytes()
            self._keys.append(hashlib.blake2b(before + words, digest_size=16).digest())
        return self._keys[:count]
