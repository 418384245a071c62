"""Figures of the HTML report: what they share, and the curves.

Plotly draws them in the page: it zooms, tells values on hover and needs no server, and its specification is plain data
that is built and tested here. Each figure carries its key numbers as text, for screen readers and for the impatient.
Colours are mid-tones that read on light and on dark; text and lines take the page's own colours from its style sheet.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure, summarise
from dflash_bench.model import Better, Change, Comparison, FloatArray, Metric, RunMetrics, Unit
from dflash_bench.report.sides import pooled
from dflash_bench.report.units import MISSING, symbol, text

BASE, CANDIDATE = "#8a8178", "#2f81d0"
WORSE, BETTER_COLOUR = "#d0702f", "#2f81d0"
MUTED = "rgba(128,128,128,0.35)"
GRID = "rgba(128,128,128,0.22)"
MAX_POINTS = 400
"""Points of a curve: more than a screen has columns would only make the file heavy."""

LOGARITHMIC_FROM = 20.0
"""Ratio of an axis' ends from which it is logarithmic."""

MAX_LABEL = 48
Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """What a colour or a line stands for. ``line`` is ``solid``, ``dash``, ``dot`` or, for areas, empty."""

    name: str
    colour: str
    line: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the page. ``spec`` is Plotly's JSON, ``text`` says in words and numbers what it shows.

    The page writes the legend: Plotly's own is laid out once and overlaps the curves on paper and on phones.
    """

    key: str
    title: str
    text: str
    spec: str
    legend: tuple[LegendEntry, ...]


def built(key: str, title: str, words: str, traces: Sequence[Trace], layout: dict[str, Any]) -> Figure:
    """Freeze traces and layout. Raises ValueError for a number that is none: JSON has no NaN.

    A trace's ``name`` may hold anything; it goes into the legend as it is and into the figure escaped. The tests hold
    every figure against Plotly's schema: to do that here would take most of the time that a report takes.
    """
    legend = [_entry(t) for t in traces if "name" in t]
    escaped = [t | {"name": label(t["name"])} if "name" in t else t for t in traces]
    content = {"data": escaped, "layout": {"showlegend": False, **layout}}
    return Figure(key, title, words, json.dumps(content, default=_listed, allow_nan=False), tuple(legend))


def _listed(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in a figure")


def _entry(trace: Trace) -> LegendEntry:
    line = trace.get("line", {})
    is_area = trace["type"] == "bar"
    colour = trace["marker"]["color"] if is_area else line["color"]
    return LegendEntry(
        trace["name"], colour[0] if isinstance(colour, list) else colour, "" if is_area else line.get("dash", "solid")
    )


def layout(height: int, x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The common look: no background of its own, thin grid, only the x axis zooms."""
    line = {"gridcolor": GRID, "zerolinecolor": MUTED, "linecolor": MUTED, "automargin": True}
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {"align": "left", "font": {"size": 12}},
        "xaxis": {**line, "tickformat": ",~f", **x},
        "yaxis": {**line, "fixedrange": True, "tickformat": ",~f", **y},
        **more,
    }


def label(name: str, limit: int = MAX_LABEL) -> str:
    """A name from a profiled program as Plotly text: its pseudo-HTML means nothing in it, and it is not endless."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    return html.escape(clean if len(clean) <= limit else f"{clean[: limit - 1]}…")


def shown(value: float | None, unit: Unit, *, is_signed: bool = False) -> str:
    """A figure with its unit."""
    return f"{text(value, unit, is_signed=is_signed)} {symbol(unit)}".strip()


def display(values: FloatArray, unit: Unit) -> FloatArray:
    """Stored figures in the unit that axes are in: µs, %, all else as it is."""
    factor = {Unit.NS: 1e-3, Unit.FRACTION: 100.0}.get(unit, 1.0)
    return np.asarray(values, np.float64) * factor


def row_annotations(names: Iterable[str], above: float = 0.48) -> list[dict[str, Any]]:
    """A name above each of rows 0, 1, …: beside them, long names would leave a phone no room for the figure."""
    return [
        {"x": 0, "xref": "paper", "xanchor": "left", "y": k - above, "yanchor": "middle", "text": name}
        | {"showarrow": False, "font": {"size": 12}}
        for k, name in enumerate(names)
    ]


def both_figures(change: Change) -> str:
    """The figures of base and candidate, with their unit."""
    return f"{text(change.base, change.unit)} → {shown(change.candidate, change.unit)}"


def change_hover(change: Change) -> str:
    """What a change says when pointed at."""
    found = change.interval
    span = MISSING
    if found is not None:
        span = f"{text(found.low, change.unit, is_signed=True)} … {shown(found.high, change.unit, is_signed=True)}"
    return (
        f"<b>{label(change.metric)}</b><br>{both_figures(change)}"
        f"<br>difference {shown(change.difference, change.unit, is_signed=True)}<br>95 % interval {span}"
    )


def sides(comparison: Comparison) -> tuple[tuple[str, RunMetrics, str], tuple[str, RunMetrics, str]]:
    """(name in legends, run, colour) of base and candidate: by their arms where these differ."""
    names = side_names(comparison)
    return (names[0], comparison.base, BASE), (names[1], comparison.candidate, CANDIDATE)


def side_names(comparison: Comparison) -> tuple[str, str]:
    """What the two runs are called in the report."""
    base, candidate = comparison.base.info, comparison.candidate.info
    if base.arm and candidate.arm and base.arm != candidate.arm:
        return base.arm, candidate.arm
    return (base.run, candidate.run) if base.run != candidate.run else ("base", "candidate")


# ── curves ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def ecdf(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Points (value, share of samples up to it) of the empirical distribution, at most `MAX_POINTS`.

    Few samples give their exact steps; many are read at quantiles, closer together in both tails.
    """
    ordered = np.sort(values)
    n = len(ordered)
    if n <= MAX_POINTS:
        return ordered, np.arange(1, n + 1) / n
    tail = np.logspace(-4, -2, 60)
    share = np.unique(np.concatenate([[0.0, 1.0], tail, 1 - tail, np.linspace(0.01, 0.99, MAX_POINTS - 123)]))
    return np.percentile(ordered, 100 * share), share


