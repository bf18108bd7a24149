"""`bench decode`: tokens per second at batch 1, beside transformers and the memory's limit."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atb_dist.bench.bandwidth import read_bytes_per_s
from atb_dist.bench.random_model import SIZES, streamed_parameters, write_random_model
from atb_dist.config import DTYPE_BYTES, SamplingParams
from atb_dist.errors import AtbDistError
from atb_dist.llm import LLM

TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class DecodeBench:
    """What is measured: `new` tokens after a prompt of `prompt` random ids, `rounds` times."""

    size: str = "246M"
    tp: int = 2
    threads: int = 1
    dtype: str = "fp32"
    prompt: int = 32
    new: int = 33
    rounds: int = 5
    peer: bool = True
    directory: Path | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table: medians with the worst and best round."""

    name: str
    decode_tokens_per_s: tuple[float, float, float]
    prefill_tokens_per_s: tuple[float, float, float]
    share_of_limit: float


def run(bench: DecodeBench) -> dict[str, Any]:
    """Measure in alternating rounds; return the table as plain data.

    Raises AtbDistError when the peer ends early.
    """
    with tempfile.TemporaryDirectory() as scratch:
        model = write_random_model(bench.directory or Path(scratch), bench.size, bench.dtype)
        return _measure(bench, model)


def _measure(bench: DecodeBench, model: Path) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    generator = random.Random(1)
    ids = [generator.randrange(3, SIZES[bench.size]["vocab_size"]) for _ in range(bench.prompt)]
    limits, ours, theirs = [], [], []
    peer = _Peer(model, cores, bench.dtype) if bench.peer else None
    with LLM(str(model), tp=bench.tp, threads=bench.threads, dtype=bench.dtype,
             max_model_len=bench.prompt + bench.new) as llm:  # fmt: skip
        for _ in range(bench.rounds + 1):  # the first round warms up and is dropped
            limits.append(read_bytes_per_s(cores))
            ours.append(_ours(llm, ids, bench.new))
            if peer is not None:
                theirs.append(peer.measure(ids, bench.new))
    if peer is not None:
        peer.close()
    limit = statistics.median(limits[1:])
    token_bytes = streamed_parameters(SIZES[bench.size]) * DTYPE_BYTES[bench.dtype]
    rows = [_row(f"atb_dist tp={bench.tp} x {bench.threads} threads", ours[1:], bench, limit)]
    if theirs:
        rows.append(_row(f"transformers eager x {cores} threads", theirs[1:], bench, limit))
    return {
        "bench": {**asdict(bench), "directory": None},
        "read_gb_per_s": limit / 1e9,
        "bytes_per_token": token_bytes,
        "limit_tokens_per_s": limit / token_bytes,
        "rows": [asdict(row) for row in rows],
        "comm_share": statistics.median(r["comm_share"] for r in ours[1:]),
        "same_tokens": not theirs or ours[-1]["ids"] == theirs[-1]["ids"],
    }


def _ours(llm: LLM, ids: list[int], new: int) -> dict[str, Any]:
    params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
    output = llm.generate([ids], params)[0]
    timing = llm.timing
    prefill_s = len(ids) / timing.prefill_tokens_per_s
    decode_s = (new - 1) / timing.decode_tokens_per_s
    share = timing.exposed_comm_s / max(timing.compute_s + timing.exposed_comm_s, 1e-9)
    return {
        "ids": list(output.token_ids),
        "prefill_s": prefill_s,
        "decode_s": decode_s,
        "comm_share": share,
    }


def _row(name: str, rounds: list[dict[str, Any]], bench: DecodeBench, limit: float) -> Row:
    token_bytes = streamed_parameters(SIZES[bench.size]) * DTYPE_BYTES[bench.dtype]
    decode = _spread([(bench.new - 1) / r["decode_s"] for r in rounds])
    prefill = _spread([bench.prompt / r["prefill_s"] for r in rounds])
    return Row(name, decode, prefill, decode[0] * token_bytes / limit)


def _spread(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def table(result: dict[str, Any]) -> str:
    """Return the result of `run` as text."""
    lines = [
        f"random {result['bench']['size']} {result['bench']['dtype']}, batch 1, "
        f"{result['bench']['new'] - 1} tokens after {result['bench']['prompt']}, "
        f"{result['bench']['rounds']} alternating rounds: median [worst-best]",
        f"{'':34} {'decode tok/s':>22} {'prefill tok/s':>22}  of the read limit",
    ]
    for row in result["rows"]:
        decode, prefill = (
            "{:.1f} [{:.1f}-{:.1f}]".format(*row[key])
            for key in ("decode_tokens_per_s", "prefill_tokens_per_s")
        )
        lines.append(f"{row['name']:34} {decode:>22} {prefill:>22}  {row['share_of_limit']:.0%}")
    rates = [row["decode_tokens_per_s"][0] for row in result["rows"]]
    lines.append(
        f"read limit {result['read_gb_per_s']:.1f} GB/s = {result['limit_tokens_per_s']:.1f} tok/s"
        f" at {result['bytes_per_token'] / 1e6:.0f} MB a token; time in communication "
        f"{result['comm_share']:.1%}"
    )
    if len(rates) == 2:
        same = "the same tokens" if result["same_tokens"] else "OTHER TOKENS"
        lines.append(f"{rates[0] / rates[1]:.2f} x transformers, {same}")
    return "\n".join(lines)


class _Peer:
    """transformers in its own process, asked by lines."""

    def __init__(self, model: Path, threads: int, dtype: str):
        command = [sys.executable, "-m", "atb_dist.bench.transformers_peer", str(model)]
        command += ["--threads", str(threads), "--dtype", TORCH_NAMES[dtype]]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def measure(self, ids: list[int], new: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ids": ids, "new": new}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AtbDistError("the transformers process ended; run with --no-peer to go without")
        answer: dict[str, Any] = json.loads(line)
        return answer
