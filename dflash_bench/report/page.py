"""The page: a comparison, or one run, as one HTML file. Nothing is fetched, everything that it shows lies inside.

It carries the whole document of ``--json`` (``<script id="document">``), and its tables show those numbers with the
stored value beside each (``<data value>``). Texts of the profiled program are escaped by the template engine, in JSON
by `_script_json`. A content security policy forbids every request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dflash_bench import __version__
from dflash_bench.metrics.cache import answer
from dflash_bench.metrics.registry import spec
from dflash_bench.metrics.summary import figure, has_quantiles, summarise
from dflash_bench.model import Change, Comparison, Judgements, Metric, RunMetrics, Unit
from dflash_bench.report import page_parts as parts
from dflash_bench.report.as_json import comparison_document, metrics_document
from dflash_bench.report.causes import by_line, dry_causes, host_waits, paired, steps_of
from dflash_bench.report.changes import by_importance, change_texts, key_changes, pair_text, pooled_changes, tone
from dflash_bench.report.charts import axis_chart, axis_window, interval_chart
from dflash_bench.report.comparison import are_steps_unlike, kinds_lines, warning_texts
from dflash_bench.report.headline import run_headline, sides_headline
from dflash_bench.report.sheets import by_section, captured, identity, warning_lines
from dflash_bench.report.sides import run_metrics, run_rows, runs_note
from dflash_bench.report.units import MISSING, rank_text, readable, symbol, text

if TYPE_CHECKING:
    from dflash_bench.metrics.reading import Reading

_MAX_TABLE_ROWS = 2000
"""Rows of one cause table that the page's JSON keeps; programs that count in range names make millions of rows."""
_MAX_CHANGES = 12
"""Changes that are shown unfolded."""


def comparison_page(
    comparison: Comparison, judgements: Judgements | None, timeline: dict[str, Any] | None, command: str = ""
) -> str:
    """The page of a comparison, headed by its answer. ``timeline``: of `timeline_document`."""
    sides, names = comparison.sides, parts.side_names(comparison)
    changes = pooled_changes(comparison)
    judged = [c for c in changes if judgements is not None and judgements.find(c.metric, c.rank)]
    ordered = by_importance(judged or [c for c in changes if c.difference is not None], judgements)
    both = [(runs[0], steps_of(runs[0])) for _, runs in sides.named]
    circumstances = parts.settings(sides)
    is_ranked = 1 < len({c.rank for c in comparison.changes if c.rank is not None}) <= parts.MAX_RANKS_IN_TABLES

    def row(change: Change) -> dict[str, Any]:
        return _change_row(change, judgements)

    shown = comparison.changes if is_ranked else changes
    content = comparison_document(comparison, judgements)
    return render_page(
        "comparison.html.j2",
        _embedded(content),
        headline=sides_headline(comparison.sides, judgements, comparison.findings),
        **_timeline(timeline),
        names=names,
        title=f"{names[0]} → {names[1]}",
        created=max(run.info.created_utc for _, runs in sides.named for run in runs),
        command=command,
        note=runs_note(sides),
        kinds=list(kinds_lines(sides, names)),
        are_steps_unlike=are_steps_unlike(comparison),
        warnings=list(warning_texts(comparison)),
        keys=[row(c) for c in key_changes(comparison)],
        changes=[row(c) for c in ordered],
        max_changes=_MAX_CHANGES,
        window=axis_window(key_changes(comparison)),
        has_verdicts=judgements is not None,
        method=judgements.method if judgements else "",
        causes=[
            ("What the host did while the GPU was dry", "dry", paired(*((dry_causes(r), n) for r, n in both))),
            ("Which code made the host wait", "waits", paired(*((host_waits(r), n) for r, n in both))),
        ],
        heat=parts.heat_rows(comparison, judgements),
        ranks=sorted({c.rank for c in comparison.changes if c.rank is not None}),
        **_pictures(
            [runs for _, runs in sides.named],
            names,
            lambda: parts.arrival_maps(names, (comparison.base, comparison.candidate)),
            lambda: parts.curve_figures(comparison, names),
        ),
        run_metrics=[(name, symbol(spec(name).unit)) for name in run_metrics(sides)],
        units=[spec(name).unit for name in run_metrics(sides)],
        runs=list(run_rows(sides)) if sides.is_repeated else [],
        sections=[(t, [row(c) for c in own]) for t, own in by_section(shown, lambda c: c.metric) if own],
        about=[(identity(run.info), captured(run.info)) for run in (comparison.base, comparison.candidate)],
        differing=[s for s in circumstances if s.is_different],
        settings=[s for s in circumstances if not s.is_different],
        commands=parts.commands(sides),
        glossary=parts.glossary({c.metric for c in shown}),
    )


def run_page(
    run: RunMetrics, timeline: dict[str, Any] | None, command: str = "", reading: Reading | None = None
) -> str:
    """The page of one run."""
    steps = steps_of(run)
    found = [m for m in run.metrics if m.rank is None or len(run.info.ranks) <= parts.MAX_RANKS_IN_TABLES]
    return render_page(
        "run.html.j2",
        _embedded(metrics_document([run])),
        headline=run_headline(run, reading),
        **_timeline(timeline),
        title=run.info.run,
        names=(run.info.run,),
        created=run.info.created_utc,
        command=command,
        warnings=warning_lines(run.findings),
        keys=[_metric_row(m) for m in parts.key_metrics(run)],
        causes=[
            ("What the host did while the GPU was dry", "dry", paired((by_line(run, dry_causes(run)), steps), ((), 0))),
            ("Which code made the host wait", "waits", paired((by_line(run, host_waits(run)), steps), ((), 0))),
        ],
        **_pictures([(run,)], (), lambda: parts.arrival_maps(("",), (run,)), lambda: parts.run_curves(run)),
        sections=[(t, [_metric_row(m) for m in own]) for t, own in by_section(found, lambda m: m.name) if own],
        about=[(identity(run.info), captured(run.info))],
        settings=parts.run_settings(run.info),
        commands=parts.run_commands(run.info),
        glossary=parts.glossary({m.name for m in run.metrics}),
    )


