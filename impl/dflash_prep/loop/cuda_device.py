"""The device seam on a real GPU: schedule, forward and copy streams, CUDA graphs, the events between them (section 9).

The schedule stream is current for all host preparation. Nothing here makes the host wait except `_CudaResult.wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from dflash_prep.kernels.event_ring import (
    COPY_DONE_DEPTH,
    READ_DONE_DEPTH,
    Event,
    ReadDoneMailbox,
    event_source,
    war_barrier,
)
from dflash_prep.kernels.future_map import FutureMap
from dflash_prep.kernels.glue_graph import Captured, capture_cuda_graph
from dflash_prep.loop.spin import Spin

WARM_UP_RUNS = 2
"""Before a capture: the first run compiles kernels and fills library workspaces, the second shows that it is done."""


class _CudaResult:
    """One step's result on its way to pinned memory."""

    def __init__(self, host: torch.Tensor, copy_done: Event) -> None:
        self._host, self._copy_done = host, copy_done

    def wait(self) -> torch.Tensor:
        """Block until the copy is done: the only intended host wait of a step."""
        self._copy_done.synchronize()
        return self._host


class CudaDevice:
    """One rank's streams on GPU `index`; see `decode_device.DecodeDevice`.

    reuse_events   read_done and copy_done from rings (#31698) instead of new ones every step
    one_stream     everything on one stream: for steps that are one graph, nothing is left to run beside it
    """

    kind = "cuda"

    def __init__(self, index: int, *, reuse_events: bool, one_stream: bool = False) -> None:
        torch.cuda.set_device(index)
        self.torch_device = torch.device("cuda", index)
        streams = _distinct_streams(1 if one_stream else 3, self.torch_device)
        self._schedule, self._forward, self._copy = streams * 3 if one_stream else streams
        self._one_stream = nullcontext() if one_stream else None
        self.resume()
        self._read_done = ReadDoneMailbox(event_source(READ_DONE_DEPTH, reuse=reuse_events))
        self._copy_done = event_source(COPY_DONE_DEPTH, reuse=reuse_events)
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._pool_keeper: torch.cuda.CUDAGraph | None = None
        self._spin = Spin(self.torch_device)

    def graph(self, name: str, work: Callable[[], None], busy_us: int, *, spins: bool = True) -> torch.cuda.CUDAGraph:
        """`work`, then idle spinning up to `busy_us`, as one graph. All graphs share a pool: they run one at a time."""

        def body() -> None:
            with self.busy(busy_us) if spins else nullcontext():
                work()

        with self.forward_stream():
            for _ in range(WARM_UP_RUNS):
                body()
        torch.cuda.synchronize(self.torch_device)
        graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog may look at an event while this thread captures
        with torch.cuda.graph(graph, pool=self._graph_pool, capture_error_mode="thread_local"):
            body()
        # torch drops a pool when its last graph dies and then refuses captures into it; the warm-up's graphs all die
        self._pool_keeper = self._pool_keeper or graph
        return graph

    def capture(self, prepare: Callable[[], object]) -> Captured[object]:
        """A metadata graph, without spinning."""
        return capture_cuda_graph(prepare)

    def future_map(self, rows: int) -> FutureMap:
        """A FutureMap of `rows` rows on this GPU."""
        return FutureMap(rows, self.torch_device)

    @contextmanager
    def busy(self, us: int) -> Iterator[None]:
        """As the protocol says."""
        self._spin.begin()
        yield
        self._spin.end(us)

    def fence(self) -> Event:
        """An event recorded on the forward stream."""
        done = self._copy_done.next()
        done.record(self._forward)
        return done

    def forward_stream(self, *inputs: torch.Tensor) -> AbstractContextManager[None]:
        """Run the body on the forward stream, behind the schedule stream.

        `inputs` were allocated on the schedule stream: their memory must not be reused there before the body is done.
        """
        return self._one_stream or self._behind_the_schedule_stream(*inputs)

    @contextmanager
    def _behind_the_schedule_stream(self, *inputs: torch.Tensor) -> Iterator[None]:
        self._forward.wait_stream(self._schedule)
        with torch.cuda.stream(self._forward):
            for each in inputs:
                each.record_stream(self._forward)
            yield

    def tables_read(self) -> None:
        """Record read_done on the forward stream."""
        self._read_done.publish()

    def war_barrier(self) -> None:
        """Fine barrier where read_done was recorded since the last one, else coarse (section 9.4)."""
        war_barrier(self._schedule, self._forward, self._read_done.take())

    def blocking_reads(self, count: int) -> None:
        """Here the reads themselves have blocked the host."""

    def still_ns(self) -> int:
        """A GPU never stands still."""
        return 0

    def stand_still(self, ns: int) -> None:
        """Nor here."""

    def copy_result(self, result: torch.Tensor) -> _CudaResult:
        """Copy behind the forward stream on the copy stream. `result` must stay untouched for one more step."""
        self._copy.wait_stream(self._forward)
        with torch.cuda.stream(self._copy):
            host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            host.copy_(result, non_blocking=True)
            done = self._copy_done.next()
            done.record(self._copy)
        return _CudaResult(host, done)

    def resume(self) -> None:
        """As the protocol says."""
        torch.cuda.set_stream(self._schedule)

    def drain(self) -> None:
        """Wait for everything, at the end of a run."""
        torch.cuda.synchronize(self.torch_device)


def _distinct_streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    """`count` different streams: torch hands them out from a pool in turn, so a late draw may repeat an early one."""
    streams: list[torch.cuda.Stream] = []
    while len(streams) < count:
        stream = torch.cuda.Stream(device)
        if stream.cuda_stream not in [each.cuda_stream for each in streams]:
            streams.append(stream)
    return streams
