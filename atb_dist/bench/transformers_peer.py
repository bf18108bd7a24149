"""The peer of `bench decode`: transformers, eager, in a process of its own.

Reads one JSON line `{"ids": [...], "new": n}` per measurement from stdin and answers with one
JSON line `{"ids": [...], "prefill_s": x, "decode_s": y}` on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from typing import Any

import torch


def main() -> None:
    """Serve measurements until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", FutureWarning)  # the peer's own business
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation="sdpa"
    )
    model.eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        print(json.dumps(measure(model, task["ids"], task["new"])), flush=True)


@torch.inference_mode()
def measure(model: Any, ids: list[int], new: int) -> dict[str, Any]:
    """Decode greedily with the model's own forward: generate() adds a few percent to it."""
    from transformers import DynamicCache

    cache = DynamicCache()
    begin = time.perf_counter()
    logits = model(torch.tensor([ids]), use_cache=True, past_key_values=cache, logits_to_keep=1)
    token = logits.logits[:, -1:].argmax(-1)
    first = time.perf_counter()
    tokens = [int(token)]
    while len(tokens) < new:
        token = model(token, use_cache=True, past_key_values=cache).logits[:, -1:].argmax(-1)
        tokens.append(int(token))
    end = time.perf_counter()
    return {"ids": tokens, "prefill_s": first - begin, "decode_s": end - first}


if __name__ == "__main__":
    main()
