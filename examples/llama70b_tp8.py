"""Run the LLaMA-2-70B shape over 8 ranks: true widths, 2 of its 80 layers, random bf16 weights.

`python llama70b_tp8.py [DIR] [SIZE]` writes the checkpoint into DIR (4.5 GB; a temporary place
when not given), prints the budget of the 80-layer model on 8 cards of 64 GB, and generates.
"""

import json
import sys
import tempfile
from pathlib import Path

from atb_dist import LLM, SamplingParams
from atb_dist.bench.random_model import write_random_model
from atb_dist.cli import main as atb_dist


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        size = sys.argv[2] if len(sys.argv) > 2 else "70B-2layers"
        model = write_random_model(directory, size, "bf16")
        config = json.loads((model / "config.json").read_text())
        whole = directory / "80-layers.json"
        whole.write_text(json.dumps({**config, "num_hidden_layers": 80}))
        atb_dist(["plan", "--model", str(whole), "--tp", "8", "--device-memory-gb", "64"])
        with LLM(str(model), tp=8, max_model_len=64) as llm:
            params = SamplingParams(max_tokens=8, ignore_eos=True)
            print(llm.generate([[1, 2, 3, 4]], params)[0].token_ids)


if __name__ == "__main__":
    main()
