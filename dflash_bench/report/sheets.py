"""Sheets: what a report shows, as titles and rows of text, whether a terminal or Markdown will show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from textwrap import wrap
from typing import TypeVar

from dflash_bench.metrics.registry import Chapter, spec
from dflash_bench.model import Finding, RunInfo

T = TypeVar("T")
MAX_RANKS_SHOWN = 4
MAX_CAUSES = 10
_MAX_RANGES_SHOWN = 40
"""A loop has some twenty ranges; libraries and frameworks emit thousands of names, which bury the rest of a report."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A titled table of texts. Columns in ``left`` hold words, all others figures. ``note`` stands under it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report: title, the lines that answer, what to know before reading figures, sheets, what to type next.

    ``width``: columns that it was made for, however wide the terminal is.
    """

    title: str
    lines: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    warnings: tuple[str, ...] = ()
    following: tuple[str, ...] = ()
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Detail:
    """How closely a reader looks. By default the answer and what it rests on, in one screen.

    ``is_full``: everything; ``rank``: the figures of this rank; ``metric``: those whose name fits this shell pattern,
    or holds it. ``is_per_rank``: with ``is_full``, each rank by itself; None: where there are at most four.
    """

    is_full: bool = False
    rank: int | None = None
    metric: str | None = None
    is_per_rank: bool | None = None

    @property
    def is_close(self) -> bool:
        """Whether the reader asked for single metrics or a rank."""
        return self.rank is not None or self.metric is not None

    def shows(self, name: str, rank: int | None) -> bool:
        """Whether a figure is among those asked for."""
        is_named = self.metric is None or self.metric in name or fnmatchcase(name, self.metric)
        return is_named and (self.rank is None or rank == self.rank)

    def is_ranked(self, num_ranks: int) -> bool:
        """Whether single ranks are shown beside the pooled figures."""
        return num_ranks <= MAX_RANKS_SHOWN if self.is_per_rank is None else self.is_per_rank


_SCREEN = (100, 25)
"""Columns and lines that the short form needs at most."""
_MAX_WARNINGS = 2
"""Warnings that the short form shows, the most important ones."""
_MIN_ROWS = 3


def first_warnings(lines: Sequence[str]) -> tuple[str, ...]:
    """The first few kinds of warnings, one of each, cut to its first statement, and how many more there are."""
    kinds = {line.rpartition(" [")[2]: line for line in reversed(lines)}
    shown = [_first_statement(line) for line in list(reversed(kinds.values()))[:_MAX_WARNINGS]]
    rest = len(lines) - len(shown)
    if rest:
        shown[-1] += f" (and {rest} more warning{'s' * (rest > 1)}: --full)"
    return tuple(shown)


def fitted(report: Report) -> Report:
    """The report with as many rows as one screen holds; the longest table gives way first."""
    texts = (report.title, *report.lines, *(f"! {w}" for w in report.warnings))
    used = sum(len(wrap(text, _SCREEN[0])) for text in texts) + 2 * len(report.sheets) + 2
    rows = [len(sheet.rows) for sheet in report.sheets]
    while sum(rows) > _SCREEN[1] - used and max(rows) > _MIN_ROWS:
        rows[max(range(len(rows)), key=lambda k: (rows[k], k))] -= 1
    sheets = (replace(s, rows=s.rows[:num]) for s, num in zip(report.sheets, rows, strict=True))
    return replace(report, sheets=tuple(sheets), width=_SCREEN[0])


def _first_statement(line: str, limit: int = 2 * _SCREEN[0] - 50) -> str:
    head, _, _ = line.partition("; ")
    return head if len(head) <= limit else f"{head[: limit - 1]}…"


def warning_text(finding: Finding) -> str:
    """A warning as one line."""
    where = "" if finding.rank is None else f"rank {finding.rank}: "
    return f"{where}{finding.text} [{finding.code}]"


def warning_lines(findings: Sequence[Finding]) -> list[str]:
    """One line a warning; one that more than a few ranks share is given for the worst of them, and the rest counted."""
    lines = []
    for _, same in groupby(findings, lambda f: f.code):
        group = list(same)
        if len({f.rank for f in group}) <= MAX_RANKS_SHOWN:
            lines += [warning_text(f) for f in group]
            continue
        worst = max(group, key=lambda f: f.count)
        lines.append(f"{warning_text(worst)}, and {len(group) - 1} more like it; all of them with --json")
    return lines


def by_section(items: Iterable[T], name: Callable[[T], str]) -> list[tuple[Chapter, list[T]]]:
    """Things by the section of their metric; each section is there, empty or not."""
    found: dict[Chapter, list[T]] = {chapter: [] for chapter in Chapter}
    for item in items:
        found[spec(name(item)).chapter].append(item)
    return list(found.items())


def identity(info: RunInfo) -> str:
    """Arm, workload, ranks and device of a run."""
    parts = (
        f"arm {info.arm}" if info.arm else "arm not stated",
        f"workload {info.workload}" if info.workload else "",
        f"{len(info.ranks)} rank{'s' if len(info.ranks) != 1 else ''}",
        f"device: {info.device}",
    )
    return ", ".join(p for p in parts if p)


def captured(info: RunInfo) -> str:
    """What recorded a run and where its ranks were read."""
    versions = " and ".join(sorted({f"{c.recorder} {c.exporter_version or ''}".strip() for c in info.captures}))
    return f"captured by {versions}; ranks from the {info.rank_source or 'nothing'}"


def cut(sheet: Sheet, limit: int = MAX_CAUSES) -> Sheet:
    """The first rows of a sheet, saying how many are left out: never silently."""
    rest = len(sheet.rows) - limit
    if rest <= 0:
        return sheet
    note = f"… and {rest} more rows; all of them with --json"
    return Sheet(sheet.title, sheet.columns, sheet.rows[:limit], sheet.left, note)


def main_ranges(total: dict[str, float]) -> set[str]:
    """The range metrics with most time in them, of a {metric: total time}."""
    return set(sorted(total, key=lambda name: (-total[name], name))[:_MAX_RANGES_SHOWN])


def left_out(num_ranges: int) -> str:
    """The note under a sheet that does not show all ranges: never silently."""
    return f"… and {num_ranges:,} more ranges with less time in them; all of them with --json" if num_ranges else ""
