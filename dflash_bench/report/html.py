"""The report as one HTML file: nothing is fetched, everything that it shows lies inside.

The page carries the whole comparison as JSON (``<script id="comparison">``), the document that ``compare --json``
prints; tables show its numbers with the stored value beside each (``<data value>``). Texts of the profiled program are
escaped by the template engine, in Plotly texts by `figures.label`, in JSON by `script_json`. A content security policy
forbids every request.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dflash_bench import __version__
from dflash_bench.environment import differences, is_refused
from dflash_bench.metrics.reading import Reading
from dflash_bench.metrics.registry import spec
from dflash_bench.model import Comparison
from dflash_bench.profile import Profile
from dflash_bench.report.as_json import comparison_document
from dflash_bench.report.changes import key_changes, largest
from dflash_bench.report.comparison import are_steps_unlike, kinds_lines, warning_texts
from dflash_bench.report.figures import Figure, ecdf_figure, side_names
from dflash_bench.report.figures_code import allocation_figure, cause_figures, host_waits, stalls, wait_sentence
from dflash_bench.report.figures_forest import forest_figures
from dflash_bench.report.figures_ranks import arrival_figures, heat_map
from dflash_bench.report.figures_timeline import timeline_figure
from dflash_bench.report.html_tables import (
    cause_rows,
    change_row,
    change_sections,
    commands,
    run_cells,
    settings,
    verdict_lines,
)
from dflash_bench.report.sheets import captured, identity
from dflash_bench.report.sides import run_metrics, runs_note
from dflash_bench.report.timeline import StepWindow, step_windows
from dflash_bench.report.units import symbol
from dflash_bench.stats.judgement import Judgements

CURVES = ("range.prepare_for_decode", "step.lead", "launch.lead")
MAX_TABLE_ROWS = 2000
"""Rows of one cause table that the page's JSON keeps; programs that count in range names make millions of rows."""


@dataclass(frozen=True, slots=True)
class Timelines:
    """The chosen steps of one rank in both runs."""

    rank: int
    base: tuple[StepWindow, ...]
    candidate: tuple[StepWindow, ...]


def timelines(
    base: Profile, candidate: Profile, comparison: Comparison, reading: Reading | None = None
) -> Timelines | None:
    """Steps of the rank that most often kept the others waiting in the base (else the lowest); None without ranks."""
    rank = straggler(comparison)
    if rank is None:
        return None
    return Timelines(rank, step_windows(base, rank, reading), step_windows(candidate, rank, reading))


def straggler(comparison: Comparison) -> int | None:
    """The rank that most often arrived last in the base; without agreements the lowest."""
    shares = [
        (m.values.mean(), -m.rank)
        for m in comparison.base.metrics
        if m.name == "dp.straggler_share" and m.rank is not None
    ]
    ranks = comparison.base.info.ranks or comparison.candidate.info.ranks
    return -max(shares)[1] if shares else ranks[0] if ranks else None


def html_report(
    comparison: Comparison,
    steps: Timelines | None,
    judgements: Judgements | None = None,
) -> str:
    """The whole page, headed by the verdicts where any were reached."""
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["parts"] = _parts
    sections = _sections(comparison, steps, judgements)
    specs = ",\n".join(f"{json.dumps(f.key)}:{f.spec}" for _, figures in sections.values() for f in figures)
    return environment.get_template("report.html.j2").render(
        **_texts(comparison, judgements),
        sections=sections,
        css=_template("report.css"),
        js=_template("report.js"),
        plotly=get_plotlyjs(),
        comparison_json=script_json(embedded(comparison, judgements)),
        figures_json=script_json("{" + specs + "}"),
        version=__version__,
    )


def _parts(name: str) -> list[str]:
    """A name cut where a narrow column may break it: behind its dots, underscores, dashes and the like."""
    return re.findall(r"[^._@>/·-]*[._@>/·-]+|[^._@>/·-]+", name)


def _template(name: str) -> str:
    return (files("dflash_bench.report") / "templates" / name).read_text(encoding="utf-8")


