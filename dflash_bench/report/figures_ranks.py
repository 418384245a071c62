"""Figures about ranks: which of them moved, who came late to the agreement, and when."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dflash_bench.metrics.summary import figure
from dflash_bench.model import Change, Comparison, FloatArray, Metric, RunMetrics, Unit
from dflash_bench.report.changes import direction
from dflash_bench.report.figures import (
    Figure,
    Trace,
    both_figures,
    built,
    change_hover,
    display,
    label,
    layout,
    row_annotations,
    shown,
    sides,
)
from dflash_bench.report.units import MISSING, symbol
from dflash_bench.stats.judgement import Judgements

MAX_BINS = 200
"""Steps are put together until no more columns than these are left."""

_QUANTILES = (5, 25, 50, 75, 95)
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


def heat_map(comparison: Comparison, judgements: Judgements | None = None) -> Figure | None:
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
    words = "; ".join(f"{c.metric} on rank {c.rank} {both_figures(c)}{_verdict(c, judgements)}" for c in worst[:3])
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
        "hovertext": [
            [f"rank {c.rank}<br>{change_hover(c)}{_verdict(c, judgements)}" if c else "" for c in row] for row in cells
        ],
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


def _verdict(change: Change, judgements: Judgements | None) -> str:
    judged = judgements.find(change.metric, change.rank) if judgements else None
    return f" ({judged.verdict})" if judged else ""


def _movement(change: Change) -> float | None:
    if change.difference is None or change.base is None or change.candidate is None:
        return None
    size = abs(change.base) + abs(change.candidate)
    return round(direction(change) * abs(change.difference) / size, 4) if size else 0.0


def _cell(change: Change | None) -> str:
    return MISSING if change is None else both_figures(change)


# ── arrivals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def arrival_figures(comparison: Comparison) -> list[Figure]:
    """Lateness and straggler share by rank, and lateness over the steps; nothing where no ranks met."""
    runs = [(side, run, colour, _lateness(run)) for side, run, colour in sides(comparison)]
    if not any(found for *_, found in runs):
        return []
    return [_boxes(comparison), _shares(comparison), *_over_steps(comparison)]


def _lateness(run: RunMetrics) -> list[Metric]:
    return [m for m in run.metrics if m.name == "dp.lateness" and m.rank is not None and len(m.values)]


def _boxes(comparison: Comparison) -> Figure:
    traces: list[Trace] = []
    words = []
    for side, run, colour in sides(comparison):
        found = _lateness(run)
        if not found:
            words.append(f"{side}: no agreements")
            continue
        low, q1, mid, q3, high = display(np.array([np.percentile(m.values, _QUANTILES) for m in found]), Unit.NS).T
        traces.append(
            {"type": "box", "name": side, "x": [m.rank for m in found], "orientation": "v"}
            | {"lowerfence": low, "q1": q1, "median": mid, "q3": q3, "upperfence": high}
            | {"line": {"color": colour, "width": 1.5}, "fillcolor": "rgba(0,0,0,0)"}
        )
        late = max(found, key=lambda m: figure(m) or 0.0)
        tax = run.find("dp.agreement_tax", None)
        words.append(
            f"{side}: rank {late.rank} comes latest, half of the steps {shown(figure(late), Unit.NS, is_signed=True)}"
            f" or more after the median arrival; the last rank costs the others"
            f" {shown(figure(tax) if tax else None, Unit.NS)} a step (median)"
        )
    return built(
        "arrivals",
        "How late each rank comes to the agreement",
        ". ".join(words) + ". Boxes hold the middle half of the steps, whiskers the middle 90 %.",
        traces,
        layout(
            320,
            {"title": {"text": "rank"}, "type": "category", "showgrid": False},
            {"title": {"text": f"own − median arrival, {symbol(Unit.NS)}"}},
            boxmode="group",
        ),
    )


def _shares(comparison: Comparison) -> Figure:
    traces: list[Trace] = []
    words = []
    for side, run, colour in sides(comparison):
        found = [m for m in run.metrics if m.name == "dp.straggler_share" and m.rank is not None and len(m.values)]
        if not found:
            continue
        shares = [figure(m) or 0.0 for m in found]
        traces.append(
            {"type": "bar", "name": side, "x": [str(m.rank) for m in found], "marker": {"color": colour}}
            | {"y": [round(s, 5) for s in shares], "hovertemplate": "rank %{x}: last in %{y:.2%}<extra></extra>"}
        )
        worst = found[int(np.argmax(shares))]
        alloc = run.find("dp.alloc_on_critical_path", None)
        words.append(
            f"{side}: rank {worst.rank} is last in {shown(max(shares), Unit.FRACTION)} of {worst.n:,} steps"
            + (f", and in {shown(figure(alloc), Unit.FRACTION)} the last rank had allocated" if alloc else "")
        )
    return built(
        "stragglers",
        "Which rank arrives last",
        ". ".join(words) + ".",
        traces,
        layout(
            280,
            {"title": {"text": "rank"}, "type": "category", "showgrid": False},
            {"title": {"text": "share of steps"}, "tickformat": ".0%", "rangemode": "tozero"},
            barmode="group",
        ),
    )


def _over_steps(comparison: Comparison) -> Iterator[Figure]:
    """A heat map for each run, both on one colour scale."""
    found = [(side, _lateness(run)) for side, run, _ in sides(comparison)]
    grids = [(k, side, metrics, *binned(metrics)) for k, (side, metrics) in enumerate(found) if metrics]
    span = max(float(np.percentile(np.abs(grid), 98)) for *_, grid, _ in grids) or 1.0
    for k, side, metrics, grid, width in grids:
        row, column = np.unravel_index(int(grid.argmax()), grid.shape)
        steps = f"steps {column * width} to {column * width + width - 1}" if width > 1 else f"step {column}"
        yield built(
            f"arrivals-over-steps-{('base', 'candidate')[k]}",
            f"Arrivals over the run: {side}",
            f"{len(metrics)} ranks over {len(metrics[0].values):,} steps, {width} a column (median). Latest: rank"
            f" {metrics[row].rank} at {steps}, {shown(float(grid[row, column]), Unit.NS, is_signed=True)}."
            f" Colours end at ±{shown(span, Unit.NS)}, beyond 98 % of all cells of both runs.",
            [_heat(grid, [str(m.rank) for m in metrics], width, span)],
            layout(
                130 + max(14, 44 - len(metrics)) * len(metrics),
                {"title": {"text": "step"}, "showgrid": False},
                {"title": {"text": "rank"}, "type": "category", "showgrid": False, "autorange": "reversed"},
            ),
        )


def binned(metrics: list[Metric]) -> tuple[FloatArray, int]:
    """Median lateness by rank and bin of steps, ns, float64 [ranks, ≤ MAX_BINS], and how many steps a bin has."""
    values = np.stack([m.values for m in metrics])
    width = -(-values.shape[1] // MAX_BINS)
    bins = [np.median(values[:, k : k + width], axis=1) for k in range(0, values.shape[1], width)]
    return np.stack(bins, axis=1), width


def _heat(grid: FloatArray, ranks: list[str], width: int, span: float) -> Trace:
    limit = float(display(np.array(span), Unit.NS))
    return {
        "type": "heatmap",
        "z": np.round(display(grid, Unit.NS), 1),
        "x0": (width - 1) / 2,
        "dx": width,
        "y": ranks,
        "zmin": -limit,
        "zmax": limit,
        "colorscale": [[0, "rgba(47,129,208,0.9)"], [0.5, "rgba(128,128,128,0.06)"], [1, "rgba(208,112,47,0.9)"]],
        "hovertemplate": "rank %{y}, step %{x:.0f}: %{z:+,.1f} " + symbol(Unit.NS) + "<extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"text": symbol(Unit.NS)}, "tickformat": "+,.0f"},
    }
