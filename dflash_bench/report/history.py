"""Baselines over their sessions as a page: each metric's course, where it changed and whether it creeps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from html import escape
from statistics import median
from typing import Any

from dflash_bench.baseline.history import Course, course_rows
from dflash_bench.baseline.runs import Baseline
from dflash_bench.metrics.registry import spec
from dflash_bench.model import Better, Unit
from dflash_bench.report.changes import KEY_METRICS, Tone
from dflash_bench.report.charts import nice_ticks
from dflash_bench.report.page import render_page
from dflash_bench.report.units import percent, readable
from dflash_bench.stats.history import ChangePoint

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 600, 206, 72, 10, 30, 26
_LEAST_SPAN = 0.04
"""Of the median: less is not spread over the whole height of a chart, so that noise does not look like news."""


def history_page(histories: Sequence[tuple[Baseline, Sequence[Course]]], command: str) -> str:
    """One file with the history of each baseline: the answer, charts by metric, changes, and all sessions."""
    document = [{"baseline": b.key.text, "courses": [course_rows(c) for c in own]} for b, own in histories]
    one = histories[0][0].key
    return render_page(
        "history.html.j2",
        json.dumps({"histories": document}, ensure_ascii=False, separators=(",", ":")),
        title=f"History of {one.arm}, {one.workload}" if len(histories) == 1 else "History of all baselines",
        created=max((e.created_utc for b, _ in histories for e in b.history), default=""),
        command=command,
        parts=[_part(baseline, sorted(own, key=_place)) for baseline, own in histories],
    )


def _place(course: Course) -> tuple[int, str]:
    """What answers first stands first."""
    known = course.metric in KEY_METRICS
    return KEY_METRICS.index(course.metric) if known else len(KEY_METRICS), course.metric


def _part(baseline: Baseline, own: Sequence[Course]) -> dict[str, Any]:
    tone, answer = _answer(own)
    sessions = baseline.sessions()
    return {
        "title": baseline.key.text,
        "tone": tone,
        "answer": answer,
        "creeps": [f"{c.metric} creeps: {creep_words(c)}" for c in own if c.creep],
        "basis": f"{len(baseline.history)} runs in {len(sessions)} sessions",
        "changes": sorted(
            (_change_row(c, x) for c in own for x in c.changes), key=lambda row: row["day"], reverse=True
        ),
        "courses": [_course(c) for c in own],
        "sessions": [
            {
                "text": session.text,
                "commit": entries[-1].commit,
                "runs": len(entries),
                "figures": [dict(zip(c.sessions, c.values, strict=True)).get(session) for c in own],
            }
            for session, entries in reversed(sessions.items())
        ],
    }


_FEWEST = 6
_OPENINGS = {Tone.BETTER: "Better", Tone.WORSE: "Worse", Tone.OPEN: "Changed"}


def _answer(own: Sequence[Course]) -> tuple[Tone, str]:
    """Of the newest change of each metric one for the worse, else any: of the metric that answers first."""
    newest = [(c, c.changes[-1]) for c in own if c.changes]
    if newest:
        course, change = min(newest, key=lambda each: _change_tone(*each) is not Tone.WORSE)
        tone, commits = _change_tone(course, change), _commits(course, change)
        where = f", commits {commits}" if "…" in commits else f", commit {commits}" if commits else ""
        since = f"{_OPENINGS[tone]} since {course.sessions[change.index].day}"
        return tone, f"{since}: {course.metric} {_pair(course, change)} ({_size(course, change)}){where}"
    num = max(len(c.values) for c in own)
    if num < _FEWEST:
        return Tone.OPEN, f"{num} session{'s' * (num != 1)} so far: no change can be told from chance before {_FEWEST}"
    return Tone.SAME, f"No {'sudden ' * any(c.creep for c in own)}change in {num} sessions"


def _commits(course: Course, change: ChangePoint) -> str:
    """The last commit before a change and the first behind it, as far as they are known."""
    both = course.commits[change.index - 1 : change.index + 1]
    return " … ".join(dict.fromkeys(commit for commit in both if commit))


def change_words(course: Course, change: ChangePoint) -> str:
    """By how much a metric changed, when, and between which commits."""
    commits = _commits(course, change)
    return f"{_size(course, change)} from {course.sessions[change.index].day} on{f' ({commits})' if commits else ''}"


def _change_tone(course: Course, change: ChangePoint) -> Tone:
    """Whether a change was for the better."""
    better = spec(course.metric).better
    if better is Better.NONE:
        return Tone.OPEN
    return Tone.BETTER if (change.after < change.before) == (better is Better.LOWER) else Tone.WORSE


def _pair(course: Course, change: ChangePoint) -> str:
    """``9.57 → 9.98 ms``."""
    before, after, unit = readable(change.before, change.after, unit=course.unit)
    return f"{before} → {after} {unit}".rstrip()


def creep_words(course: Course) -> str:
    """By how much a metric creeps from session to session; empty where it does not."""
    return "" if course.creep is None else f"{percent(course.share(course.creep.slope))} a session"


def _size(course: Course, change: ChangePoint) -> str:
    if course.unit is Unit.FRACTION:
        size, unit = readable(change.after - change.before, unit=course.unit, is_signed=True)
        return f"{size} {unit}"
    return percent(course.share(change.after - change.before))


def _change_row(course: Course, change: ChangePoint) -> dict[str, Any]:
    return {
        "day": course.sessions[change.index].day,
        "metric": course.metric,
        "pair": _pair(course, change),
        "size": _size(course, change),
        "tone": _change_tone(course, change),
        "commits": _commits(course, change) or "not recorded",
    }


def _course(course: Course) -> dict[str, Any]:
    first, newest, unit = readable(course.values[0], course.values[-1], unit=course.unit)
    words = [f"{len(course.values)} sessions, {first} {unit} at first and {newest} {unit} now".replace("  ", " ")]
    words += [change_words(course, change) for change in course.changes]
    words += [f"creeps, {creep_words(course)}"] if course.creep else []
    words += ["no change"] if len(words) == 1 else []
    known = spec(course.metric)
    return {
        "metric": course.metric,
        "meaning": known.meaning,
        "better": known.better,
        "unit": course.unit,
        "words": "; ".join(words),
        "chart": _chart(course, "; ".join(words)),
    }


def _chart(course: Course, words: str) -> str:
    """Sessions side by side, their runs behind them, the level between two changes as a band."""
    every = [value for runs in course.runs for value in runs]
    low, high = min(every), max(every)
    missing = _LEAST_SPAN * abs(median(every)) - (high - low)
    margin = max(missing / 2, 0.08 * (high - low)) or 1.0
    low, high = low - margin, high + margin
    num = len(course.values)
    *_, unit = readable(high, unit=course.unit)

    def x(place: float) -> float:
        return round(_LEFT + (place + 0.5) * (_WIDTH - _LEFT - _RIGHT) / num, 1)

    def y(value: float) -> float:
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low), 1)

    factor = {"ms": 1e-6, "µs": 1e-3, "%": 100.0}.get(unit, 1.0)
    parts = []
    for tick in nice_ticks(low * factor, high * factor, 4):
        at = y(tick / factor)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at}" dy="4" text-anchor="end">{_number(tick)}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="12" text-anchor="end">{unit}</text>')
    parts += _levels(course, x, y)
    parts += _days(course, x)
    for k, (session, commit, value, runs) in enumerate(
        zip(course.sessions, course.commits, course.values, course.runs, strict=True)
    ):
        parts += [f'<circle class="run" cx="{x(k)}" cy="{y(own)}" r="2"/>' for own in runs]
        shown, name = readable(value, unit=course.unit)
        told = f"{session.text}{f', {commit}' if commit else ''}: {shown} {name}, {len(runs)} runs"
        parts.append(
            f'<circle class="session" cx="{x(k)}" cy="{y(value)}" r="3.5"><title>{escape(told)}</title></circle>'
        )
    label = escape(f"{course.metric} over sessions: {words}")
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return f'<svg class="course" viewBox="{box}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _levels(course: Course, x: Any, y: Any) -> Iterator[str]:
    """The medians between changes, and each change with its size."""
    cuts = [0, *(change.index for change in course.changes), len(course.values)]
    for begin, end in itertools.pairwise(cuts):
        level = y(median(course.values[begin:end]))
        yield f'<line class="level" x1="{x(begin - 0.5)}" x2="{x(end - 0.5)}" y1="{level}" y2="{level}"/>'
    for change in course.changes:
        at, tone = x(change.index - 0.5), _change_tone(course, change)
        anchor = "end" if at > _WIDTH / 2 else "start"
        text = f"{_size(course, change)} from {course.sessions[change.index].day}"
        yield f'<line class="cut {tone}" x1="{at}" x2="{at}" y1="{_TOP - 8}" y2="{_HEIGHT - _BOTTOM}"/>'
        yield f'<text class="cut {tone}" x="{at}" y="{_TOP - 12}" text-anchor="{anchor}">{text}</text>'


def _days(course: Course, x: Any) -> Iterator[str]:
    """The days of some sessions, as many as have room."""
    num = len(course.values)
    step = -(-num // 8)
    for k in range(0, num, step):
        yield f'<text x="{x(k)}" y="{_HEIGHT - 6}" text-anchor="middle">{course.sessions[k].day[5:]}</text>'


def _number(value: float) -> str:
    return f"{value:,.6g}".replace("-", "−")