def ecdf_figure(comparison: Comparison, name: str) -> Figure | None:
    """Both runs' distributions of a metric over all ranks and, dashed, their worst rank; None where neither has it.

    The other runs of both sides, if any, are thin lines beside them.
    """
    traces, words, values = [], [], []
    better, unit = spec(name).better, spec(name).unit
    others = [runs[1:] for _, runs in comparison.sides.named]
    for (side, run, colour), more in zip(sides(comparison), others, strict=True):
        found = pooled(run, name)
        if found is None:
            words.append(f"{side}: no data")
            continue
        traces += _others([m for other in more if (m := pooled(other, name)) is not None], side, colour)
        traces.append(_curve(found, f"{side} (n = {found.n:,})", colour, "solid"))
        values.append(found.values)
        words.append(f"{side}: {_quantiles(found)}")
        if (worst := worst_rank(run, name, better)) is not None:
            traces.append(_curve(worst, f"{side}, worst rank {worst.rank}", colour, "dash"))
            words[-1] += f"; worst rank {worst.rank}: half up to {shown(figure(worst), unit)}"
    if not traces:
        return None
    return built(
        f"ecdf-{name}",
        f"How {name} is distributed",
        ". ".join(words) + ". The axis opens at the middle 99 % of the samples; a double click shows all.",
        traces,
        layout(
            320,
            {"title": {"text": f"{label(name)}, {symbol(unit)}"}} | value_axis(values, unit),
            {"title": {"text": "share of samples up to it"}, "range": [0, 1.02], "tickformat": ".0%"},
        ),
    )


def _others(metrics: Sequence[Metric], side: str, colour: str) -> list[Trace]:
    """Thin lines for the other runs of a side; the first one stands in the legend for all."""
    found = [_curve(m, f"{side}, other runs", colour, "dot") for m in metrics]
    return [found[0], *({k: v for k, v in trace.items() if k != "name"} for trace in found[1:])] if found else []


def value_axis(values: Sequence[FloatArray], unit: Unit) -> dict[str, Any]:
    """An axis over the middle 99 % of several sets of samples: logarithmic where that spans decades."""
    ends = np.array([np.percentile(v, [0.5, 99.5]) for v in values])
    low, high = (float(end) for end in display(np.array([ends[:, 0].min(), ends[:, 1].max()]), unit))
    if unit is Unit.NS and low > 0 and high > LOGARITHMIC_FROM * low:
        return {"type": "log", "dtick": "D2", "tickformat": ",~r", "range": [math.log10(low), math.log10(high)]}
    margin = 0.03 * ((high - low) or abs(high) or 1.0)
    return {"range": [low - margin, high + margin]}


def worst_rank(run: RunMetrics, name: str, better: Better) -> Metric | None:
    """The rank whose figure is worst, where there are several; None where ranks have no order."""
    ranked = [(figure(m), m) for m in run.metrics if m.name == name and m.rank is not None]
    known = [(value, m) for value, m in ranked if value is not None]
    if len(known) < 2 or better is Better.NONE:
        return None
    pick = max if better is Better.LOWER else min
    return pick(known, key=lambda k: k[0])[1]


def _quantiles(metric: Metric) -> str:
    found = summarise(metric)
    assert found is not None
    p50, p90, p99 = (shown(value, metric.unit) for value in (found.p50, found.p90, found.p99))
    return f"half of {found.n:,} up to {p50}, 90 % up to {p90}, 99 % up to {p99}"


def _curve(metric: Metric, name: str, colour: str, dash: str) -> Trace:
    return curve(metric.values, metric.unit, name, colour, dash)


_WIDTHS = {"solid": 2.4, "dash": 1.4, "dot": 1.0}


def curve(values: FloatArray, unit: Unit, name: str, colour: str, dash: str) -> Trace:
    """The distribution of samples as a line."""
    x, y = ecdf(values)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": np.round(display(x, unit), 3),
        "y": np.round(y, 5),
        "line": {"color": colour, "dash": dash, "width": _WIDTHS[dash], "shape": "hv"},
        "hovertemplate": "%{y:.1%} up to %{x:,.1f} " + symbol(unit) + "<extra></extra>",
    }
