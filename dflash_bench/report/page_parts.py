"""What the page is made of besides the changes: ranks, distributions, circumstances, commands, glossary."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure
from dflash_bench.model import (
    Better,
    Comparison,
    FloatArray,
    Judgements,
    Metric,
    RunInfo,
    RunMetrics,
    Sides,
    Unit,
    Value,
)
from dflash_bench.report.changes import KEY_METRICS, Tone, change_texts, pair_text, tone
from dflash_bench.report.charts import Curve, distribution_chart, map_image
from dflash_bench.report.comparison import named_sides
from dflash_bench.report.sides import pooled
from dflash_bench.report.units import MISSING, with_unit
from dflash_bench.run.request import is_repeatable, request_of

MAX_RANKS_IN_TABLES = 4
"""Ranks that stand in tables one by one; the map of ranks and the JSON have all of them."""
_CURVES = ("step.period", "host.busy_per_step", "gpu.dry_per_step", "step.lead", "range.prepare_for_decode")
_HEAT_METRICS = (
    *KEY_METRICS,
    "range.dp_agreement",
    "dp.wait",
    "dp.straggler_share",
)
_MAX_BINS = 200
_ALWAYS_DIFFERENT = {"run", "ingested (UTC)", "capture fingerprints", "position", "repeat"}


def side_names(comparison: Comparison) -> tuple[str, str]:
    """What the two sides are called on the page: by their arms where these differ."""
    base, candidate = comparison.base.info, comparison.candidate.info
    if base.arm and candidate.arm and base.arm != candidate.arm:
        return base.arm, candidate.arm
    return (base.run, candidate.run) if base.run != candidate.run else ("base", "candidate")


def straggler(run: RunMetrics) -> int:
    """The rank that most often arrived last; without agreements the lowest."""
    shares = [(figure(m) or 0.0, -m.rank) for m in run.metrics if m.name == "dp.straggler_share" and m.rank is not None]
    return -max(shares)[1] if shares else min(run.info.ranks, default=0)


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _HeatCell:
    """One metric of one rank: its verdict as a tone, its change, and all of it in words."""

    tone: Tone
    change: str
    words: str


def heat_rows(comparison: Comparison, judgements: Judgements | None) -> list[tuple[str, list[_HeatCell | None]]]:
    """Metric → a cell a rank, coloured by verdict; nothing for fewer than two ranks."""
    found = {(c.metric, c.rank): c for c in comparison.changes if c.rank is not None}
    ranks = sorted({rank for _, rank in found if rank is not None})
    if len(ranks) < 2:
        return []
    rows = []
    for name in _HEAT_METRICS:
        cells: list[_HeatCell | None] = []
        for rank in ranks:
            change = found.get((name, rank))
            if change is None:
                cells.append(None)
                continue
            judged = judgements.find(name, rank) if judgements else None
            difference, _ = change_texts(change)
            words = f"rank {rank}: {pair_text(change)} ({difference or 'no data'})"
            cells.append(_HeatCell(tone(judged), difference, f"{words}, {judged.verdict}" if judged else words))
        if any(cell and cell.change for cell in cells):
            rows.append((name, cells))
    return rows


@dataclass(frozen=True, slots=True)
class ArrivalMap:
    """How late each rank came to the agreement over the steps of a run, as an image, a row a rank, and in words."""

    name: str
    image: str
    ranks: tuple[int, ...]
    words: str


def arrival_maps(names: Sequence[str], runs: Sequence[RunMetrics]) -> Iterator[ArrivalMap]:
    """One for each run whose ranks met, all on one colour scale."""
    late = [
        [m for m in run.metrics if m.name == "dp.lateness" and m.rank is not None and len(m.values)] for run in runs
    ]
    grids = [_binned(metrics) for metrics in late if metrics]
    span = max((float(np.percentile(np.abs(grid), 98)) for grid, _ in grids), default=0.0) or 1.0
    for name, run, metrics in zip(names, runs, late, strict=True):
        if not metrics:
            continue
        grid, width = _binned(metrics)
        worst = max(metrics, key=lambda m: figure(m) or 0.0)
        tax, alloc = (run.find(n, None) for n in ("dp.agreement_tax", "dp.alloc_on_critical_path"))
        row, column = np.unravel_index(int(grid.argmax()), grid.shape)
        words = [
            f"{len(metrics)} ranks over {len(metrics[0].values):,} steps, {width} a column (median); blue came before"
            f" the median arrival, orange after it, full colour at ±{with_unit(span, Unit.NS)}",
            f"latest: rank {metrics[row].rank} about step {column * width:,},"
            f" {with_unit(float(grid[row, column]), Unit.NS, is_signed=True)}",
            f"rank {worst.rank} comes latest, in half of the steps"
            f" {with_unit(figure(worst), Unit.NS, is_signed=True)} or more",
        ]
        if tax is not None:
            words.append(f"the last rank costs the others {with_unit(figure(tax), Unit.NS)} a step (median)")
        if alloc is not None:
            words.append(f"in {with_unit(figure(alloc), Unit.FRACTION)} of the steps it had allocated")
        yield ArrivalMap(
            name, map_image(grid, span), tuple(m.rank for m in metrics if m.rank is not None), "; ".join(words)
        )


def _binned(metrics: Sequence[Metric]) -> tuple[FloatArray, int]:
    """Median lateness by rank and bin of steps, ns, float64 [ranks, ≤ _MAX_BINS], and how many steps a bin has."""
    length = min(len(m.values) for m in metrics)
    values = np.stack([m.values[:length] for m in metrics])
    width = -(-length // _MAX_BINS)
    bins = [np.median(values[:, k : k + width], axis=1) for k in range(0, length, width)]
    return np.stack(bins, axis=1), width


# ── distributions ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CurveFigure:
    """A chart of distributions with its legend and, in words, its numbers."""

    title: str
    chart: str
    legend: tuple[tuple[str, str], ...]
    words: str


def curve_figures(comparison: Comparison, names: tuple[str, str]) -> Iterator[CurveFigure]:
    """Both sides' distributions over all ranks, their worst rank dashed, their other runs thin; then allocation."""
    sides = [(name, side, runs) for name, (side, runs) in zip(names, comparison.sides.named, strict=True)]
    for metric in _CURVES:
        found = [curve for name, side, runs in sides for curve in _curves(metric, name, side, runs)]
        if found:
            yield _curve_figure(f"How {metric} is distributed", metric, spec(metric).unit, found)
    if found := [curve for name, side, runs in sides for curve in _allocation_curves(name, side, runs[0])]:
        yield _curve_figure("Steps that allocate, and the others", "alloc.step_cost is the distance", Unit.NS, found)


