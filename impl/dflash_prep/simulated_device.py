"""A GPU that is not there: streams with a clock, graphs that take their configured time, blocking reads that block.

The results are computed at once, on the CPU, when work is launched; what is simulated is *when* a GPU would have them.
A stream is the instant until which it is busy. Work starts when it is launched and everything before it on its stream
is done; waiting for it puts the host to sleep until then. Sinks that can (`api_call`, `gpu_work`) are told of every
launch and of the work behind it, all of it named ``simulated``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic_ns, sleep

import torch

from dflash_prep import ranges
from dflash_prep.future_map import FutureMap
from dflash_prep.glue_graph import Captured

FORWARD_STREAM = 7
COPY_STREAM = 13
COPY_NS = 4_000
"""Duration of one small copy; pageable reads of this size took 3 to 5 us of device time in H200 captures."""


@dataclass(frozen=True, slots=True)
class SimulatedClock:
    """Now in ns on the clock that all processes of a host share, and a way to wait for an instant on it."""

    now: Callable[[], int] = monotonic_ns
    sleep_s: Callable[[float], None] = sleep

    def wait_until(self, instant: int) -> None:
        while (left := instant - self.now()) > 0:
            self.sleep_s(left / 1e9)


class SimulatedStream:
    """Work in order; `busy_until_ns` is when the last of it ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.busy_until_ns = 0

    def push(self, launched_ns: int, duration_ns: int, after_ns: int = 0) -> tuple[int, int]:
        """Start and end of a piece of work launched now that also waits for `after_ns`."""
        start = max(launched_ns, self.busy_until_ns, after_ns)
        self.busy_until_ns = start + duration_ns
        return start, self.busy_until_ns


class SimulatedGraph:
    """A captured forward: replaying it computes the result at once and occupies the forward stream for its time."""

    def __init__(
        self, device: SimulatedDevice, name: str, work: Callable[[], None], busy_us: int, exec_id: int
    ) -> None:
        self._device, self._name, self._work = device, name, work
        self._busy_ns, self._exec_id = busy_us * 1000, exec_id

    def replay(self) -> None:
        self._work()
        self._device.launch("cudaGraphLaunch", "graph", self._name, self._busy_ns, graph_exec_id=self._exec_id)


class SimulatedResult:
    """The host's copy of one step's result, there once the copy stream has passed it."""

    def __init__(self, device: SimulatedDevice, result: torch.Tensor, done_ns: int) -> None:
        self._device, self._result, self._done_ns = device, result.clone(), done_ns

    def wait(self) -> torch.Tensor:
        """Block the host until the copy is done."""
        self._device.block("cudaEventSynchronize", self._done_ns)
        return self._result


class SimulatedDevice:
    """The device seam of the engine on a machine without GPU; see `worker.DecodeDevice`."""

    kind = "simulated"

    def __init__(self, clock: SimulatedClock | None = None) -> None:
        self.torch_device = torch.device("cpu")
        self.clock = clock or SimulatedClock()
        self._forward, self._copy = SimulatedStream(FORWARD_STREAM), SimulatedStream(COPY_STREAM)
        self._correlation_id = 0
        self._num_graphs = 0
        sink = ranges.sink()
        self._api_call = getattr(sink, "api_call", None)
        self._gpu_work = getattr(sink, "gpu_work", None)

    def graph(self, name: str, work: Callable[[], None], busy_us: int) -> SimulatedGraph:
        """`work` as a graph that keeps the forward stream busy for `busy_us`."""
        self._num_graphs += 1
        return SimulatedGraph(self, f"simulated {name}", work, busy_us, self._num_graphs)

    def capture(self, prepare: Callable[[], object]) -> Captured[object]:
        """A metadata graph: replaying it prepares again; its device time is too short to simulate."""
        return Captured(prepare, prepare())

    def future_map(self, rows: int) -> FutureMap:
        """A FutureMap of `rows` rows on this device."""
        return SimulatedFutureMap(rows, self)

    @contextmanager
    def forward_stream(self, *inputs: torch.Tensor) -> Iterator[None]:
        """Work inside is ordered after what the schedule stream has prepared: here it always is."""
        yield

    def tables_read(self) -> None:
        """This step has read the shared tables for the last time."""

    def war_barrier(self) -> None:
        """Later table writes wait, on the device, for the reads of the step in flight; computed at once, they have."""

    def blocking_reads(self, count: int) -> None:
        """The host reads `count` values of the forward stream back, one after the other, as `.item()` does on a GPU."""
        for _ in range(count):
            self.launch("cudaMemcpyAsync", "memcpy", "simulated memcpy DtoH", COPY_NS)
            self.block("cudaStreamSynchronize", self._forward.busy_until_ns)

    def copy_result(self, result: torch.Tensor) -> SimulatedResult:
        """Start the copy of this step's result to the host, behind the forward stream."""
        end = self.launch(
            "cudaMemcpyAsync",
            "memcpy",
            "simulated memcpy DtoH",
            COPY_NS,
            stream=self._copy,
            after_ns=self._forward.busy_until_ns,
        )
        return SimulatedResult(self, result, end)

    def launch(
        self,
        api: str,
        kind: str,
        name: str,
        duration_ns: int,
        *,
        stream: SimulatedStream | None = None,
        after_ns: int = 0,
        graph_exec_id: int = 0,
    ) -> int:
        """One launch call and the work behind it; returns when that work ends, in ns of the clock."""
        stream = stream or self._forward
        called = self.clock.now()
        start, end = stream.push(called, duration_ns, after_ns)
        self._correlation_id += 1
        if self._gpu_work is not None:
            extra = {"stream": stream.number, "graph_exec_id": graph_exec_id}
            self._gpu_work(kind, name, start, end, self._correlation_id, **extra)
        if self._api_call is not None:
            self._api_call(api, called, self.clock.now(), self._correlation_id)
        return end

    def block(self, api: str, until_ns: int) -> None:
        """A call that returns when the device has reached `until_ns`."""
        called = self.clock.now()
        self.clock.wait_until(until_ns)
        self._correlation_id += 1
        if self._api_call is not None:
            self._api_call(api, called, self.clock.now(), self._correlation_id)

    def drain(self) -> None:
        """Wait for everything, at the end of a run."""
        self.clock.wait_until(max(self._forward.busy_until_ns, self._copy.busy_until_ns))


class SimulatedFutureMap(FutureMap):
    """A FutureMap whose copy of the lengths to the host takes as long as it would: until they have been published."""

    def __init__(self, rows: int, device: SimulatedDevice) -> None:
        super().__init__(rows, device.torch_device)
        self._simulated = device

    def _copy_to_host(self) -> torch.Tensor:
        self._simulated.blocking_reads(1)
        return super()._copy_to_host()
