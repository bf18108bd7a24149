"""`atb-dist plan`: what a model costs each rank, without reading a weight."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from atb_dist.config import parse_dtype
from atb_dist.errors import ConfigError
from atb_dist.weights.budget import Budget, budget

HELP = "show bytes per rank, KV cache and communication of a model cut over N ranks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--model", required=True, metavar="DIR|config.json")
    parser.add_argument("--tp", type=int, required=True, metavar="N")
    parser.add_argument("--dtype", default="auto", help="of the weights; auto: the checkpoint's")
    parser.add_argument("--kv-dtype", default="auto", help="of the KV cache; auto: the weights'")
    parser.add_argument("--max-model-len", type=int, help="tokens; default: the model's limit")
    parser.add_argument("--block-size", type=int, default=16, help="tokens of a KV block")
    parser.add_argument("--device-memory-gb", type=float, metavar="GB", help="of each card, in 1e9")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Print the budget; exit 1 when the weights do not fit the given memory."""
    from atb_dist.models import read_model

    for name in ("tp", "max_model_len", "block_size", "device_memory_gb"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} {value} is out of range; use a number > 0")
    family, config = read_model(args.model)
    dtype = parse_dtype(args.dtype, flag="--dtype")
    dtype = config.dtype if dtype == "auto" else dtype
    kv_dtype = parse_dtype(args.kv_dtype, flag="--kv-dtype")
    memory = None if args.device_memory_gb is None else int(args.device_memory_gb * 1e9)
    found = budget(
        family, config, args.tp, dtype=dtype, kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
        max_model_len=args.max_model_len or config.max_position, device_memory_bytes=memory,
        block_size=args.block_size,
    )  # fmt: skip
    if args.json:
        print(json.dumps({**asdict(found), "sequences": found.sequences}))
    else:
        print(text(found, f"{config.model_type}, {config.num_layers} layers, {dtype}"))
    return 1 if memory is not None and max(found.weight_bytes) > memory else 0


def text(found: Budget, model: str) -> str:
    """Return the budget as a table, one line per rank, and what a step sends."""
    lines = [f"{model}, tp={found.tp}", "rank  heads  kv heads      weights  KV per token"]
    rows = zip(
        found.heads, found.kv_heads, found.weight_bytes, found.kv_bytes_per_token, strict=True
    )
    lines += [
        f"{rank:>4}  {heads:>5}  {kv_heads:>8}  {size(weights):>11}  {size(kv):>12}"
        for rank, (heads, kv_heads, weights, kv) in enumerate(rows)
    ]
    if found.blocks is not None and found.block_memory_bytes is not None:
        lines.append(
            f"KV cache: {found.blocks} blocks of {found.block_size} tokens fit beside the weights "
            f"({size(found.block_memory_bytes)}), {found.sequences} sequences of "
            f"{found.max_model_len} tokens"
        )
    lines.append(
        f"one step: {found.all_reduces} all-reduces, {size(found.all_reduce_bytes)} a decoded or "
        f"prefilled token, and {size(found.logit_bytes)} of logits a sequence"
    )
    equal = "the same bits as at tp=1" if found.bit_equal_across_tp else "not bit-equal across tp"
    lines.append(f"results: {equal}")
    return "\n".join(lines)


def size(count: int) -> str:
    """Return bytes in decimal units, three digits."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"
