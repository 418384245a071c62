"""The simulated device: when work starts and ends, and when the host is kept waiting, on a fake clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dflash_prep import ranges
from dflash_prep.loop.simulated_device import _COPY_NS, SimulatedClock, SimulatedDevice
from dflash_prep.ranges import NullSink


class Now:
    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


class Listener(NullSink):
    """Keeps API calls and GPU work as a recorder would."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int]] = []
        self.work: list[tuple[Any, ...]] = []

    def api_call(self, name: str, start_ns: int, end_ns: int, correlation_id: int) -> None:
        self.calls.append((name, start_ns, end_ns, correlation_id))

    def gpu_work(self, kind, name, start_ns, end_ns, correlation_id, *, stream, graph_exec_id) -> None:
        self.work.append((kind, name, start_ns, end_ns, correlation_id, stream, graph_exec_id))


@pytest.fixture
def listener():
    listener = Listener()
    ranges.use(listener)
    yield listener
    ranges.use(NullSink())


@pytest.fixture
def now():
    return Now()


@pytest.fixture
def device(listener, now):
    return SimulatedDevice(SimulatedClock(now.now, now.sleep))


def test_graphs_queue_behind_each_other_while_the_host_goes_on(device, listener, now) -> None:
    ran = []
    draft = device.graph("draft", lambda: ran.append("draft"), 100)
    verify = device.graph("verify", lambda: ran.append("verify"), 400)
    draft.replay()
    now.ns = 30_000
    verify.replay()
    assert ran == ["draft", "verify"] * 2  # once each before the capture
    assert now.ns == 30_000
    device.drain()
    assert now.ns == 500_000
    assert [work[:4] for work in listener.work] == [
        ("graph", "simulated draft", 0, 100_000),
        ("graph", "simulated verify", 100_000, 500_000),
    ]
    assert [call[:3] for call in listener.calls] == [("cudaGraphLaunch", 0, 0), ("cudaGraphLaunch", 30_000, 30_000)]
    assert [work[4] for work in listener.work] == [call[3] for call in listener.calls]


def test_after_idling_work_starts_when_it_is_launched(device, listener, now) -> None:
    graph = device.graph("draft", lambda: None, 100)
    graph.replay()
    now.ns = 900_000
    graph.replay()
    device.drain()
    assert listener.work[1][2:4] == (900_000, 1_000_000)


def test_a_result_is_there_when_the_copy_behind_the_forward_stream_is_done(device, listener, now) -> None:
    device.graph("verify", lambda: None, 400).replay()
    tensor = torch.tensor([1, 2])
    pending = device.copy_result(tensor)
    tensor.zero_()
    assert pending.wait().tolist() == [1, 2]
    assert now.ns == 400_000 + _COPY_NS
    device.drain()
    assert listener.calls[-1][0] == "cudaEventSynchronize"
    assert listener.work[-1][5] != listener.work[0][5]


def test_while_the_cpu_computes_for_the_device_the_device_stands_still(device, listener, now) -> None:
    """400 us of work launched at 0 are a quarter done when computing starts at 100 us and takes 5 ms."""
    device.graph("verify", lambda: None, 400).replay()
    now.ns = 100_000
    with device.forward_stream():
        now.ns += 5_000_000
        device.graph("draft", lambda: None, 50).replay()
        now.ns += 1_000_000
    device.drain()
    assert [work[2:4] for work in listener.work] == [(0, 6_400_000), (6_400_000, 6_450_000)]
    assert listener.calls[1][1] == 5_100_000


def test_it_stands_still_with_the_devices_of_ranks_that_the_host_waited_for(device, listener, now) -> None:
    with device.forward_stream():
        now.ns += 70_000
        device.graph("verify", lambda: None, 400).replay()
        now.ns += 30_000
    assert (device.still_ns(), device.still_ns()) == (100_000, 0)
    now.ns += 250_000
    device.stand_still(200_000)
    device.drain()
    assert [work[2:4] for work in listener.work] == [(70_000, 70_000 + 400_000 + 30_000 + 200_000)]


def test_the_device_works_on_while_the_host_waits_for_it_in_the_middle_of_computing(device, listener, now) -> None:
    device.graph("verify", lambda: None, 400).replay()
    with device.forward_stream():
        now.ns += 1_000_000
        device.blocking_reads(1)
        assert now.ns == 1_400_000 + _COPY_NS
    device.drain()
    assert [work[2:4] for work in listener.work] == [(0, 1_400_000), (1_400_000, 1_400_000 + _COPY_NS)]


def test_a_blocking_read_keeps_the_host_until_the_forward_stream_is_empty(device, listener, now) -> None:
    device.graph("verify", lambda: None, 400).replay()
    device.blocking_reads(2)
    assert now.ns == 400_000 + 2 * _COPY_NS
    assert [call[0] for call in listener.calls].count("cudaStreamSynchronize") == 2


def test_the_future_map_blocks_only_if_somebody_needs_host_lengths(device, now) -> None:
    future = device.future_map(4)
    rows = torch.tensor([1, 3])
    future.publish(rows, torch.tensor([10, 30]))
    device.graph("verify", lambda: None, 400).replay()
    resolved = future.resolve_seq_lens(rows, rows, needs_cpu=False)
    assert (resolved.seq_lens.tolist(), resolved.seq_lens_cpu, now.ns) == ([10, 30], None, 0)
    assert future.resolve_seq_lens(rows, rows, needs_cpu=True).seq_lens_cpu.tolist() == [10, 30]
    assert now.ns == 400_000 + _COPY_NS


def test_a_sink_that_knows_no_device_is_told_nothing() -> None:
    ranges.use(NullSink())
    device = SimulatedDevice()
    device.graph("draft", lambda: None, 0).replay()
    device.drain()
