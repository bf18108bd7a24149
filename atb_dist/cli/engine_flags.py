"""The flags that `generate` and `chat` share: the engine's and the sampler's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atb_dist.config import BACKENDS, LOG_LEVELS, EngineConfig, SamplingParams
from atb_dist.errors import ConfigError


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what LLM takes, with EngineConfig's defaults."""
    parser.add_argument("--model", required=True, metavar="DIR|org/name")
    parser.add_argument("--tp", type=int, help="ranks; under a launcher: those it started")
    parser.add_argument("--dtype", default="auto", help="auto, fp32, bf16 or fp16")
    parser.add_argument("--kv-dtype", default="auto", help="auto (as --dtype), fp32, bf16 or fp16")
    parser.add_argument("--backend", default="auto", help=f"one of {', '.join(BACKENDS)}")
    parser.add_argument("--max-model-len", type=int, help="tokens; default: the model's limit")
    parser.add_argument("--max-num-seqs", type=int, default=EngineConfig.max_num_seqs)
    parser.add_argument("--max-batched-tokens", type=int, default=EngineConfig.max_batched_tokens)
    parser.add_argument("--block-size", type=int, default=EngineConfig.block_size)
    parser.add_argument("--kv-memory", type=int, metavar="BYTES", help="of each rank")
    parser.add_argument("--threads", type=int, help="of each rank; default: CPUs / local ranks")
    parser.add_argument("--log-level", default=EngineConfig.log_level, help=", ".join(LOG_LEVELS))
    parser.add_argument("--timeout", type=float, metavar="S", help="of every wait; default 300")


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Declare SamplingParams; what is not given comes from generation_config.json."""
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float, help="0: greedy")
    parser.add_argument("--top-k", type=int, help="0: off")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--min-p", type=float)
    parser.add_argument("--repetition-penalty", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument(  # torchrun takes --n for an abbreviation of its own flags
        "--num-outputs", "--n", dest="n", type=int, help="continuations of each prompt"
    )
    parser.add_argument("--stop", action="append", help="text that ends the output; repeatable")
    parser.add_argument("--ignore-eos", action="store_true", default=None)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return EngineConfig's fields but tp, checked.

    Raises ConfigError.
    """
    from atb_dist.comm import resolve_timeout

    options: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("dtype", "kv_dtype", "backend", "max_model_len", "max_num_seqs",
                     "max_batched_tokens", "block_size", "kv_memory", "threads", "log_level")
    }  # fmt: skip
    options["timeout_s"] = resolve_timeout(args.timeout)
    EngineConfig(tp=args.tp, **options)
    return options


def sampling(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """Return the model's defaults with what the flags say.

    Raises ConfigError for values out of range.
    """
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed",
             "n", "stop", "ignore_eos", "logprobs")  # fmt: skip
    given = {name: getattr(args, name, None) for name in names}
    return replace(defaults, **{name: v for name, v in given.items() if v is not None})


def check_before_loading(
    args: argparse.Namespace, prompts: Sequence[str | Sequence[int]]
) -> SamplingParams:
    """Check model, cut, prompts and sampling on this process alone, before ranks meet.

    Raises ConfigError or ShardingError.
    """
    from atb_dist.comm import RankInfo
    from atb_dist.engine.prompts import open_tokenizer, prepare_prompts
    from atb_dist.engine.startup import prepare
    from atb_dist.tokenizer import read_generation_config
    from atb_dist.weights.hub import find_model

    directory = find_model(args.model)
    defaults = read_generation_config(directory)
    defaults.pop("eos_ids", None)
    params = sampling(args, SamplingParams(**defaults))
    rank = RankInfo.from_env()
    if rank.size > 1 and args.tp not in (None, rank.size):
        raise ConfigError(f"--tp {args.tp}, but the launcher started {rank.size} ranks")
    engine = EngineConfig(tp=args.tp, **engine_options(args))
    job = prepare(directory, engine, rank.size if rank.size > 1 else args.tp or 1, rank.rank)
    if prompts:
        prepare_prompts(job, open_tokenizer(directory), prompts, params)
    return params