def run_curves(run: RunMetrics) -> Iterator[CurveFigure]:
    """The same of one run."""
    for metric in _CURVES:
        if found := list(_curves(metric, "all ranks", "candidate", (run,))):
            yield _curve_figure(f"How {metric} is distributed", metric, spec(metric).unit, found)
    if found := list(_allocation_curves("steps", "candidate", run)):
        yield _curve_figure("Steps that allocate, and the others", "alloc.step_cost is the distance", Unit.NS, found)


def _curves(metric: str, name: str, side: str, runs: Sequence[RunMetrics]) -> Iterator[Curve]:
    found = pooled(runs[0], metric)
    if found is None:
        return
    for other in runs[1:]:
        if (more := pooled(other, metric)) is not None:
            yield Curve(f"{name}, other runs", f"{side} thin", more.values)
    yield Curve(name, side, found.values)
    if (worst := _worst_rank(runs[0], metric)) is not None:
        yield Curve(f"{name}, worst rank {worst.rank}", f"{side} dashed", worst.values)


def _worst_rank(run: RunMetrics, name: str) -> Metric | None:
    """The rank whose figure is worst, where there are several; None where ranks have no order."""
    better = spec(name).better
    known = [
        (value, m) for m in run.metrics if m.name == name and m.rank is not None and (value := figure(m)) is not None
    ]
    if len(known) < 2 or better is Better.NONE:
        return None
    return (max if better is Better.LOWER else min)(known, key=lambda k: k[0])[1]


def _allocation_curves(name: str, side: str, run: RunMetrics) -> Iterator[Curve]:
    cost = pooled(run, "alloc.step_cost")
    if cost is None or cost.group is None:
        return
    for is_alloc, style, what in ((True, f"{side} dashed", "allocating"), (False, side, "other")):
        if (cost.group == is_alloc).any():
            yield Curve(f"{name}, {what}", style, cost.values[cost.group == is_alloc])


def _curve_figure(title: str, axis: str, unit: Unit, curves: Sequence[Curve]) -> CurveFigure:
    legend = dict.fromkeys((c.name, c.style) for c in curves)
    words = [f"{c.name}: {_quantiles(c.values, unit)}" for c in curves if not c.style.endswith("thin")]
    return CurveFigure(title, distribution_chart(curves, unit, axis), tuple(legend), "; ".join(words))


def _quantiles(values: FloatArray, unit: Unit) -> str:
    p50, p90, p99 = (with_unit(float(v), unit) for v in np.percentile(values, (50, 90, 99)))
    return f"half of {len(values):,} up to {p50}, 90 % up to {p90}, 99 % up to {p99}"


def key_metrics(run: RunMetrics) -> list[Metric]:
    """The metrics of a run that answer first, over all ranks."""
    return [m for name in KEY_METRICS if (m := pooled(run, name)) is not None]


