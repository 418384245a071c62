"""``dp.lateness_by_cause``: what made a rank late at the agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dflash_bench.metrics.agreement import Agreements, Meeting
from dflash_bench.model import FloatArray, Value

LATE_START = "late start"
UNATTRIBUTED = "unattributed"


def lateness_rows(found: Sequence[Agreements], meetings: Sequence[Meeting]) -> list[tuple[Value, ...]]:
    """Rows (rank, cause, mean_ns, p50_ns): lateness = late start of the step + longer work before the agreement.

    Each part is a rank's own figure − the median over ranks, step by step; medians do not add up, and what they leave
    over is ``unattributed``. Of several agreements a step the second starts when the first is over, and so on.
    """
    found = sorted(found, key=lambda a: a.rank)
    rows: dict[int, list[tuple[Value, ...]]] = {rank: [] for rank in meetings[0].ranks}
    for meeting in meetings:
        for name, part in _lateness_parts(found, meeting):
            cause = name if meeting.place is None else f"{name} (@{meeting.place})"
            for rank, own in zip(meeting.ranks, part, strict=True):
                if own.any():
                    rows[rank].append((rank, cause, float(own.mean()), float(np.median(own))))
    return [row for of_rank in rows.values() for row in sorted(of_rank, key=_size)]


def _size(row: tuple[Value, ...]) -> float:
    """The largest mean first."""
    mean = row[2]
    assert isinstance(mean, float)
    return -abs(mean)


def _lateness_parts(found: Sequence[Agreements], meeting: Meeting) -> Iterator[tuple[str, FloatArray]]:
    """Each cause and its part of the lateness, ns, [ranks, n]: one at a time, since they can be large and many."""
    part: FloatArray = meeting.begin - np.median(meeting.begin, axis=0)
    yield LATE_START, part
    total, nothing = part, np.zeros(meeting.arrival.shape[1])
    for name in dict.fromkeys(name for a in found for name in a.work):
        own = np.stack(
            [a.work[name][row] if name in a.work else nothing for a, row in zip(found, meeting.row, strict=True)]
        )
        part = own - np.median(own, axis=0)
        yield name, part
        total = total + part
    yield UNATTRIBUTED, meeting.lateness - total
