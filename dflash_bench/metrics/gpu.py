"""The GPU rows of a process, read in the orders in which they are needed: by correlation id, and by start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from dflash_bench.layout import Events
from dflash_bench.metrics.ahead import Ahead, spans
from dflash_bench.metrics.columns import ints
from dflash_bench.metrics.events import GPU_COLUMNS, GpuRows, gpu_rows
from dflash_bench.metrics.work import Work
from dflash_bench.model import ProcessInfo
from dflash_bench.profile import Profile, Span

_WORK_COLUMNS = ("device", "stream", "correlation_id", "start_ns", "end_ns")


class GpuFile:
    """The GPU rows of one process of a profile. Rows without a correlation id, which is 0 then, are kept apart."""

    def __init__(self, profile: Profile, process: ProcessInfo) -> None:
        self.file = profile.event_file(Events.GPU_WORK, process)
        self._ids: list[Span | None] = []
        self._has_zero: list[bool] = []
        for group, span in enumerate(spans(self.file, "correlation_id")):
            known, has_zero = self._looked_up(group, span)
            self._ids.append(known)
            self._has_zero.append(has_zero)

    @property
    def num_rows(self) -> int:
        return 0 if self.file is None else int(self.file.metadata.num_rows)

    def _looked_up(self, group: int, span: Span | None) -> tuple[Span | None, bool]:
        """The span of a group's ids other than 0, and whether it has rows with 0, which hide where the others lie."""
        if self.file is None or span is None or span[0] > 0 or span[1] < 0:
            return span, False
        ids = ints(self.file.read(group, ["correlation_id"]).column("correlation_id"))
        known = ids[ids != 0]
        return (int(known.min()), int(known.max())) if len(known) else None, len(known) < len(ids)

    def by_id(self) -> Ahead[Work]:
        """The rows that have an id, in order of it."""
        return Ahead(self.file, _WORK_COLUMNS, _by_id, lambda rows: rows.correlation, Work.joined, self._ids)

    def without_id(self) -> Iterator[GpuRows]:
        """The rows that have none, in order of start, a bounded number at a time."""
        starts = spans(self.file, "start_ns")
        found = [span if has_zero else None for span, has_zero in zip(starts, self._has_zero, strict=True)]
        return Ahead(self.file, GPU_COLUMNS, _without_id, lambda rows: rows.start, _joined_by_start, found).rest()


def _by_id(table: pa.Table) -> Work:
    rows = Work(*(ints(table.column(name)) for name in _WORK_COLUMNS))
    if (rows.correlation == 0).any():
        rows = rows[rows.correlation != 0]
    if (rows.correlation[1:] >= rows.correlation[:-1]).all():
        return rows
    return rows[np.argsort(rows.correlation, kind="stable")]


def _without_id(table: pa.Table) -> GpuRows:
    rows = gpu_rows(table)
    return rows[rows.correlation == 0].by_start()


def _joined_by_start(parts: Sequence[GpuRows]) -> GpuRows:
    return GpuRows.joined(parts).by_start()
