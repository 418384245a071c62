"""A GPU that is not there: streams with a clock, graphs that take their configured time, blocking reads that block.

Results are computed on the CPU when work is launched; what is simulated is *when* a GPU would have them. A stream does
its work in order: a piece starts when it is launched and everything before it is done, and whoever waits for it sleeps
until then. While the CPU computes what a GPU would compute, the simulated GPU stands still: work in flight takes that
much longer. So how fast this machine computes the model does not decide whether the host runs ahead of the device.

Sinks that can (`api_call`, `gpu_work`) are told of every launch, copy and wait, and of the work behind it; all of it is
named ``simulated``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic_ns, sleep

import torch

from dflash_prep import ranges
from dflash_prep.kernels.future_map import FutureMap
from dflash_prep.kernels.glue_graph import Captured

_FORWARD_STREAM = 7
_COPY_STREAM = 13
_COPY_NS = 4_000
"""Duration of one small copy; pageable reads of this size took 3 to 5 us of device time in H200 captures."""


@dataclass(frozen=True, slots=True)
class SimulatedClock:
    """Now in ns on the clock that all processes of a host share, and a way to let time pass on it."""

    now: Callable[[], int] = monotonic_ns
    sleep_s: Callable[[float], None] = sleep


@dataclass(slots=True)
class _SimulatedWork:
    """A piece of device work. Its instants move back while the device stands still."""

    kind: str
    name: str
    start_ns: int
    end_ns: int
    correlation_id: int
    stream: int
    graph_exec_id: int = 0


class _SimulatedGraph:
    """A captured forward: replaying it computes the result at once and occupies the forward stream for its time."""

    def __init__(
        self, device: SimulatedDevice, name: str, work: Callable[[], None], busy_us: int, exec_id: int
    ) -> None:
        self._device, self._name, self._work = device, name, work
        self._busy_ns, self._exec_id = busy_us * 1000, exec_id

    def replay(self) -> None:
        self._work()
        self._device.launch("cudaGraphLaunch", "graph", self._name, self._busy_ns, graph_exec_id=self._exec_id)


class _SimulatedResult:
    """The host's copy of one step's result, there once the copy stream has passed it."""

    def __init__(self, device: SimulatedDevice, result: torch.Tensor, copy: _SimulatedWork) -> None:
        self._device, self._result, self._copy = device, result.clone(), copy

    def wait(self) -> torch.Tensor:
        """Block the host until the copy is done."""
        self._device.block("cudaEventSynchronize", self._copy)
        return self._result


@dataclass(frozen=True, slots=True)
class _SimulatedFence:
    """Passed once the work before it is done."""

    device: SimulatedDevice
    last: _SimulatedWork | None

    def synchronize(self) -> None:
        """Block the host until then."""
        if self.last is not None:
            self.device.block("cudaEventSynchronize", self.last)


class SimulatedDevice:
    """The device seam of the engine on a machine without GPU; see `decode_device.DecodeDevice`."""

    kind = "simulated"

    def __init__(self, clock: SimulatedClock | None = None) -> None:
        self.torch_device = torch.device("cpu")
        self.clock = clock or SimulatedClock()
        self._last: dict[int, _SimulatedWork] = {}  # by stream
        self._pending: deque[_SimulatedWork] = deque()
        self._still_since: int | None = None
        self._still_ns = 0
        self._correlation_id = 0
        self._num_graphs = 0

    def graph(self, name: str, work: Callable[[], None], busy_us: int, *, spins: bool = True) -> _SimulatedGraph:
        """`work` as a graph that keeps the forward stream busy for `busy_us`; it runs once now, as before a capture."""
        work()
        self._num_graphs += 1
        return _SimulatedGraph(self, f"simulated {name}", work, busy_us, self._num_graphs)

    def busy(self, us: int) -> AbstractContextManager[None]:
        """Nothing: a simulated graph takes its time as a whole."""
        return nullcontext()

    def fence(self) -> _SimulatedFence:
        """Behind what the forward stream holds now."""
        return _SimulatedFence(self, self._last.get(_FORWARD_STREAM))

    def capture(self, prepare: Callable[[], object]) -> Captured[object]:
        """A metadata graph: replaying it prepares again; its device time is too short to simulate."""
        return Captured(prepare, prepare())

    def future_map(self, rows: int) -> FutureMap:
        """A FutureMap of `rows` rows on this device."""
        return _SimulatedFutureMap(rows, self)

    @contextmanager
    def forward_stream(self, *inputs: torch.Tensor) -> Iterator[None]:
        """The body computes what a GPU would compute later: the simulated GPU stands still meanwhile."""
        self._still_since = self.clock.now()
        try:
            yield
        finally:
            self._catch_up()
            self._still_since = None

    def tables_read(self) -> None:
        """This step has read the shared tables for the last time."""

    def war_barrier(self) -> None:
        """Later table writes wait, on the device, for the reads of the step in flight; computed at once, they have."""

    def blocking_reads(self, count: int) -> None:
        """The host reads `count` values of the forward stream back, one after the other, as `.item()` does on a GPU."""
        for _ in range(count):
            copy = self.launch("cudaMemcpyAsync", "memcpy", "simulated memcpy DtoH", _COPY_NS)
            self.block("cudaStreamSynchronize", copy)

    def still_ns(self) -> int:
        """Time since the last call that the device stood still, in ns."""
        still, self._still_ns = self._still_ns, 0
        return still

    def stand_still(self, ns: int) -> None:
        """The device stood still for the last `ns` too: the host waited for a rank whose device did."""
        if ns > 0:
            self._move_back(self.clock.now() - ns, ns)

    def copy_result(self, result: torch.Tensor) -> _SimulatedResult:
        """Start the copy of this step's result to the host, behind the forward stream."""
        name = "simulated memcpy DtoH"
        copy = self.launch("cudaMemcpyAsync", "memcpy", name, _COPY_NS, stream=_COPY_STREAM, after=_FORWARD_STREAM)
        return _SimulatedResult(self, result, copy)

    def launch(
        self,
        api: str,
        kind: str,
        name: str,
        duration_ns: int,
        *,
        stream: int = _FORWARD_STREAM,
        after: int | None = None,
        graph_exec_id: int = 0,
    ) -> _SimulatedWork:
        """One launch call and the work behind it, which also waits for what stream `after` holds."""
        self._catch_up()
        called = self.clock.now()
        before = [self._last[each].end_ns for each in (stream, after) if each in self._last]
        start = max([called, *before])
        self._correlation_id += 1
        work = _SimulatedWork(kind, name, start, start + duration_ns, self._correlation_id, stream, graph_exec_id)
        self._last[stream] = work
        self._pending.append(work)
        self._report_done(called)
        self._report_call(api, called)
        return work

    def block(self, api: str, work: _SimulatedWork) -> None:
        """A call that returns when `work` is done; the device works on while the host waits."""
        self._catch_up()
        called = self.clock.now()
        while (left := work.end_ns - self.clock.now()) > 0:
            self.clock.sleep_s(left / 1e9)
        if self._still_since is not None:
            self._still_since = self.clock.now()
        self._correlation_id += 1
        self._report_call(api, called)

    def resume(self) -> None:
        """There is one simulated device in a process."""

    def drain(self) -> None:
        """Wait for everything, at the end of a run, and report it."""
        for work in list(self._last.values()):
            while (left := work.end_ns - self.clock.now()) > 0:
                self.clock.sleep_s(left / 1e9)
        self._report_done(self.clock.now())

    def _catch_up(self) -> None:
        """Move unfinished work back by the time that the device has stood still so far."""
        if self._still_since is None:
            return
        now = self.clock.now()
        self._move_back(self._still_since, now - self._still_since)
        self._still_ns += now - self._still_since
        self._still_since = now

    def _move_back(self, since_ns: int, by_ns: int) -> None:
        """Move the work that was not over at `since_ns`."""
        for work in self._pending:
            if work.end_ns > since_ns:
                work.end_ns += by_ns
                if work.start_ns > since_ns:
                    work.start_ns += by_ns

    def _report_call(self, api: str, called_ns: int) -> None:
        """Tell a sink that listens of the call that ends now."""
        if (api_call := getattr(ranges.sink(), "api_call", None)) is not None:
            api_call(api, called_ns, self.clock.now(), self._correlation_id)

    def _report_done(self, now: int) -> None:
        """Tell the sink, in order of launch, of work that is over and so cannot move any more."""
        gpu_work = getattr(ranges.sink(), "gpu_work", None)
        while self._pending and self._pending[0].end_ns <= now:
            work = self._pending.popleft()
            if gpu_work is not None:
                where = {"stream": work.stream, "graph_exec_id": work.graph_exec_id}
                gpu_work(work.kind, work.name, work.start_ns, work.end_ns, work.correlation_id, **where)


class _SimulatedFutureMap(FutureMap):
    """A FutureMap whose copy of the lengths to the host takes as long as it would: until they have been published."""

    def __init__(self, rows: int, device: SimulatedDevice) -> None:
        super().__init__(rows, device.torch_device)
        self._simulated = device

    def _copy_to_host(self) -> torch.Tensor:
        self._simulated.blocking_reads(1)
        return super()._copy_to_host()
