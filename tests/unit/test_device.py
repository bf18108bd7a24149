"""Streams keep order, carry results and errors, and count their time."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from atb_dist import device
from atb_dist.device import CpuStream, Device, DeviceStream
from atb_dist.errors import ConfigError


@pytest.fixture
def stream() -> Any:
    made = CpuStream()
    yield made
    made.close()


def test_work_runs_in_the_order_it_was_given(stream: CpuStream) -> None:
    done: list[int] = []

    def slow(number: int) -> int:
        time.sleep(0.01 * (number == 0))
        done.append(number)
        return number

    events = [stream.submit(slow, i) for i in range(5)]
    assert stream.run(slow, 5) == 5, "run waits for what was submitted"
    assert done == [0, 1, 2, 3, 4, 5]
    assert [event.wait() for event in events] == [0, 1, 2, 3, 4]


def test_run_is_inline_when_nothing_is_in_flight(stream: CpuStream) -> None:
    here = threading.get_ident()
    assert stream.run(threading.get_ident) == here
    event = stream.submit(threading.get_ident)
    assert event.wait() != here
    assert stream.run(threading.get_ident) == here


def test_an_error_reaches_whoever_waits_and_the_stream_lives_on(stream: CpuStream) -> None:
    def fail() -> None:
        raise ValueError("broken")

    event = stream.submit(fail)
    after = stream.submit(lambda: "fine")
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            event.wait()
    assert after.wait() == "fine"
    with pytest.raises(ValueError, match="broken"):
        stream.run(fail)


def test_hidden_work_counts_as_busy_and_not_as_exposed(stream: CpuStream) -> None:
    event = stream.submit(time.sleep, 0.05)
    while not event.is_done():  # the caller is busy with something else
        time.sleep(0.001)
    event.wait()
    assert stream.busy_s >= 0.05
    assert stream.exposed_s < stream.busy_s
    before = stream.exposed_s
    stream.run(time.sleep, 0.02)
    assert stream.exposed_s - before >= 0.02, "inline work is exposed"


def test_close_finishes_what_was_submitted() -> None:
    made = CpuStream()
    event = made.submit(time.sleep, 0.02)
    made.close()
    assert event.is_done()
    made.close()


class FakeStream:
    """A device stream that writes down what is asked of it."""

    def __init__(self, log: list[str]):
        self.log = log

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append("wait_stream")

    def record_event(self) -> str:
        self.log.append("record_event")
        return "event"

    def wait_event(self, event: str) -> None:
        self.log.append(f"wait_{event}")

    def synchronize(self) -> None:
        self.log.append("synchronize")


class FakeBackend:
    """What DeviceStream uses of torch.npu."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = FakeStream(self.log)

    def Stream(self) -> FakeStream:
        return FakeStream(self.log)

    def current_stream(self) -> FakeStream:
        return self.current

    def stream(self, _stream: FakeStream) -> Any:
        log = self.log

        class On:
            def __enter__(self) -> None:
                log.append("enter")

            def __exit__(self, *_error: object) -> None:
                log.append("exit")

        return On()


def test_a_device_stream_orders_both_ways_and_never_blocks_the_host() -> None:
    backend: Any = FakeBackend()
    made = DeviceStream(backend)
    event = made.submit(lambda x: x + 1, 41)
    assert backend.log == ["wait_stream", "enter", "record_event", "exit"]
    assert event.wait() == 42
    assert backend.log[-1] == "wait_event", "the current stream waits, the host does not"
    assert made.run(lambda: 7) == 7
    made.close()
    assert backend.log[-1] == "synchronize"


def test_tensors_are_recorded_on_the_side_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[object] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, s: recorded.append(s))
    backend: Any = FakeBackend()
    made = DeviceStream(backend)
    made.submit(lambda a, b: None, torch.ones(1), 3)
    assert len(recorded) == 1


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Device.open(0) == Device("cpu")
    with pytest.raises(ConfigError, match="NPUs need torch_npu: pip install"):
        device.backend_module("npu")
    monkeypatch.setattr(device, "count_devices", lambda kind: 2)
    with pytest.raises(ConfigError, match="local rank 2 needs cuda:2, but 2 are visible"):
        Device.open(2, "cuda")


def test_free_memory_is_no_more_than_the_host_has() -> None:
    assert 0 < Device("cpu").free_memory() < 1 << 50
