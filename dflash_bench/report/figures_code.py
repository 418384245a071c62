"""Figures about code: what made the host wait, what let the GPU run dry, what an allocation step costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_bench.metrics.summary import figure
from dflash_bench.model import Comparison, RunMetrics, Unit, Value
from dflash_bench.report.figures import (
    Figure,
    Trace,
    built,
    curve,
    label,
    layout,
    row_annotations,
    shown,
    side_names,
    sides,
    value_axis,
)
from dflash_bench.report.sides import pooled
from dflash_bench.report.units import milliseconds

MAX_CAUSES = 8
WORTH_NAMING = 0.1
"""Share of all waiting from which a piece of code is named in a sentence."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of a cause table over all ranks: ``where`` is the range path or cause, ``call`` the API call if apart."""

    where: str
    call: str
    count: int
    total_ns: int

    @property
    def code(self) -> str:
        """The innermost range."""
        return self.where.rsplit(" > ", 1)[-1]

    @property
    def name(self) -> str:
        """As people say it: a dash of the metrics is time outside the steps, or plain CPU work."""
        code, _, call = (self.code, "", self.call) if self.call else self.where.rpartition(" · ")
        named = {"-": "outside steps"}.get(code, code), {"-": "CPU work"}.get(call, call)
        return " · ".join(part for part in named if part)


def host_waits(run: RunMetrics) -> list[Cause]:
    """``sync.by_range`` over all ranks, the longest first."""
    return [Cause(str(w), str(call), _int(n), _int(total)) for _, w, call, n, total, *_ in _rows(run, "sync.by_range")]


def stalls(run: RunMetrics) -> list[Cause]:
    """``stall.by_cause`` over all ranks, the longest first."""
    return [Cause(str(cause), "", _int(n), _int(total)) for _, cause, n, total, *_ in _rows(run, "stall.by_cause")]


def _rows(run: RunMetrics, name: str) -> list[tuple[Value, ...]]:
    rows = [row for table in run.tables if table.name == name for row in table.rows if row[0] is None]
    return sorted(rows, key=lambda row: -_int(row[-2]))


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def wait_sentence(side: str, run: RunMetrics) -> str:
    """Which code made the host of a run wait, in one sentence with its totals over all ranks."""
    causes = host_waits(run)
    total = sum(c.total_ns for c in causes)
    if not total:
        return f"{side}: no host wait was captured."
    named = [c for c in causes if c.total_ns >= WORTH_NAMING * total]
    parts = [
        f"{c.code} ({milliseconds(c.total_ns)} ms in {c.count:,} {c.call}, {c.total_ns / total:.0%})" for c in named
    ]
    return f"{side}: the host waited in {' and '.join(parts)}."


def cause_figures(comparison: Comparison) -> list[Figure]:
    """Host waits by code, and idle time of streams by what the host did; each only where one of the runs has any."""
    names = side_names(comparison)
    waits = (host_waits(comparison.base), host_waits(comparison.candidate))
    dry = (stalls(comparison.base), stalls(comparison.candidate))
    words = " ".join(wait_sentence(s, r) for s, r in zip(names, (comparison.base, comparison.candidate), strict=True))
    found = (
        _bars("waits", "Host waits by code", words, comparison, waits),
        _bars("stalls", "What the host did while the GPU had run dry", _stall_words(names, dry), comparison, dry),
    )
    return [f for f in found if f is not None]


def _stall_words(names: tuple[str, str], dry: tuple[Sequence[Cause], Sequence[Cause]]) -> str:
    parts = []
    for side, causes in zip(names, dry, strict=True):
        most = ", ".join(f"{c.name} {milliseconds(c.total_ns)} ms" for c in causes[:3]) or "nothing"
        parts.append(f"{side}: {milliseconds(sum(c.total_ns for c in causes))} ms lost, most to {most}.")
    return " ".join(parts) + " A cause is the innermost range and the CUDA call in it, or plain CPU work."


def _bars(
    key: str, title: str, words: str, comparison: Comparison, causes: tuple[Sequence[Cause], Sequence[Cause]]
) -> Figure | None:
    totals: dict[tuple[str, str], list[Cause | None]] = {}
    for place, side in enumerate(causes):
        for cause in side:
            totals.setdefault((cause.where, cause.call), [None, None])[place] = cause
    rows = sorted(totals.values(), key=lambda pair: -max(c.total_ns for c in pair if c))
    if not rows:
        return None
    shown_rows = rows[:MAX_CAUSES]
    rest = len(rows) - len(shown_rows)
    note = f" {rest} smaller ones are in the data alone." if rest else ""
    traces: list[Trace] = [
        {"type": "bar", "orientation": "h", "name": side, "marker": {"color": colour}, "width": 0.2}
        | {"y": [k - 0.02 + 0.24 * place for k in range(len(shown_rows))], "hoverinfo": "text"}
        | {"x": [c.total_ns / 1e6 if (c := pair[place]) else 0 for pair in shown_rows]}
        | {"hovertext": [_hover(side, pair[place]) for pair in shown_rows]}
        for place, (side, _, colour) in enumerate(sides(comparison))
    ]
    names = [next(c.name for c in pair if c) for pair in shown_rows]
    return built(
        key,
        title,
        f"{words} Totals over all ranks.{note}",
        traces,
        layout(
            90 + 54 * len(shown_rows),
            {"title": {"text": "total, ms"}, "rangemode": "tozero"},
            {"range": [len(shown_rows) - 0.5, -0.75], "showticklabels": False, "showgrid": False, "zeroline": False},
            barmode="overlay",
            annotations=[a | {"y": a["y"] + 0.16} for a in row_annotations(label(name) for name in names)],
        ),
    )


def _hover(side: str, cause: Cause | None) -> str:
    if cause is None:
        return f"{label(side)}: none"
    path = label(cause.where, limit=120)
    return f"{label(side)}<br>{path} {label(cause.call)}<br>{cause.count:,} times, {milliseconds(cause.total_ns)} ms"


# ── allocation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def allocation_figure(comparison: Comparison) -> Figure | None:
    """Distribution of ``prepare_for_decode`` on steps that allocated and on the others, before and after."""
    traces, words, every = [], [], []
    for side, run, colour in sides(comparison):
        cost, share = pooled(run, "alloc.step_cost"), pooled(run, "alloc.step_share")
        if share is not None:
            words.append(f"{side}: {shown(figure(share), Unit.FRACTION)} of {share.n:,} steps allocate")
        if cost is None or cost.group is None:
            continue
        num_alloc = int(cost.group.sum())
        words[-1:] = [f"{words[-1] if words else side}, which costs such a step {shown(figure(cost), Unit.NS)}"]
        for is_alloc, dash, what in ((True, "dash", "allocating"), (False, "solid", "other")):
            values = cost.values[cost.group == is_alloc]
            every.append(values)
            n = num_alloc if is_alloc else cost.n - num_alloc
            traces.append(curve(values, Unit.NS, f"{side}, {what} (n = {n:,})", colour, dash))
    if not traces:
        return None
    return built(
        "allocation",
        "prepare_for_decode on steps that allocate, and on the others",
        ". ".join(words) + ".",
        traces,
        layout(
            320,
            {"title": {"text": "range.prepare_for_decode, µs"}} | value_axis(every, Unit.NS),
            {"title": {"text": "share of samples up to it"}, "range": [0, 1.02], "tickformat": ".0%"},
        ),
    )
