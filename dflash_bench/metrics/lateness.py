"""``dp.lateness_by_cause``: what made a rank late at the agreement; ``dp.wait_by_cause``: for whom others waited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dflash_bench.metrics.agreement import Agreements, Meeting
from dflash_bench.model import FloatArray, Value

_LATE_START = "late start"
_UNATTRIBUTED = "unattributed"


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


def wait_rows(found: Sequence[Agreements], meetings: Sequence[Meeting]) -> list[tuple[Value, ...]]:
    """Rows (rank, cause, agreements, total_ns, share): whom each rank waited for, and what that one had done.

    What it had done is the largest part of its lateness then: ``waited for rank 3 · get_last_loc``.
    """
    found = sorted(found, key=lambda a: a.rank)
    waits: dict[tuple[int, str], tuple[int, float]] = {}
    for meeting in meetings:
        last, every = meeting.last, np.arange(meeting.arrival.shape[1])
        names, most, what = list[str](), np.full(len(every), -np.inf), np.zeros(len(every), np.int64)
        for name, part in _lateness_parts(found, meeting):
            names.append(name)
            of_last = part[last, every]
            what[of_last > most] = len(names) - 1
            most = np.maximum(most, of_last)
        for rank, wait in zip(meeting.ranks, meeting.wait, strict=True):
            for who, did in {*zip(last[wait > 0].tolist(), what[wait > 0].tolist(), strict=True)}:
                own = wait[(wait > 0) & (last == who) & (what == did)]
                key = rank, f"waited for rank {meeting.ranks[who]} · {names[did]}"
                count, total = waits.get(key, (0, 0.0))
                waits[key] = count + len(own), total + float(own.sum())
    every_ns = {rank: sum(total for (own, _), (_, total) in waits.items() if own == rank) for rank in meetings[0].ranks}
    in_order = sorted(waits.items(), key=lambda item: (item[0][0], -item[1][1], item[0][1]))
    return [(rank, cause, count, total, total / every_ns[rank]) for (rank, cause), (count, total) in in_order]


def _size(row: tuple[Value, ...]) -> float:
    """The largest mean first."""
    mean = row[2]
    assert isinstance(mean, float)
    return -abs(mean)


def _lateness_parts(found: Sequence[Agreements], meeting: Meeting) -> Iterator[tuple[str, FloatArray]]:
    """Each cause and its part of the lateness, ns, [ranks, n]: one at a time, since they can be large and many."""
    part: FloatArray = meeting.begin - np.median(meeting.begin, axis=0)
    yield _LATE_START, part
    total, nothing = part, np.zeros(meeting.arrival.shape[1])
    for name in dict.fromkeys(name for a in found for name in a.work):
        own = np.stack(
            [a.work[name][row] if name in a.work else nothing for a, row in zip(found, meeting.row, strict=True)]
        )
        part = own - np.median(own, axis=0)
        yield name, part
        total = total + part
    yield _UNATTRIBUTED, meeting.lateness - total