def _pictures(
    sides: Sequence[Sequence[RunMetrics]],
    names: Sequence[str],
    arrivals: Callable[[], Iterable[parts.ArrivalMap]],
    curves: Callable[[], Iterable[parts.CurveFigure]],
) -> dict[str, Any]:
    """What is drawn from samples, of large runs as it was drawn the first time."""

    def draw() -> dict[str, Any]:
        return {name: list(map(asdict, own())) for name, own in (("arrivals", arrivals), ("curves", curves))}

    question = ("pictures", names, [len(runs) for runs in sides])
    found: dict[str, Any] = answer([run for runs in sides for run in runs], question, draw)
    return found


def _change_row(change: Change, judgements: Judgements | None) -> dict[str, Any]:
    """A change with what a row of a table shows of it."""
    judged = judgements.find(change.metric, change.rank) if judgements else None
    difference, span = change_texts(change)
    return {
        "change": change,
        "metric": change.metric,
        "rank": rank_text(change.rank),
        "meaning": spec(change.metric).meaning,
        "tone": tone(judged),
        "verdict": judged.verdict.value if judged else "",
        "reason": judged.reason if judged else "",
        "pair": pair_text(change),
        "difference": difference or MISSING,
        "span": span,
        "is_exact": bool(judged and judged.is_exact),
        "n": f"{change.base_n:,}"
        if change.base_n == change.candidate_n
        else f"{change.base_n:,} / {change.candidate_n:,}",
    }


def _metric_row(metric: Metric) -> dict[str, Any]:
    """A metric with its figures: the one it is compared by, and of a distribution its quantiles."""
    found = summarise(metric) if has_quantiles(metric) else None
    names = ("p50", "p90", "p99", "mean") if found else ("value",)
    return {
        "metric": metric.name,
        "rank": rank_text(metric.rank),
        "meaning": spec(metric.name).meaning,
        "unit": metric.unit,
        "n": f"{metric.n:,}",
        "figures": [getattr(found, name) for name in names] if found else [figure(metric)],
    }


def _timeline(timeline: dict[str, Any] | None) -> dict[str, Any]:
    text = json.dumps(timeline, ensure_ascii=False, separators=(",", ":"))
    return {"timeline": timeline, "timeline_json": _script_json(text), "js": template_text("report.js")}


def render_page(template: str, document: str, **values: Any) -> str:
    """A page from its template. ``document``: the JSON of everything that it shows, which lies in it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["upper_first"] = lambda line: line[:1].upper() + line[1:]
    environment.globals |= _functions()
    return environment.get_template(template).render(
        **values, css=template_text("report.css"), version=__version__, document_json=_script_json(document)
    )


def _functions() -> Mapping[str, Any]:
    """What templates call: names, figures with their stored value, and charts."""
    from markupsafe import Markup

    def valued(words: str, value: float | None) -> str:
        return words if value is None else Markup(f'<data value="{value!r}">{words}</data>')

    def shown(value: float | None, unit: Unit, *, is_signed: bool = False) -> str:
        return valued(text(value, unit, is_signed=is_signed), value)

    def per_step(value: float) -> str:
        return " ".join(readable(value, unit=Unit.NS)) if value else MISSING

    def name(words: str) -> str:
        """Cut where a narrow column may break it: behind its dots, underscores, dashes and the like."""
        return Markup("<wbr>").join(re.findall(r"[^._@>/·-]*[._@>/·-]+|[^._@>/·-]+", words))

    return {
        "name": name,
        "valued": valued,
        "figure": shown,
        "per_step": per_step,
        "symbol": symbol,
        "interval_chart": lambda *words: Markup(interval_chart(*words)),
        "axis_chart": lambda window: Markup(axis_chart(window)),
        "Unit": Unit,
    }


def template_text(name: str) -> str:
    """A file of the templates: markup, style or script."""
    return (files("dflash_bench.report") / "templates" / name).read_text(encoding="utf-8")


def _embedded(content: dict[str, Any]) -> str:
    """The document without its white space. Of a table beyond `_MAX_TABLE_ROWS` the rest is counted."""
    left_out = {name: len(rows) - _MAX_TABLE_ROWS for name, rows in content["tables"].items()}
    tables = {name: _first_rows(rows) for name, rows in content["tables"].items()}
    counted = {name: count for name, count in left_out.items() if count > 0}
    whole = content | {"tables": tables, "table_rows_left_out": counted}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def _first_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pooled rows before those of single ranks, each in their order."""
    return sorted(rows, key=lambda row: row.get("rank") is not None)[:_MAX_TABLE_ROWS]


def _script_json(content: str) -> str:
    """JSON that may stand inside a script element: no character in it can end the element or open a comment."""
    for character in "<>&\u2028\u2029":
        content = content.replace(character, f"\\u{ord(character):04x}")
    return content
