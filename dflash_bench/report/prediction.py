"""Predictions as sentences, rows, JSON and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from dflash_bench.model import Unit
from dflash_bench.predict.prediction import PREDICTION_CONFIDENCE, PredictedFigure, Prediction, Scenario
from dflash_bench.report.units import symbol, text

_MAX_SENTENCES = 4


def sentences(run: str, results: Sequence[Prediction]) -> list[str]:
    """What was asked and what stands out, then the warnings, each once."""
    shown = results if len(results) <= _MAX_SENTENCES else [results[0], results[-1]]
    lines = [f"{run}, predicted; in brackets where 90 of 100 such runs are expected to lie (docs/predict.md)"]
    lines += [_sentence(result) for result in shown]
    by_source: dict[str, list[str]] = {}
    for r in results:
        if r.scenario.ranks > 1:
            how = f"{r.communication.mean_ns / 1e3:.0f} µs, {r.communication.source}"
            sizes = by_source.setdefault(how + (f" ({r.communication.law})" if r.communication.law else ""), [])
            sizes += [str(r.scenario.ranks)] * (str(r.scenario.ranks) not in sizes)
    lines += [f"the agreement among {', '.join(sizes)} ranks: {how}" for how, sizes in by_source.items()]
    return [*lines, *dict.fromkeys(f"warning: {f.text}" for r in results for f in r.findings)]


def _sentence(result: Prediction) -> str:
    period, room = result.figure("step.period"), result.figure("GPU may be faster by")
    bound = result.figure("steps bound by the GPU").value
    limit = (
        f"the GPU may get {room.value:.1f} × faster before the host is the bottleneck"
        if room.value >= 1
        else f"the host is the bottleneck, with {1 / room.value:.1f} × the GPU's work"
    )
    times = " … ".join(f"{value / 1e6:.2f}" for value in (period.low, period.high))
    return (
        f"{_name(result.scenario)}: step {period.value / 1e6:.2f} ms ({times}), {bound:.0%} of steps bound by the GPU;"
        f" {limit}"
    )


def figure_rows(results: Sequence[Prediction]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table: a row for each figure, a column for each scenario."""
    names = list(dict.fromkeys(f.name for r in results for f in r.figures))
    heads = ["figure", *_heads([r.scenario for r in results])]
    rows = []
    for name in names:
        cells = []
        unit = ""
        for result in results:
            figure = next((f for f in result.figures if f.name == name), None)
            cells.append("–" if figure is None else _cell(figure))
            unit = symbol(figure.unit) if figure is not None else unit
        rows.append([f"{name} {unit}".strip(), *cells])
    return heads, rows


