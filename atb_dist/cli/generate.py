"""`atb-dist generate`: continue prompts with a model over one or more ranks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atb_dist.cli.engine_flags import (
    add_engine_flags,
    add_sampling_flags,
    check_before_loading,
    engine_options,
)
from atb_dist.errors import ConfigError

if TYPE_CHECKING:
    from atb_dist.config import SamplingParams
    from atb_dist.engine.request import Output
    from atb_dist.llm import LLM

HELP = "continue prompts; alone, or on every rank of a launcher"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("text", nargs="*", metavar="PROMPT", help="the same as --prompt")
    parser.add_argument("--prompt", action="append", default=[], help="may be repeated")
    parser.add_argument("--prompt-file", type=Path, help="one prompt: the whole file")
    parser.add_argument(
        "--prompt-ids", action="append", default=[], metavar="1,2,3", help="token ids"
    )
    add_engine_flags(parser)
    add_sampling_flags(parser)
    parser.add_argument("--logprobs", type=int, metavar="K", help="with --json: the K best as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--stream", action="store_true", help="print text as it comes")
    parser.add_argument("--stats", action="store_true", help="print rates to stderr at the end")


def run(args: argparse.Namespace) -> int:
    """Check everything, load, generate; rank 0 prints."""
    if args.json and args.stream:
        raise ConfigError("--json prints one object at the end; leave out --stream")
    prompts = read_prompts(args)
    options = engine_options(args)
    params = check_before_loading(args, prompts)
    from atb_dist.llm import LLM

    with LLM(args.model, tp=args.tp, **options) as llm:
        if args.stream:
            _stream(llm, prompts, params)
        else:
            outputs = llm.generate(prompts, params)
            if llm.rank == 0:
                print(to_json(llm, outputs) if args.json else to_text(outputs), flush=True)
        if args.stats and llm.rank == 0:
            print(stats(llm), file=sys.stderr, flush=True)
    return 0


def read_prompts(args: argparse.Namespace) -> list[str | list[int]]:
    """Return the prompts of all flags, texts first.

    Raises ConfigError when there are none or one can't be read.
    """
    prompts: list[str | list[int]] = [*args.text, *args.prompt]
    if args.prompt_file is not None:
        try:
            prompts.append(args.prompt_file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompt-file {args.prompt_file} can't be read: {error}") from error
    for text in args.prompt_ids:
        try:
            prompts.append([int(part) for part in text.split(",")])
        except ValueError:
            raise ConfigError(f"--prompt-ids {text!r} is not a list like 1,2,3") from None
    if not prompts:
        raise ConfigError("no prompt was given; use --prompt, --prompt-file or --prompt-ids")
    return prompts


def _stream(llm: LLM, prompts: Sequence[str | list[int]], params: SamplingParams) -> None:
    """Print outputs one after the other, the current one as it grows; others wait their turn."""
    growing: dict[tuple[int, int], Output] = {}
    ended = 0
    shown = 0
    for output in llm.stream(prompts, params):
        growing[output.request_id, output.index] = output
        while llm.rank == 0 and ended < len(growing):
            current = growing[sorted(growing)[ended]]
            text = (current.prompt or "") + (current.text or "")
            sys.stdout.write(text[shown:])
            shown = len(text)
            if current.finish_reason is None:
                break
            sys.stdout.write("\n\n" if ended + 1 < len(prompts) * params.n else "\n")
            ended, shown = ended + 1, 0
        sys.stdout.flush()


def to_text(outputs: Sequence[Output]) -> str:
    """Return prompts with their continuations, a line between."""
    return "\n\n".join(f"{o.prompt or ''}{o.text or o.token_ids}" for o in outputs)


def to_json(llm: LLM, outputs: Sequence[Output]) -> str:
    """Return the run as one JSON object. Numbers are printed so that they read back exactly."""
    return json.dumps(
        {
            "outputs": [_output(o) for o in outputs],
            "timing": asdict(llm.timing),
            "tp": llm.tp,
            "backend": llm.backend,
        }
    )


def _output(output: Output) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prompt": output.prompt,
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
    }
    if output.logprobs:
        found["logprobs"] = [
            {"token_id": token, "logprob": value, "top": {str(k): v for k, v in top.items()}}
            for token, value, top in zip(
                output.token_ids, output.logprobs, output.top_logprobs, strict=True
            )
        ]
    return found


def stats(llm: LLM) -> str:
    """Return rates and the share of communication in one line."""
    timing = llm.timing
    total = timing.compute_s + timing.exposed_comm_s
    share = timing.exposed_comm_s / total if total > 0 else 0.0
    return (
        f"[{llm.tp} ranks over {llm.backend}: loaded in {timing.load_s:.2f} s, first token after "
        f"{timing.ttft_ms:.0f} ms, {timing.decode_tokens_per_s:.1f} tokens/s, {share:.0%} of the "
        "time in communication]"
    )
