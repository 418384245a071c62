"""Figures over many metrics at once: by how much each changed, and on which rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dflash_bench.model import Better, Change, Comparison, Unit
from dflash_bench.report.figures import (
    BETTER_COLOUR,
    WORSE,
    Figure,
    Trace,
    built,
    display,
    label,
    layout,
    row_annotations,
    shown,
)
from dflash_bench.report.units import MISSING, symbol, text

MAX_ROWS = 18
"""Rows of a forest; the table has all of them."""

GREY = "#8a8a8a"
DOT_BELOW_NAME = 0.12
_LEFT_OUT = ("coverage.", "clock.", "gpu_work_without_launch", "range.cub::", "consistency.")
HEAT_METRICS = (
    "step.period",
    "range.prepare_for_decode",
    "range.dp_agreement",
    "alloc.step_share",
    "step.lead",
    "launch.run_ahead_fraction",
    "stall.total_per_step",
    "sync.total_per_step",
    "dp.wait",
    "dp.straggler_share",
    "tokens.per_s",
)


def pooled_changes(comparison: Comparison) -> list[Change]:
    """One change a metric: over all ranks, or of the only rank."""
    pooled = [c for c in comparison.changes if c.rank is None]
    names = {c.metric for c in pooled}
    ranks = {c.rank for c in comparison.changes if c.rank is not None}
    return pooled + [c for c in comparison.changes if c.metric not in names and len(ranks) == 1]


def direction(change: Change) -> int:
    """+1 where the candidate's figure lies in the better direction, −1 in the worse one, 0 where none is."""
    if change.better is Better.NONE or not change.difference:
        return 0
    return 1 if (change.difference < 0) == (change.better is Better.LOWER) else -1


def excludes_zero(change: Change) -> bool:
    """Whether the interval of the difference lies on one side of zero."""
    found = change.interval
    return found is not None and (found.low > 0 or found.high < 0)


def _colour(change: Change) -> str:
    if not excludes_zero(change):
        return GREY
    return {1: BETTER_COLOUR, -1: WORSE, 0: GREY}[direction(change)]


def forest_figures(comparison: Comparison) -> list[Figure]:
    """Ratios on a logarithmic axis; times whose sign changes, as leads do, as differences on a linear one."""
    eligible = [c for c in pooled_changes(comparison) if not c.metric.startswith(_LEFT_OUT)]
    by_ratio = [c for c in eligible if c.ratio is not None and c.ratio > 0 and c.base is not None and c.base > 0]
    by_difference = [
        c for c in eligible if c not in by_ratio and c.unit is Unit.NS and c.interval is not None and c.difference
    ]
    return [
        *_forest("forest-ratio", "Candidate as a multiple of base", by_ratio, is_ratio=True),
        *_forest("forest-difference", "Candidate − base, where a ratio means nothing", by_difference, is_ratio=False),
    ]


def _forest(key: str, title: str, changes: Sequence[Change], *, is_ratio: bool) -> list[Figure]:
    if not changes:
        return []
    rows = sorted(changes, key=lambda c: _size(c, is_ratio=is_ratio), reverse=True)[:MAX_ROWS]
    left_out = len(changes) - len(rows)
    rest = f" {left_out} with smaller differences are left to the table." if left_out else ""
    words = "; ".join(_words(c, is_ratio=is_ratio) for c in rows[:5])
    note = " A hollow dot has no interval: too few samples, or a single value." if is_hollow(rows) else ""
    if is_ratio and any(_low_ratio(c) <= 0 for c in rows):
        note += " An interval that reaches zero or less runs out at the left."
    axis: dict[str, Any] = (
        {"type": "log", "title": {"text": "candidate ÷ base, logarithmic"}, "tickformat": "~r", "range": _decades(rows)}
        if is_ratio
        else {"title": {"text": f"candidate − base, {symbol(Unit.NS)}"}}
    )
    none = 1 if is_ratio else 0
    mark = {"type": "line", "x0": none, "x1": none, "yref": "paper", "y0": 0, "y1": 1}
    return [
        built(
            key,
            title,
            f"Largest first: {words}.{note}{rest}",
            _forest_traces(rows, is_ratio=is_ratio),
            layout(
                64 + 40 * len(rows),
                axis,
                {"range": [len(rows) - 0.4, -0.8], "showticklabels": False, "zeroline": False}
                | {"tickvals": [k + DOT_BELOW_NAME for k in range(len(rows))]},
                annotations=row_annotations(f"{label(c.metric)}{_tone(c)}" for c in rows),
                shapes=[mark | {"line": {"color": GREY, "width": 1, "dash": "dot"}}],
            ),
        )
    ]


def _size(change: Change, *, is_ratio: bool) -> float:
    return abs(math.log(change.ratio)) if is_ratio and change.ratio else abs(change.difference or 0.0)


def _tone(change: Change) -> str:
    """Better or worse as a word too: colour alone does not reach everybody."""
    return {1: " · better", -1: " · worse", 0: ""}[direction(change) if excludes_zero(change) else 0]


def is_hollow(rows: Sequence[Change]) -> bool:
    """Whether any of them has no interval."""
    return any(c.interval is None for c in rows)


def _low_ratio(change: Change) -> float:
    """Lower end of the interval as a ratio."""
    return 1 + change.interval.low / change.base if change.interval and change.base else 1.0


def _decades(rows: Sequence[Change]) -> list[float]:
    """Range of the logarithmic axis, in decades: all points, and ends of intervals as far as they are above zero."""
    ends = [e for c in rows for e in (c.ratio or 1.0, _low_ratio(c)) if e > 0]
    ends += [1 + c.interval.high / c.base for c in rows if c.interval and c.base]
    lowest = max(min(ends), min(c.ratio or 1.0 for c in rows) / 3)
    return [math.log10(min(lowest, 0.8)) - 0.1, math.log10(max(*ends, 1.25)) + 0.1]


