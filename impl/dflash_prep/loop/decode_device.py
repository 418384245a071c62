"""The seam between the engine and what it runs on: a GPU (`cuda_device.py`) or a simulated one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from dflash_prep.kernels.future_map import FutureMap
from dflash_prep.kernels.glue_graph import Captured


class Graph(Protocol):
    """A captured piece of work on the forward stream."""

    def replay(self) -> None: ...


class PendingResult(Protocol):
    """A result on its way to the host."""

    def wait(self) -> torch.Tensor:
        """Block until it is there; a CPU tensor of the shape given to `copy_result`."""


class Fence(Protocol):
    """A place in the forward stream that the host can wait for, as a CUDA event is."""

    def synchronize(self) -> None: ...


class DecodeDevice(Protocol):
    """Streams, graphs and copies of one rank. All host preparation happens with the schedule stream current."""

    kind: str
    torch_device: torch.device

    def graph(self, name: str, work: Callable[[], None], busy_us: int, *, spins: bool = True) -> Graph:
        """`work` as a graph that also keeps the device busy up to `busy_us` microseconds. `work` may run now.

        Without `spins` the work does that itself, part by part, through `busy`.
        """

    def busy(self, us: int) -> AbstractContextManager[None]:
        """Inside the work of a graph: the body keeps the device busy up to `us` microseconds."""

    def fence(self) -> Fence:
        """Behind everything on the forward stream so far."""

    def capture(self, prepare: Callable[[], object]) -> Captured[object]:
        """A small graph without busy time, for metadata."""

    def future_map(self, rows: int) -> FutureMap:
        """A FutureMap of `rows` rows."""

    def forward_stream(self, *inputs: torch.Tensor) -> AbstractContextManager[None]:
        """Work inside runs on the forward stream, after everything on the schedule stream so far.

        `inputs` are tensors allocated on the schedule stream that the work reads.
        """

    def tables_read(self) -> None:
        """On the forward stream: this step has read the shared tables for the last time."""

    def war_barrier(self) -> None:
        """On the schedule stream: later writes to shared tables wait for the reads of the step in flight."""

    def blocking_reads(self, count: int) -> None:
        """The code just run read `count` values back: a GPU has blocked the host, a simulated one does so here."""

    def still_ns(self) -> int:
        """Time since the last call that a simulated device stood still, in ns; 0 on a GPU."""

    def stand_still(self, ns: int) -> None:
        """A simulated device stood still for the last `ns` too: the host waited for another rank's to move on."""

    def copy_result(self, result: torch.Tensor) -> PendingResult:
        """Copy to the host behind the forward stream, on the copy stream."""

    def resume(self) -> None:
        """Make this device's schedule stream the current one, after another device of this process was used."""

    def drain(self) -> None:
        """Wait for all work."""
