"""Continue prompts with a model split over ranks: `python generate.py [MODEL]`.

Plain start: this process and one it starts hold half the model each. Under torchrun, mpirun or
`atb-dist launch` the ranks that were started are used, and tp is their number.
"""

import sys
from pathlib import Path

from atb_dist import LLM, SamplingParams
from atb_dist.comm import RankInfo

BARD = Path(__file__).parent / "models" / "bard"


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else str(BARD)
    rank = RankInfo.from_env()
    with LLM(model, tp=2 if rank.size == 1 else rank.size) as llm:
        params = SamplingParams(max_tokens=40)
        outputs = llm.generate(["ROMEO.", "The king is"], params)
    if rank.rank == 0:
        for output in outputs:
            print(f"{output.prompt!r} -> {output.text!r}")


if __name__ == "__main__":
    main()
