"""What a baseline's history tells: each metric over sessions and commits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from dflash_bench.baseline.runs import Baseline, HistoryEntry, metric_label
from dflash_bench.metrics.registry import position, spec
from dflash_bench.model import Unit
from dflash_bench.session import Session
from dflash_bench.stats.history import ChangePoint, Creep, change_points, creep


@dataclass(frozen=True, slots=True)
class Course:
    """One metric over all ranks (or of the only one), session by session, oldest first; and what changed in it.

    ``values`` are the medians of the sessions' ``runs``.
    """

    metric: str
    unit: Unit
    sessions: tuple[Session, ...]
    commits: tuple[str | None, ...]
    values: tuple[float, ...]
    runs: tuple[tuple[float, ...], ...]
    changes: tuple[ChangePoint, ...]
    creep: Creep | None

    def share(self, size: float) -> float:
        """A difference as a share of the median session; of a share of events, in points."""
        usual = abs(median(self.values))
        return size if self.unit is Unit.FRACTION or not usual else size / usual


def courses(baseline: Baseline, wanted: Sequence[str] | None = None) -> tuple[Course, ...]:
    """The courses of the metrics of these names or patterns; without any, of the primary ones."""
    sessions = baseline.sessions()
    labels = {label for entry in baseline.history for label in entry.figures}
    ranks = {label.rpartition("@")[2] for label in labels} - {"all"}
    found = []
    for name in sorted({label.rpartition("@")[0] for label in labels}, key=lambda n: (position(n), n)):
        is_wanted = spec(name).is_primary if wanted is None else any(fnmatchcase(name, own) for own in wanted)
        label = metric_label(name, None)
        if label not in labels and len(ranks) == 1:
            label = metric_label(name, int(next(iter(ranks))))
        if is_wanted and label in labels:
            found.append(_course(name, label, sessions))
    return tuple(found)


def _course(name: str, label: str, sessions: dict[Session, list[HistoryEntry]]) -> Course:
    own = {s: [e for e in entries if label in e.figures] for s, entries in sessions.items()}
    there = {s: entries for s, entries in own.items() if entries}
    runs = tuple(tuple(e.figures[label] for e in entries) for entries in there.values())
    values = tuple(map(median, runs))
    commits = tuple(entries[-1].commit for entries in there.values())
    changes, trend = change_points(values), creep(values)
    if trend is not None and _is_in_steps(values, changes, trend):
        trend = None
    return Course(name, spec(name).unit, tuple(there), commits, values, runs, changes, trend)


def _is_in_steps(values: Sequence[float], changes: Sequence[ChangePoint], trend: Creep) -> bool:
    """Whether levels between changes are nearer to a course than its trend: to a test one step looks like a trend."""
    cuts = [0, *(change.index for change in changes), len(values)]
    levels = [median(values[a:b]) for a, b in itertools.pairwise(cuts) for _ in range(a, b)]
    line = [value - trend.slope * k for k, value in enumerate(values)]
    off = [
        sum(abs(v - middle) for v, middle in zip(values, levels, strict=True)),
        sum(abs(v - median(line)) for v in line),
    ]
    return off[0] <= off[1]


def course_rows(course: Course) -> dict[str, Any]:
    """A course for JSON: base units, nothing rounded."""
    sessions = [
        {"machine": s.machine, "day": s.day, "job": s.job, "commit": commit, "value": value}
        for s, commit, value in zip(course.sessions, course.commits, course.values, strict=True)
    ]
    changes = [{"index": c.index, "before": c.before, "after": c.after, "p": c.p} for c in course.changes]
    slope = None if course.creep is None else {"slope": course.creep.slope, "p": course.creep.p}
    return {
        "metric": course.metric, "unit": course.unit, "sessions": sessions, "changes": changes, "creep": slope,
    }  # fmt: skip
