"""Use the communication layer alone: `atb-dist launch -n 4 -- python all_reduce.py`."""

import torch

from atb_dist.comm import RankInfo, connect


def main() -> None:
    rank = RankInfo.from_env()
    comm = connect(rank)
    mine = torch.full((5,), float(comm.rank + 1))
    total = comm.all_reduce(mine.clone())
    everyone = comm.all_gather(mine)
    if comm.rank == 0:
        print(f"{comm.name}, {comm.size} ranks: sum {total.tolist()}, gathered {everyone.tolist()}")
    comm.close()


if __name__ == "__main__":
    main()