# ── circumstances ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Setting:
    """A circumstance of both sides."""

    name: str
    base: str
    candidate: str

    @property
    def is_different(self) -> bool:
        """Whether it differs and need not: two runs never share a name or a time."""
        return self.base != self.candidate and self.name not in _ALWAYS_DIFFERENT


def settings(sides: Sides) -> list[Setting]:
    """The circumstances of both sides, those that differ first; of several runs, every value that any of them has."""
    ours, theirs = (_circumstances([run.info for run in runs]) for _, runs in sides.named)
    found = [Setting(k, ours.get(k, MISSING), theirs.get(k, MISSING)) for k in dict.fromkeys([*ours, *theirs])]
    return sorted(found, key=lambda s: not s.is_different)


def _circumstances(infos: Sequence[RunInfo]) -> dict[str, str]:
    each = [run_settings(info) for info in infos]
    names = dict.fromkeys(name for found in each for name in found)
    return {name: " · ".join(dict.fromkeys(found.get(name, MISSING) for found in each)) for name in names}


def run_settings(info: RunInfo) -> dict[str, str]:
    """What was recorded of a run, by name."""
    found: dict[str, Value] = {
        "run": info.run,
        "arm": info.arm,
        "workload": info.workload,
        "device": ", ".join(info.devices) or info.device,
        "ranks": ", ".join(str(r) for r in info.ranks),
        "world": info.world,
        "ranks read from": info.rank_source,
        "recorder": " and ".join(sorted({f"{c.recorder} {c.exporter_version or ''}".strip() for c in info.captures})),
        "ingested (UTC)": info.created_utc,
        "dflash-bench": info.tool_version,
        "capture fingerprints": ", ".join(c.fingerprint for c in info.captures),
    }
    # what was captured, not what was asked for, where both have a name
    found |= {name: value for name, value in sorted(info.settings.items()) if name not in found}
    return {name: MISSING if value is None or value == "" else str(value) for name, value in found.items()}


def commands(sides: Sides) -> list[str]:
    """What to type to get this page again; where the built-in loop made the runs, from the very start."""
    pair = shlex.join(named_sides(sides))
    return [*_origin(sides), f"dflash-bench compare {pair}", f"dflash-bench report {pair} -o report.html"]


def run_commands(info: RunInfo) -> list[str]:
    """The same for one run."""
    made = shlex.join(request_of(info).words) if is_repeatable(info) else "dflash-bench ingest FOLDER_OF_CAPTURES"
    return [made, f"dflash-bench metrics {shlex.quote(info.run)}", f"dflash-bench report {shlex.quote(info.run)}"]


def _origin(sides: Sides) -> list[str]:
    """The commands that made the runs: one for both arms, which then take turns, where all else was the same."""
    base, candidate = sides.base[0].info, sides.candidate[0].info
    if not (is_repeatable(base) and is_repeatable(candidate)):
        return ["dflash-bench ingest FOLDER_OF_CAPTURES"]
    made = [request_of(base).words, request_of(candidate).words]
    if base.arm != candidate.arm and made[0] == request_of(replace(candidate, arm=base.arm)).words:
        made = [[*made[0], "--arm", str(candidate.arm)]]
    repeats = max(len(sides.base), len(sides.candidate))
    return [shlex.join([*words, *(["--repeats", str(repeats)] if repeats > 1 else [])]) for words in made]


_TERMS = {
    "arm": "a named set of switches of the program: one of the two things that are compared",
    "step": "one decode iteration, as the captured program marks it with a range",
    "rank": "one process of a distributed run, with its own GPU",
    "launch lead": "how long before the GPU ran out of work the host had queued the next; below zero the GPU waited",
    "GPU dry": "no GPU work runs and none is queued, until the host launches the next",
    "host wait": "a call that returns only when the GPU got somewhere, such as cudaStreamSynchronize; a host that is"
    " ahead can afford to wait, and then it costs nothing",
    "improved, regressed": "the difference lies beyond the tolerance and beyond what chance or drift explain",
    "unchanged": "the whole interval lies inside the tolerance: shown to be alike",
    "inconclusive": "neither can be said with these runs",
    "95 % interval": "where the true difference lies, unless we are among the 5 % of unlucky cases",
    "p50, p90, p99": "half, 90 %, 99 % of the samples lie at or below it",
    "points": "difference of two percentages: from 40 % to 1 % are 39 points",
}


def glossary(names: set[str]) -> dict[str, str]:
    """Every term and every metric on the page, with its meaning."""
    found = {name: spec(name) for name in names}
    return _TERMS | {s.name.replace("*", "NAME"): s.meaning for s in sorted(found.values(), key=lambda s: s.name)}
