"""Predictions as sentences, rows and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dflash_bench.model import Unit
from dflash_bench.predict.prediction import PREDICTION_CONFIDENCE, PredictedFigure, Prediction, Scenario
from dflash_bench.report.units import symbol, text


def sentences(run: str, results: Sequence[Prediction]) -> list[str]:
    """What was asked and what stands out, then the warnings, each once."""
    lines = [f"{run}, predicted; in brackets where 90 of 100 such runs are expected to lie (docs/predict.md)"]
    for result in results:
        period, room = result.figure("step.period"), result.figure("GPU may be faster by")
        bound = result.figure("steps bound by the GPU").value
        limit = (
            f"the GPU may get {room.value:.1f} × faster before the host is the bottleneck"
            if room.value >= 1
            else f"the host is the bottleneck: {1 / room.value:.1f} × the GPU's work"
        )
        times = " … ".join(f"{value / 1e6:.2f}" for value in (period.low, period.high))
        lines.append(
            f"{_name(result.scenario)}: step {period.value / 1e6:.2f} ms ({times}), {bound:.0%} of steps bound by the"
            f" GPU; {limit}"
        )
    agreements = {
        f"agreement among {r.scenario.ranks} ranks: {r.communication.mean_ns / 1e3:.0f} µs, {r.communication.source}"
        + (f" ({r.communication.law})" if r.communication.law else "")
        for r in results
        if r.scenario.ranks > 1
    }
    warnings = {f"warning: {f.text}" for r in results for f in r.findings}
    return [*lines, *sorted(agreements), *sorted(warnings)]


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
