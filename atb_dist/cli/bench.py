"""`atb-dist bench`: measurements, each printed beside a peer or a limit of the same run."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

from atb_dist.errors import ConfigError

HELP = "measure this host, beside a peer and the machine's limit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one subcommand per measurement."""
    benches = parser.add_subparsers(metavar="WHAT", required=True)
    decode = benches.add_parser("decode", help="tokens per second at batch 1 of a random model")
    decode.add_argument("--random", default="246M", metavar="SIZE", dest="size")
    decode.add_argument("--tp", type=int, default=2)
    decode.add_argument("--threads", type=int, default=1, help="threads of each rank")
    decode.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    decode.add_argument("--prompt", type=int, default=32, help="prompt length in tokens")
    decode.add_argument("--tokens", type=int, default=32, help="tokens timed after the first")
    decode.add_argument("--rounds", type=int, default=5)
    decode.add_argument("--no-peer", action="store_true", help="do not run transformers beside")
    decode.add_argument("--keep", type=Path, metavar="DIR", help="keep the random model there")
    decode.add_argument("--json", action="store_true")
    decode.set_defaults(measure=_decode)
    _add_matmul(benches.add_parser("matmul", help="linear for every type of weight beside torch"))
    _add_all_reduce(benches.add_parser("all-reduce", help="lcal beside gloo and MPI"))


def _add_matmul(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes", default="5632x1024,1024x2816,4096x4096", help="outputs x inputs"
    )
    parser.add_argument("--rows", default="1,8,512", help="rows of x, comma-separated")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each line")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(measure=_matmul)


def _add_all_reduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", help="bytes, comma-separated; default 1 KiB to 64 MiB")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--vs", default="gloo,mpi", help="peers, comma-separated: gloo, mpi")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="per size and round")
    parser.add_argument("--in-situ", action="store_true", help="stream weights between calls")
    parser.add_argument("--rewrite", action="store_true", help="write the tensor before each call")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(measure=_all_reduce)


def run(args: argparse.Namespace) -> int:
    """Run the chosen measurement."""
    return int(args.measure(args))


def _decode(args: argparse.Namespace) -> int:
    for name in ("tp", "threads", "prompt", "tokens", "rounds"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} {getattr(args, name)} is out of range; use >= 1")
    if not args.no_peer and importlib.util.find_spec("transformers") is None:
        raise ConfigError("the peer is not installed: pip install 'atb_dist[hf]' or use --no-peer")
    from atb_dist.bench import decode

    result = decode.run(
        decode.DecodeBench(
            size=args.size, tp=args.tp, threads=args.threads, dtype=args.dtype, prompt=args.prompt,
            new=args.tokens + 1, rounds=args.rounds, peer=not args.no_peer, directory=args.keep,
        )
    )  # fmt: skip
    print(json.dumps(result, default=str) if args.json else decode.table(result))
    return 0


def _all_reduce(args: argparse.Namespace) -> int:
    from atb_dist.bench import all_reduce

    peers = tuple(name for name in args.vs.split(",") if name)
    unknown = set(peers) - set(all_reduce.PEERS)
    if unknown:
        raise ConfigError(f"--vs {args.vs}: {', '.join(unknown)} is unknown; use gloo, mpi")
    if args.ranks < 1 or args.rounds < 1 or not args.seconds > 0:
        raise ConfigError("--ranks and --rounds must be >= 1, --seconds > 0")
    sizes = all_reduce.AllReduceBench.sizes
    if args.sizes:
        if not all(text.isdigit() and int(text) > 0 for text in args.sizes.split(",")):
            raise ConfigError(f"--sizes {args.sizes} is not a list of bytes; use e.g. 1024,65536")
        sizes = tuple(int(text) for text in args.sizes.split(","))
    result = all_reduce.run(
        all_reduce.AllReduceBench(
            ranks=args.ranks, sizes=sizes, dtype=args.dtype, peers=peers, rounds=args.rounds,
            seconds=args.seconds, in_situ=args.in_situ, rewrite=args.rewrite,
        )
    )  # fmt: skip
    print(json.dumps(result) if args.json else all_reduce.table(result))
    return 0


def _matmul(args: argparse.Namespace) -> int:
    try:
        pairs = [[int(n) for n in shape.split("x")] for shape in args.shapes.split(",")]
        shapes = [(outputs, features) for outputs, features in pairs]
        rows = [int(n) for n in args.rows.split(",")]
    except ValueError:
        raise ConfigError(
            f"--shapes {args.shapes} or --rows {args.rows} is not understood; "
            "use e.g. --shapes 4096x4096,1024x2816 --rows 1,512"
        ) from None
    if min(args.threads, *rows, *(n for shape in shapes for n in shape)) < 1:
        raise ConfigError("--shapes, --rows and --threads must be at least 1")
    from atb_dist.bench import matmul

    found = matmul.run(shapes, rows, threads=args.threads, seconds=args.seconds)
    if args.json:
        print(json.dumps(matmul.as_json(found)))
    else:
        print(matmul.as_table(found, threads=args.threads))
    return 0
