"""The forest: by how much each metric changed, and how sure that is, one row a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash_bench.model import Change, Comparison, Unit
from dflash_bench.report.changes import KEY_METRICS, Tone, pooled_changes, tone
from dflash_bench.report.figures import (
    BETTER_COLOUR,
    WORSE,
    Figure,
    Trace,
    both_figures,
    built,
    change_hover,
    label,
    layout,
    row_annotations,
)
from dflash_bench.report.units import symbol
from dflash_bench.stats.judgement import Judgements

MAX_ROWS = 18
"""Rows of a forest; the table has all of them."""

GREY = "#8a8a8a"
BAND = "rgba(128,128,128,0.08)"
_COLOURS = {Tone.BETTER: BETTER_COLOUR, Tone.WORSE: WORSE, Tone.SAME: GREY}
_WORDS = {Tone.BETTER: ("better", "improved"), Tone.WORSE: ("worse", "regressed"), Tone.SAME: ("", "")}
_ORDER = (Tone.WORSE, Tone.BETTER, Tone.SAME)
_NAME_ABOVE, _DOT_BELOW = 0.26, 0.16
"""Where in its row a name and its dot lie: nearer to one another than to the neighbours."""

_LEFT_OUT = ("coverage.", "clock.", "gpu_work_without_launch", "range.cub::", "consistency.")
WINDOWS = (5.0, 10.0, 25.0, 50.0, 100.0, 400.0)
"""Half-widths that the axis of relative changes may have, %."""

_INSIDE = 0.7
"""Share of the rows that the axis shows to scale; those beyond it would squeeze all others into a line."""


def forest_figures(comparison: Comparison, judgements: Judgements | None = None) -> list[Figure]:
    """Changes in % of the base; times whose sign changes, as leads do, and those from zero, in their own unit.

    Colours follow the verdicts; without any, they tell on which side of zero the interval lies.
    """
    eligible = [
        c for c in pooled_changes(comparison) if c.difference is not None and not c.metric.startswith(_LEFT_OUT)
    ]
    relative = [c for c in eligible if c.base is not None and c.candidate is not None and c.base > 0 <= c.candidate]
    absolute = [c for c in eligible if c not in relative and c.unit is Unit.NS and c.interval is not None]
    found = (
        _forest("forest-relative", "By how much each figure changed", relative, judgements, is_relative=True),
        _forest("forest-absolute", "The same for leads and idle times", absolute, judgements, is_relative=False),
    )
    return [f for f in found if f is not None]


def _forest(
    key: str, title: str, changes: Sequence[Change], judgements: Judgements | None, *, is_relative: bool
) -> Figure | None:
    if not changes:
        return None
    rows = sorted(changes, key=lambda c: _place(c, judgements, is_relative=is_relative))[:MAX_ROWS]
    tones = [tone(c, judgements) for c in rows]
    window = _window(rows) if is_relative else None
    words = [_WORDS[t][judgements is not None] for t in tones]
    names = [
        f"{label(c.metric)} {both_figures(c)}" + (f" · {w}" if w else "") for c, w in zip(rows, words, strict=True)
    ]
    said = "; ".join(
        f"{c.metric} {both_figures(c)}{f' ({w})' if w else ''}" for c, w in list(zip(rows, words, strict=True))[:5]
    )
    axis: dict[str, Any] = {"title": {"text": "difference, % of base" if is_relative else f"difference, {_US}"}}
    if window is not None:
        axis |= {"range": [-1.04 * window, 1.04 * window], "ticksuffix": " %", "tickformat": "+,~f"}
    bands = [_band(k) for k in range(0, len(rows), 2)]
    return built(
        key,
        title,
        f"{said}.{_notes(changes, rows, window)}",
        _traces(rows, [_COLOURS[t] for t in tones], window),
        layout(
            64 + 40 * len(rows),
            axis,
            {"range": [len(rows) - 0.5, -0.5], "showticklabels": False, "zeroline": False, "showgrid": False},
            annotations=row_annotations(names, _NAME_ABOVE),
            shapes=[*bands, {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1} | _DOTTED],
        ),
    )


_US = symbol(Unit.NS)
_DOTTED = {"line": {"color": GREY, "width": 1, "dash": "dot"}}


def _band(row: int) -> Trace:
    """A ground under every other row, so that a name and its dot are seen to belong together."""
    place = {"xref": "paper", "x0": 0, "x1": 1, "y0": row - 0.5, "y1": row + 0.5}
    return {"type": "rect", "layer": "below", "fillcolor": BAND, "line": {"width": 0}} | place


def _place(change: Change, judgements: Judgements | None, *, is_relative: bool) -> tuple[int, int, float]:
    """What got worse, then what got better, then the rest; in each the metrics that answer first, then by size."""
    first = KEY_METRICS.index(change.metric) if change.metric in KEY_METRICS else len(KEY_METRICS)
    return _ORDER.index(tone(change, judgements)), first, -abs(_at(change, change.difference or 0.0, is_relative))


def _at(change: Change, difference: float, is_relative: bool) -> float:
    """A difference on the axis: % of the base, or µs."""
    return 100 * difference / change.base if is_relative and change.base else difference / 1000


def _reach(change: Change) -> float:
    """How far out the interval of a relative change ends."""
    found = change.interval
    return max(abs(_at(change, end, True)) for end in (found.low, found.high)) if found else 0.0


def _window(rows: Sequence[Change]) -> float:
    """The narrowest half-width that holds most of the rows."""
    far = sorted(abs(_at(c, c.difference or 0.0, True)) for c in rows)
    needed = far[int(_INSIDE * (len(far) - 1))]
    return next((w for w in WINDOWS if w >= needed), WINDOWS[-1])


def _notes(changes: Sequence[Change], rows: Sequence[Change], window: float | None) -> str:
    note = ""
    if any(c.interval is None for c in rows):
        note += " A hollow dot has no interval: an exact count, too few samples, or a single value."
    if window is not None and any(abs(_at(c, c.difference or 0.0, True)) > window for c in rows):
        note += " A triangle at an edge lies beyond it."
    if window is not None and any(_reach(c) > window for c in rows):
        note += " A line that runs out of the figure goes on outside."
    rest = len(changes) - len(rows)
    return note + (f" {rest} more are left to the table." if rest else "")


def _traces(rows: Sequence[Change], colours: Sequence[str], window: float | None) -> list[Trace]:
    """A dot with its interval, a hollow one without, a triangle beyond the window; row k at y = k."""
    is_relative = window is not None
    at = [_at(c, c.difference or 0.0, is_relative) for c in rows]
    places = list(range(len(rows)))
    beyond = [k for k in places if window is not None and abs(at[k]) > window]
    known = [k for k in places if k not in beyond and rows[k].interval is not None]
    hollow = [k for k in places if k not in beyond and rows[k].interval is None]
    ends = [
        (at[k] - _at(rows[k], span.low, is_relative), _at(rows[k], span.high, is_relative) - at[k])
        for k in known
        if (span := rows[k].interval) is not None
    ]
    bars = {"type": "data", "symmetric": False, "thickness": 2, "width": 4, "color": GREY}
    bars |= {"arrayminus": [low for low, _ in ends], "array": [high for _, high in ends]}
    edge = window or 0.0
    return [
        _dots(known, [at[k] for k in known], rows, colours, "circle") | {"error_x": bars},
        _dots(hollow, [at[k] for k in hollow], rows, colours, "circle-open"),
        _dots(
            beyond,
            [edge if at[k] > 0 else -edge for k in beyond],
            rows,
            colours,
            ["triangle-right" if at[k] > 0 else "triangle-left" for k in beyond],
        ),
    ]


def _dots(
    places: Sequence[int], x: list[float], rows: Sequence[Change], colours: Sequence[str], mark: str | list[str]
) -> Trace:
    own = [colours[k] for k in places]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": [k + _DOT_BELOW for k in places],
        "marker": {"color": own, "size": 10, "symbol": mark, "line": {"color": own, "width": 1.5}},
        "hoverinfo": "text",
        "hovertext": [change_hover(rows[k]) for k in places],
    }
