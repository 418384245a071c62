"""``dp.lateness_by_cause``: what made a rank late at the agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dflash_bench.metrics.agreement import Arrivals, Meeting
from dflash_bench.model import FloatArray, Value

LATE_START = "late start"
UNATTRIBUTED = "unattributed"


def lateness_rows(found: Sequence[Arrivals], meeting: Meeting) -> list[tuple[Value, ...]]:
    """Rows (rank, cause, mean_ns, p50_ns): lateness = late start of the step + longer work before the agreement.

    Each part is a rank's own figure − the median over ranks, step by step; medians do not add up, and what they leave
    over is ``unattributed``.
    """
    rows: dict[int, list[tuple[Value, ...]]] = {rank: [] for rank in meeting.ranks}
    for name, part in _lateness_parts(sorted(found, key=lambda a: a.rank), meeting):
        for rank, own in zip(meeting.ranks, part, strict=True):
            if own.any():
                rows[rank].append((rank, name, float(own.mean()), float(np.median(own))))
    return [row for of_rank in rows.values() for row in sorted(of_rank, key=_size)]


def _size(row: tuple[Value, ...]) -> float:
    """The largest mean first."""
    mean = row[2]
    assert isinstance(mean, float)
    return -abs(mean)


def _lateness_parts(found: Sequence[Arrivals], meeting: Meeting) -> Iterator[tuple[str, FloatArray]]:
    """Each cause and its part of the lateness, ns, [ranks, n]: one at a time, since they can be large and many."""
    n = meeting.arrival.shape[1]
    part: FloatArray = meeting.step_start - np.median(meeting.step_start, axis=0)
    yield LATE_START, part
    total = part
    for name in dict.fromkeys(name for a in found for name in a.work):
        own = np.stack([a.work[name][:n] if name in a.work else np.zeros(n) for a in found])
        part = own - np.median(own, axis=0)
        yield name, part
        total = total + part
    yield UNATTRIBUTED, meeting.lateness - total