def _words(change: Change, *, is_ratio: bool) -> str:
    size = f"× {change.ratio:,.3f}" if is_ratio else shown(change.difference, change.unit, is_signed=True)
    return f"{change.metric} {size}"


def _forest_traces(rows: Sequence[Change], *, is_ratio: bool) -> list[Trace]:
    """Dots with their intervals, and hollow dots where there is none; row k at y = k."""
    known = [(k, c) for k, c in enumerate(rows) if c.interval is not None]
    unknown = [(k, c) for k, c in enumerate(rows) if c.interval is None]
    dots = _dots(known, "circle", is_ratio=is_ratio)
    spans = [
        [abs(_place(c, end, is_ratio=is_ratio) - x) for end in (c.interval.low, c.interval.high)]
        for (_, c), x in zip(known, dots["x"], strict=True)
        if c.interval is not None
    ]
    bars = {"type": "data", "symmetric": False, "thickness": 2, "width": 4, "color": GREY}
    bars |= {"arrayminus": [low for low, _ in spans], "array": [high for _, high in spans]}
    return [dots | {"error_x": bars}, _dots(unknown, "circle-open", is_ratio=is_ratio)]


def _place(change: Change, difference: float, *, is_ratio: bool) -> float:
    if is_ratio and change.base:
        # a logarithmic axis has no place for what is not positive: far out on the left
        return max(1 + difference / change.base, 1e-9)
    return float(display(np.array(difference), change.unit))


def _dots(rows: Sequence[tuple[int, Change]], symbol: str, *, is_ratio: bool) -> Trace:
    colours = [_colour(c) for _, c in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_place(c, c.difference or 0.0, is_ratio=is_ratio) for _, c in rows],
        "y": [k + DOT_BELOW_NAME for k, _ in rows],
        "marker": {"color": colours, "size": 10, "symbol": symbol, "line": {"color": colours, "width": 1.5}},
        "hoverinfo": "text",
        "hovertext": [_hover(c) for _, c in rows],
    }


def _hover(change: Change) -> str:
    found = change.interval
    span = MISSING
    if found is not None:
        span = f"{text(found.low, change.unit, is_signed=True)} … {shown(found.high, change.unit, is_signed=True)}"
    return (
        f"<b>{label(change.metric)}</b><br>{shown(change.base, change.unit)} → {shown(change.candidate, change.unit)}"
        f"<br>difference {shown(change.difference, change.unit, is_signed=True)}<br>95 % interval {span}"
    )


# ── heat map ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def heat_map(comparison: Comparison) -> Figure | None:
    """How far each rank moved in the better or worse direction; None for fewer than two ranks.

    The colour is (candidate − base) ÷ (|candidate| + |base|), turned so that better is positive: −1 … 1 for every
    metric, also for leads, whose sign changes.
    """
    found = {(c.metric, c.rank): c for c in comparison.changes if c.rank is not None}
    ranks = sorted({rank for _, rank in found if rank is not None})
    names = [name for name in HEAT_METRICS if any((name, rank) in found for rank in ranks)]
    if len(ranks) < 2 or not names:
        return None
    cells = [[found.get((name, rank)) for rank in ranks] for name in names]
    worst = sorted((c for row in cells for c in row if c and (_movement(c) or 0) < 0), key=lambda c: _movement(c) or 0)
    words = "; ".join(
        f"{c.metric} on rank {c.rank} {text(c.base, c.unit)} → {shown(c.candidate, c.unit)}" for c in worst[:3]
    )
    trace: Trace = {
        "type": "heatmap",
        "z": [[_movement(c) if c else None for c in row] for row in cells],
        "x": list(range(len(ranks))),
        "y": list(range(len(names))),
        "zmin": -1,
        "zmax": 1,
        "colorscale": [[0, "rgba(208,112,47,0.85)"], [0.5, "rgba(128,128,128,0.06)"], [1, "rgba(47,129,208,0.85)"]],
        "xgap": 2,
        "ygap": 20,
        "hoverinfo": "text",
        "hovertext": [[f"rank {ranks[k]}<br>{_hover(c)}" if c else "" for k, c in enumerate(row)] for row in cells],
        "colorbar": {"thickness": 10, "tickvals": [-1, 0, 1], "ticktext": ["worse", "same", "better"]}
        | {"orientation": "h", "y": -0.16, "yanchor": "top", "len": 0.8, "outlinewidth": 0},
    }
    if len(ranks) <= 4:
        trace |= {"text": [[_cell(c) for c in row] for row in cells], "texttemplate": "%{text}"}
    axis = {"tickvals": list(range(len(ranks))), "ticktext": [str(r) for r in ranks], "title": {"text": "rank"}}
    below = f"In the worse direction moved most: {words}." if words else "No rank moved in the worse direction."
    return built(
        "heat-ranks",
        "Which rank moved, and which way",
        f"{len(ranks)} ranks × {len(names)} metrics. {below}",
        [trace],
        layout(
            130 + 48 * len(names),
            {**axis, "showgrid": False, "zeroline": False, "fixedrange": True},
            {"autorange": "reversed", "showticklabels": False, "showgrid": False, "zeroline": False},
            annotations=row_annotations(label(name) for name in names),
        ),
    )


def _movement(change: Change) -> float | None:
    if change.difference is None or change.base is None or change.candidate is None:
        return None
    size = abs(change.base) + abs(change.candidate)
    return round(direction(change) * abs(change.difference) / size, 4) if size else 0.0


def _cell(change: Change | None) -> str:
    return MISSING if change is None else f"{text(change.base, change.unit)} → {shown(change.candidate, change.unit)}"
