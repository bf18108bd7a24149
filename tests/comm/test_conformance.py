"""One body for every back end and rank count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bodies
import pytest

from atb_dist.comm.local import LocalComm


@pytest.mark.parametrize("body", bodies.BODIES, ids=lambda b: b.__name__)
def test_local(body: Callable[..., None]) -> None:
    body(LocalComm())


@pytest.mark.ranks(1, 2, 3, 4, 8)
@pytest.mark.parametrize("backend", ["lcal"])
@pytest.mark.parametrize("body", bodies.BODIES, ids=lambda b: b.__name__)
def test_back_end(ranks: Any, backend: str, body: Callable[..., None]) -> None:
    ranks.run(body, backend=backend)
