"""Sheets: what a report shows, as titles and rows of text, whether a terminal or Markdown will show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from dflash_bench.metrics.registry import Chapter, spec
from dflash_bench.model import Finding, RunInfo

T = TypeVar("T")
MAX_RANKS_SHOWN = 4
MAX_CAUSES = 10
MAX_RANGES_SHOWN = 40
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
    """A whole report: headline, lines of text, sheets, warnings."""

    title: str
    lines: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    warnings: tuple[str, ...] = ()


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
    return set(sorted(total, key=lambda name: (-total[name], name))[:MAX_RANGES_SHOWN])


def left_out(num_ranges: int) -> str:
    """The note under a sheet that does not show all ranges: never silently."""
    return f"… and {num_ranges:,} more ranges with less time in them; all of them with --json" if num_ranges else ""
