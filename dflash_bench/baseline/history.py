"""What a baseline's history tells: each metric over sessions and commits."""

from __future__ import annotations

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
    """One metric over all ranks (or of the only one), session by session, oldest first; and what changed in it."""

    metric: str
    unit: Unit
    sessions: tuple[Session, ...]
    commits: tuple[str | None, ...]
    values: tuple[float, ...]
    changes: tuple[ChangePoint, ...]
    creep: Creep | None

    def share(self, size: float) -> float:
        """A difference as a share of the median session; of a share of events, in points."""
        usual = abs(median(self.values))
        return size if self.unit is Unit.FRACTION or not usual else size / usual

    def words(self, change: ChangePoint) -> str:
        """A change in words: by how much, when, and between which commits."""
        before, after = self.commits[change.index - 1], self.commits[change.index]
        where = f" ({before} … {after})" if before and after and before != after else ""
        size = f"{self.share(change.after - change.before):+.1%}".replace("%", " %")
        return f"{size} from {self.sessions[change.index].day} on{where}"


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
    values = tuple(median(e.figures[label] for e in entries) for entries in there.values())
    commits = tuple(entries[-1].commit for entries in there.values())
    return Course(name, spec(name).unit, tuple(there), commits, values, change_points(values), creep(values))


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