def prediction_json(run: str, results: Sequence[Prediction]) -> str:
    """One document; times in ns, shares as fractions."""
    content = {
        "run": run,
        "confidence": PREDICTION_CONFIDENCE,
        "predictions": [
            {
                "scenario": _name(r.scenario),
                "ranks": r.scenario.ranks,
                "gpu_work": r.scenario.gpu_work,
                "host_work": r.scenario.host_work,
                "ranks_per_gpu": r.scenario.ranks_per_gpu,
                "together": r.scenario.together,
                "topup_pages": None if r.scenario.allocator is None else r.scenario.allocator.topup_pages,
                "requests": None if r.scenario.allocator is None else r.scenario.allocator.requests,
                "agreement": {
                    "mean_ns": r.communication.mean_ns,
                    "source": r.communication.source,
                    "law": r.communication.law,
                },
                "figures": {
                    f.name: {"value": f.value, "low": f.low, "high": f.high, "unit": f.unit} for f in r.figures
                },
                "warnings": [{"code": f.code, "rank": f.rank, "text": f.text} for f in r.findings],
            }
            for r in results
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _heads(scenarios: Sequence[Scenario]) -> list[str]:
    """What tells the scenarios apart: the words that not all of them share."""
    words = [_words(scenario) for scenario in scenarios]
    shared = set(words[0]).intersection(*words[1:]) if len(words) > 1 else set()
    return [", ".join(w for w in own if w not in shared) or ", ".join(own) for own in words]


def _name(scenario: Scenario) -> str:
    return ", ".join(_words(scenario))


def _words(scenario: Scenario) -> list[str]:
    words = [f"{scenario.ranks} rank{'s' * (scenario.ranks > 1)}"]
    if scenario.allocator is not None:
        words += [f"K = {scenario.allocator.topup_pages}", f"{scenario.allocator.requests} requests"]
    if scenario.gpu_work != 1:
        words.append(f"GPU work × {scenario.gpu_work:g}")
    if scenario.host_work != 1:
        words.append(f"host work × {scenario.host_work:g}")
    return words


def _cell(figure: PredictedFigure) -> str:
    if figure.unit is Unit.TOKENS_PER_S:
        value, low, high = (f"{x:,.0f}" for x in (figure.value, figure.low, figure.high))
    else:
        value, low, high = (text(x, figure.unit) for x in (figure.value, figure.low, figure.high))
    return f"{value} ({low} … {high})"


def prediction_page(run: str, results: Sequence[Prediction], command: str) -> str:
    """The predictions as one file that fetches nothing: sentences, figures over the ranks, the table, the JSON."""
    from dflash_bench.report.page import render_page

    heads, rows = figure_rows(results)
    return render_page(
        "prediction.html.j2",
        prediction_json(run, results),
        title=f"{run}, predicted",
        created="",
        command=command,
        lines=sentences(run, results),
        charts=list(_charts(results)),
        heads=heads,
        rows=rows,
    )


_OVER_RANKS = {
    "step.period": "Step period, µs, over the ranks",
    "dp.agreement_tax": "Agreement tax, µs, over the ranks",
}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 64, 24


def _charts(results: Sequence[Prediction]) -> Iterator[tuple[str, str]]:
    """A chart of each figure that has at least two numbers of ranks, one line for each allocator."""
    for name, title in _OVER_RANKS.items():
        lines: dict[str, list[tuple[int, PredictedFigure]]] = {}
        for result in results:
            figure = next((f for f in result.figures if f.name == name), None)
            if figure is not None:
                label = ", ".join(_words(result.scenario)[1:3])
                lines.setdefault(label, []).append((result.scenario.ranks, figure))
        if any(len({ranks for ranks, _ in line}) > 1 for line in lines.values()):
            yield title, _ranks_chart(title, {label: sorted(line, key=_ranks_of) for label, line in lines.items()})


def _ranks_of(point: tuple[int, PredictedFigure]) -> int:
    return point[0]


def _ranks_chart(title: str, named: Mapping[str, Sequence[tuple[int, PredictedFigure]]]) -> str:
    """Lines with their intervals as bands; the ranks on a logarithmic axis, zero at its foot."""
    lines = list(named.values())
    ranks = sorted({r for line in lines for r, _ in line})
    top = max(f.high for line in lines for _, f in line) * 1.05 or 1.0

    def x(number: int) -> float:
        span = math.log(ranks[-1] / ranks[0]) or 1.0
        return round(_LEFT + (_WIDTH - _LEFT - 20) * math.log(number / ranks[0]) / span, 1)

    def y(value: float) -> float:
        return round((_HEIGHT - _BOTTOM) * (1 - value / top) + 8, 1)

    parts = []
    for share in (0.0, 0.5, 1.0):
        at = y(top * share / 1.05)
        label = text(top * share / 1.05, Unit.NS)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{label}</text>')
    for line in lines:
        upper, lower = ([f"{x(r)},{y(v)}" for r, v in edge] for edge in (
            [(r, f.high) for r, f in line], [(r, f.low) for r, f in reversed(line)]))  # fmt: skip
        parts.append(f'<polygon class="band" points="{" ".join([*upper, *lower])}"/>')
        parts.append(f'<polyline class="line" points="{" ".join(f"{x(r)},{y(f.value)}" for r, f in line)}"/>')
        parts += [f'<circle class="at" cx="{x(r)}" cy="{y(f.value)}" r="4"/>' for r, f in line]
    ends = sorted(((y(line[-1][1].value), label) for label, line in named.items() if label), reverse=True)
    foot = float("inf")
    for at, label in ends:  # labels of lines that end close together are moved apart
        foot = min(at + 4, foot - 14)
        parts.append(f'<text x="{_WIDTH - 12}" y="{round(foot, 1)}">{escape(label)}</text>')
    parts += [f'<text x="{x(r)}" y="{_HEIGHT + 4}" text-anchor="middle">{r}</text>' for r in ranks]
    words = escape(f"{title}: " + "; ".join(f"{r}: {_cell(f)}" for line in lines for r, f in line))
    box = f"0 0 {_WIDTH + 110 * any(named)} {_HEIGHT + 10}"
    return f'<svg class="ranks" viewBox="{box}" role="img" aria-label="{words}">{"".join(parts)}</svg>'
