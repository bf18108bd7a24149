"""Choosing implementations: registration, preference, overrides, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from atb_dist import ops
from atb_dist.errors import ConfigError
from atb_dist.ops import registry


@pytest.fixture
def double() -> Iterator[registry.Op]:
    """An operator of our own, gone after the test."""

    @ops.register_op("double", impl="reference")
    def reference(x: Tensor, *, times: int = 1) -> Tensor:
        return x * 2**times

    yield registry.op("double")
    del registry._ops["double"]


def test_the_latest_implementation_that_takes_the_arguments_serves(double: registry.Op) -> None:
    @ops.register_op(
        "double", impl="whole", device="cpu", when=lambda x, **_: x.dtype == torch.int64
    )
    def whole(x: Tensor, *, times: int = 1) -> Tensor:
        return x * 0 - times

    assert double(torch.tensor([3]), times=2).item() == -2
    assert double(torch.tensor([3.0]), times=2).item() == 12
    assert [i.name for i in ops.implementations("double")] == ["whole", "reference"]
    with ops.override("double=reference"):
        assert double(torch.tensor([3]), times=2).item() == 12
        row = next(r for r in ops.table() if r.op == "double")
        assert row.implementations == ("reference",)
        assert row.overridden
    with ops.override("double=whole"), pytest.raises(ValueError, match="no implementation takes"):
        double(torch.tensor([3.0]))
    assert double(torch.tensor([3])).item() == -1


def test_an_implementation_of_another_device_does_not_serve(double: registry.Op) -> None:
    @ops.register_op("double", impl="npu", device="npu")
    def npu(x: Tensor, *, times: int = 1) -> Tensor:
        raise AssertionError(f"called for {x} {times}")

    assert double(torch.tensor([3])).item() == 6


@pytest.mark.parametrize(
    "function",
    [
        lambda x, *, time=1: x * time,
        lambda x, *, times=2: x * times,
        lambda x, times=1: x * times,
        lambda x, y, *, times=1: x * y * times,
    ],
)
def test_another_signature_is_refused(double: registry.Op, function: object) -> None:
    with pytest.raises(ConfigError, match="has signature"):
        ops.register_op("double", impl="odd", device="cpu")(function)  # type: ignore[type-var]
    assert len(double.implementations) == 1


def test_a_name_is_registered_once(double: registry.Op) -> None:
    with pytest.raises(ConfigError, match="already has"):
        ops.register_op("double", impl="reference")(double.implementations[0].run)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rms_nrom=reference", "names no operator.*rms_norm"),
        ("rms_norm", "has no ''; it has simd, reference"),
        ("rms_norm=avx9", "has no 'avx9'; it has simd, reference"),
        ("linear=reference,rms_norm=x", "has no 'x'"),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refusal, ops.override(text):
        pass
    assert "\n" not in str(refusal.value)
    assert not any(row.overridden for row in ops.table())


def test_the_environment_overrides_and_is_checked() -> None:
    code = "from atb_dist import ops; print([r.op for r in ops.table() if r.overridden])"

    def run(value: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ATB_DIST_OPS": value}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert run("linear=reference, swiglu=reference").stdout.strip() == "['linear', 'swiglu']"
    assert "ConfigError: ATB_DIST_OPS: linear has no 'fast'" in run("linear=fast").stderr


def test_unknown_operators_have_no_implementations() -> None:
    with pytest.raises(ConfigError, match="no operator 'nothing'"):
        ops.implementations("nothing")


def test_thread_counts_are_checked() -> None:
    before = ops.num_threads()
    for count in (0, -1, 4096):
        with pytest.raises(ValueError, match="give 1 to 1024"):
            ops.set_num_threads(count)
    assert ops.num_threads() == before
