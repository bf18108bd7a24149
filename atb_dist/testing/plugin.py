"""The pytest plugin: what `pytest` loads in every project that has atb_dist installed."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known to --strict-markers."""
    config.addinivalue_line("markers", "ranks(*sizes): run the test once for each rank count")
