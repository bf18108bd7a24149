"""A multi-rank test as your own project would write it: `pytest test_ranks.py`."""

import pytest
import torch


def sum_of_ranks(comm):
    """Run on every rank; what it returns comes back in rank order."""
    return comm.all_reduce(torch.tensor([float(comm.rank)])).item()


@pytest.mark.ranks(2, 4)
def test_all_reduce(ranks):
    assert ranks.run(sum_of_ranks) == [sum(range(ranks.size))] * ranks.size
