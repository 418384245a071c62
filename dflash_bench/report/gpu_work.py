"""GPU work as it is drawn: pieces with their names, each with the launch that queued it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_bench.layout import Events
from dflash_bench.metrics.events.arrays import NONE, Names, read_columns
from dflash_bench.metrics.events.gpu import pieces
from dflash_bench.metrics.events.launches import Launches, join
from dflash_bench.metrics.events.process import ProcessEvents
from dflash_bench.model import BoolArray, IntArray
from dflash_bench.profile import Profile


@dataclass(frozen=True, slots=True)
class GpuWork:
    """All GPU work of a process, one row a piece (`pieces`), and the launch of each. All arrays [n].

    ``launch`` int64 indexes into ``launches``, NONE where no launch was found; ``num_rows`` is how many rows of the
    capture each piece has (a graph traced node by node has many).
    """

    device: IntArray
    stream: IntArray
    start: IntArray
    end: IntArray
    name: Names
    num_rows: IntArray
    launch: IntArray
    launches: Launches

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: IntArray | BoolArray) -> GpuWork:
        return GpuWork(
            self.device[index], self.stream[index], self.start[index], self.end[index], self.name[index],
            self.num_rows[index], self.launch[index], self.launches,
        )  # fmt: skip

    @property
    def launched_at(self) -> IntArray:
        """Start of the launch call of each piece; meaningless where ``launch`` is NONE."""
        return self.launches.start[self.launch] if len(self.launches) else np.full(len(self), NONE, np.int64)

    def label(self, row: int) -> str:
        """The piece's name, and how many rows it was made of."""
        name, rows = self.name.values[self.name.codes[row]], int(self.num_rows[row])
        return name if rows == 1 else f"{name} and {rows - 1:,} more"


def gpu_work(profile: Profile, events: ProcessEvents) -> GpuWork:
    """The GPU work of a process, each piece with its launch as `join` tells it."""
    # a piece is named after its first row
    by_start = np.argsort(events.gpu.start, kind="stable")
    joined = join(events.calls, pieces(events.gpu[by_start]))
    work, launch = joined.work, np.full(len(joined.work), NONE, np.int64)
    launch[joined.launches.piece] = np.arange(len(joined.launches))
    return GpuWork(
        device=work.device,
        stream=work.stream,
        start=work.start,
        end=work.end,
        name=_work_names(profile, events)[by_start[work.first_row]],
        num_rows=work.num_rows,
        launch=launch,
        launches=joined.launches,
    )


def _work_names(profile: Profile, events: ProcessEvents) -> Names:
    names = read_columns(profile, Events.GPU_WORK, events.process, ("name",))["name"]
    assert isinstance(names, Names)
    return names