def _texts(comparison: Comparison, judgements: Judgements | None) -> dict[str, Any]:
    base, candidate, sides = comparison.base, comparison.candidate, comparison.sides
    names, keys = side_names(comparison), key_changes(comparison)
    waits, waits_left_out = cause_rows(host_waits(base), host_waits(candidate))
    dry, dry_left_out = cause_rows(stalls(base), stalls(candidate))
    infos = [[run.info for run in runs] for _, runs in sides.named]
    circumstances = settings(sides)
    return {
        "names": names,
        "about": [(identity(run.info), captured(run.info)) for run in (base, candidate)],
        "note": runs_note(sides),
        "verdicts": verdict_lines(judgements) if judgements else [],
        "method": judgements.method if judgements else "",
        "refusals": [d.finding.text for d in differences(*infos) if is_refused([d])],
        "largest": [change_row(c) for c in largest(keys)],
        "waits": [wait_sentence(name, run) for name, run in zip(names, (base, candidate), strict=True)],
        "tiles": [change_row(c, judgements) for c in keys],
        "run_metrics": [(name, symbol(spec(name).unit)) for name in run_metrics(sides)],
        "runs": run_cells(sides) if sides.is_repeated else [],
        "kinds": list(kinds_lines(sides, names)),
        "are_steps_unlike": are_steps_unlike(comparison),
        "changes": change_sections(comparison, judgements),
        "causes": [
            ("Host waits, over all ranks", "range path", waits, waits_left_out),
            ("Idle time of streams, over all ranks", "innermost range · call", dry, dry_left_out),
        ],
        "warnings": list(warning_texts(comparison)),
        "differing": [s for s in circumstances if s.is_different],
        "settings": [s for s in circumstances if not s.is_different],
        "commands": commands(sides),
    }


def _sections(
    comparison: Comparison, steps: Timelines | None, judgements: Judgements | None
) -> dict[str, tuple[str, list[Figure]]]:
    """Figures by section of the page: id → (title, figures); sections without figures are left out."""
    curves = [ecdf_figure(comparison, name) for name in CURVES]
    found: dict[str, tuple[str, list[Figure | None]]] = {
        "changes": ("What changed", [*forest_figures(comparison, judgements)]),
        "code": ("Which code made the host wait", [*cause_figures(comparison)]),
        "distributions": ("Distributions", [*curves]),
        "ranks": ("Ranks", [heat_map(comparison, judgements), *arrival_figures(comparison)]),
        "allocation": ("Allocation steps", [allocation_figure(comparison)]),
        "timeline": ("Timeline of a step", _timeline_figures(comparison, steps)),
    }
    return {key: (title, kept) for key, (title, figures) in found.items() if (kept := [f for f in figures if f])}


def _timeline_figures(comparison: Comparison, steps: Timelines | None) -> list[Figure | None]:
    if steps is None:
        return []
    sides = zip(("base", "candidate"), side_names(comparison), (steps.base, steps.candidate), strict=True)
    return [
        timeline_figure(f"timeline-{side}-{window.title.split()[0]}", name, window)
        for side, name, windows in sides
        for window in windows
    ]


def embedded(comparison: Comparison, judgements: Judgements | None = None) -> str:
    """The comparison's JSON without its white space, verdicts included.

    Of a table beyond `MAX_TABLE_ROWS` the rest is counted in ``table_rows_left_out``.
    """
    content = comparison_document(comparison, judgements)
    left_out = {name: len(rows) - MAX_TABLE_ROWS for name, rows in content["tables"].items()}
    content["tables"] = {name: _first_rows(rows) for name, rows in content["tables"].items()}
    content["table_rows_left_out"] = {name: count for name, count in left_out.items() if count > 0}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _first_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pooled rows before those of single ranks, each in their order."""
    return sorted(rows, key=lambda row: row.get("rank") is not None)[:MAX_TABLE_ROWS]


def script_json(text: str) -> str:
    """JSON that may stand inside a script element: no character in it can end the element or open a comment."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
