"""Several ranks at their agreement: who came last, and why.

Nobody can leave before the last one arrives, and leaving takes about the same time everywhere: so the ends of the same
agreement line the clocks of several captures up. Ranks of one capture share its clock and need no such estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_bench.metrics.arrivals import Arrivals
from dflash_bench.model import BoolArray, Finding, FloatArray, IntArray, Value

LATE_START = "late start"
UNATTRIBUTED = "unattributed"


@dataclass(frozen=True)  # without slots: `lateness` is worked out once
class Meeting:
    """All ranks over the steps that all of them agreed in, on the clock of the first rank. Matrices are [ranks, n].

    ``offset`` float64 [ranks, n] is each rank's clock minus the first rank's, step by step.
    """

    ranks: tuple[int, ...]
    arrival: FloatArray
    step_start: FloatArray
    is_alloc: BoolArray
    offset: FloatArray
    is_one_clock: bool

    @property
    def last(self) -> IntArray:
        """Row of the rank that arrived last, int64 [n]; of equals the lowest rank."""
        return self.arrival.argmax(axis=0)

    @property
    def wait(self) -> FloatArray:
        """Last arrival − own arrival, ns, [ranks, n]."""
        return self.arrival.max(axis=0) - self.arrival

    @cached_property
    def lateness(self) -> FloatArray:
        """Own − median arrival, ns, [ranks, n]."""
        return self.arrival - np.median(self.arrival, axis=0)

    @property
    def tax(self) -> FloatArray:
        """Last − median arrival, ns, [n]."""
        return self.lateness.max(axis=0)

    @property
    def offset_spread(self) -> FloatArray:
        """Interquartile range of the per-step offsets, ns, [ranks]."""
        high, low = np.percentile(self.offset, [75, 25], axis=1)
        spread: FloatArray = high - low
        return spread


def meet(found: Sequence[Arrivals]) -> tuple[Meeting, tuple[Finding, ...]] | None:
    """Line the ranks up, k-th agreement to k-th agreement. None for fewer than two ranks."""
    if len(found) < 2:
        return None
    found = sorted(found, key=lambda a: a.rank)
    n = min(len(a.start) for a in found)
    ends = np.stack([a.end[:n] for a in found]).astype(np.float64)
    is_one_clock = len({a.capture for a in found}) == 1
    offset = np.zeros_like(ends) if is_one_clock else ends - ends[0]
    shift = np.median(offset, axis=1, keepdims=True)
    meeting = Meeting(
        ranks=tuple(a.rank for a in found),
        arrival=np.stack([a.start[:n] for a in found]) - shift,
        step_start=np.stack([a.step_start[:n] for a in found]) - shift,
        is_alloc=np.stack([a.is_alloc[:n] for a in found]),
        offset=offset,
        is_one_clock=is_one_clock,
    )
    return meeting, _findings(found, meeting)


def _findings(found: Sequence[Arrivals], meeting: Meeting) -> tuple[Finding, ...]:
    findings = []
    counts = [len(a.start) for a in found]
    if len(set(counts)) > 1:
        extra = max(counts) - min(counts)
        text = f"ranks agreed {min(counts):,} to {max(counts):,} times; only the first {min(counts):,} are compared"
        findings.append(Finding("agreement_counts_differ", None, extra, text))
    spread, effect = float(meeting.offset_spread.max()), float(np.median(meeting.tax))
    if spread > effect:
        text = (
            f"the clocks line up to {spread / 1000:,.1f} µs only, more than the agreement tax of"
            f" {effect / 1000:,.1f} µs: the cross-rank figures are not to be trusted"
        )
        findings.append(Finding("clock_spread", None, len(meeting.ranks), text))
    return tuple(findings)


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
    for name in dict.fromkeys(name for a in found for name in a.names):
        own = np.stack([a.work[a.names.index(name), :n] if name in a.names else np.zeros(n) for a in found])
        part = own - np.median(own, axis=0)
        yield name, part
        total = total + part
    yield UNATTRIBUTED, meeting.lateness - total
