"""`atb-dist chat`: a conversation in the terminal, in the model's own chat template."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from atb_dist.cli.engine_flags import (
    add_engine_flags,
    add_sampling_flags,
    check_before_loading,
    engine_options,
)
from atb_dist.errors import ConfigError

if TYPE_CHECKING:
    from atb_dist.config import SamplingParams
    from atb_dist.llm import LLM

HELP = "talk with a model; an empty line or Ctrl-D ends it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--system", help="what the model is told first")
    add_engine_flags(parser)
    add_sampling_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends. Under a launcher rank 0 reads and prints."""
    options = engine_options(args)
    params = check_before_loading(args, [])
    from atb_dist.engine.prompts import open_tokenizer
    from atb_dist.llm import LLM
    from atb_dist.weights.hub import find_model

    messages = [{"role": "system", "content": args.system}] if args.system else []
    tokenizer = open_tokenizer(find_model(args.model))
    if tokenizer is None:
        raise ConfigError("the checkpoint has no tokenizer.json; chat needs one")
    tokenizer.chat([{"role": "user", "content": "Hello"}])  # no template: said before loading
    with LLM(args.model, tp=args.tp, **options) as llm:
        while (said := llm.share(_read() if llm.rank == 0 else None)) is not None:
            messages.append({"role": "user", "content": said})
            messages.append({"role": "assistant", "content": _answer(llm, messages, params)})
    return 0


def _read() -> str | None:
    """Return the next line; None when the user has ended."""
    try:
        line = input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    return line or None


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str:
    assert llm.tokenizer is not None
    shown = ""
    for output in llm.stream([llm.tokenizer.chat(messages)], params):
        if llm.rank == 0:
            sys.stdout.write(output.text[len(shown) :])
            sys.stdout.flush()
        shown = output.text
    if llm.rank == 0:
        print(flush=True)
    return shown
