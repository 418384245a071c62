"""``dflash-bench baseline``: what later runs are held against."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.completion import offer_runs
from dflash_bench.cli.console import reading_progress, stderr, stdout
from dflash_bench.cli.files import write_whole
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    AgreementRange,
    AsJson,
    NsysPath,
    PresetName,
    ProfilesPlace,
    RankPattern,
    StepRange,
    chosen_pattern,
    chosen_reading,
)
from dflash_bench.cli.urls import Command, with_urls
from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_bench.baseline.history import Course
    from dflash_bench.baseline.runs import Baseline
    from dflash_bench.model import Metric, Unit

app = typer.Typer(help="Keep runs as what later runs are held against.", no_args_is_help=True)

DEFAULT_BASELINES = Path("baselines")
BaselinesFolder = Annotated[
    Path,
    typer.Option("--baselines", envvar="DFLASH_BENCH_BASELINES", file_okay=False, help="Folder of the baselines."),
]


@app.command(cls=Command)
@with_urls("runs")
def save(
    runs: Annotated[
        list[str],
        typer.Argument(autocompletion=offer_runs, help="Runs of one arm: names, a pattern, captures, or a folder."),
    ],
    keep: Annotated[
        int, typer.Option(min=1, help="Runs whose samples the file keeps; older ones stay as figures.")
    ] = 10,
    preset: PresetName = None,
    step_range: StepRange = None,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
    baselines: BaselinesFolder = DEFAULT_BASELINES,
) -> None:
    """Add runs to the baseline of their device, stack, workload, arm and world size."""
    from dflash_bench.baseline.folder import save as save_runs
    from dflash_bench.cli.sides import resolve_side
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.metrics.measure import measure

    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    reading = chosen_reading(preset, step_range, agreement_range)
    with reading_progress() as progress:
        found = [p for words in runs for p in resolve_side(words, options, progress)]
    path, after = save_runs(baselines, [measure(p, reading) for p in found], keep)
    text = f"{path}: {after.key.text}; {len(after.runs)} runs with samples, {len(after.history)} in its history"
    stdout.print(text, markup=False, soft_wrap=True)


@app.command(name="list", cls=Command)
def list_(json: AsJson = False, baselines: BaselinesFolder = DEFAULT_BASELINES) -> None:
    """List the baselines of a folder."""
    import json as json_text

    from dflash_bench.baseline.folder import all_in
    from dflash_bench.report.console import rendered
    from dflash_bench.report.sheets import Sheet

    found = all_in(baselines)
    if json:
        rows = [
            {
                "path": str(path),
                "device": b.key.device,
                "stack": dict(b.key.stack),
                "workload": b.key.workload,
                "arm": b.key.arm,
                "world": b.key.world,
                "runs": [run.run for run in b.runs],
                "history": len(b.history),
            }
            for path, b in found
        ]
        typer.echo(json_text.dumps(rows, indent=1, ensure_ascii=False))
        return
    if not found:
        stderr.print(f"no baselines in {baselines}; dflash-bench baseline save RUN… makes one", markup=False)
        return
    columns = ("arm", "workload", "ranks", "device", "runs", "history", "newest", "file")
    sheet_rows = tuple(
        (
            b.key.arm,
            b.key.workload,
            str(b.key.world),
            b.key.device,
            str(len(b.runs)),
            str(len(b.history)),
            b.history[-1].created_utc[:16] if b.history else "–",
            str(path),
        )
        for path, b in found
    )
    left = ("arm", "workload", "device", "newest", "file")
    stdout.print(rendered(Sheet(f"Baselines in {baselines}", columns, sheet_rows, left=left)))


@app.command(cls=Command)
def show(
    baseline: Annotated[Path, typer.Argument(help="A baseline file, as `baseline list` names it.")],
    per_rank: Annotated[bool, typer.Option("--per-rank", help="Show each rank, not only all together.")] = False,
) -> None:
    """Show what a baseline holds: its key, its runs, and the figures of each."""
    from dflash_bench.metrics.summary import figure
    from dflash_bench.report.console import show as show_report
    from dflash_bench.report.sheets import Report, Sheet
    from dflash_bench.report.units import rank_text, symbol, text

    found = _load(baseline)
    runs = found.run_metrics()
    keys = list(dict.fromkeys((m.name, m.rank) for run in runs for m in run.metrics))
    shown = [(name, rank) for name, rank in keys if per_rank or rank is None]
    metrics = {key: [run.find(*key) for run in runs] for key in shown}
    rows = tuple(
        (
            name,
            rank_text(rank),
            *(text(None if m is None else figure(m), m.unit if m else _unit(own)) for m in own),
            symbol(_unit(own)),
        )
        for (name, rank), own in metrics.items()
    )
    sheet = Sheet("Figures", ("metric", "rank", *(r.info.run for r in runs), "unit"), rows, left=("metric", "unit"))
    history = [f"{e.created_utc[:16]} {e.run}: {len(e.figures)} figures" for e in found.history]
    show_report(Report(found.key.text, tuple(history), (sheet,)), stdout)


@app.command(cls=Command)
def history(
    baseline: Annotated[
        Path, typer.Argument(help="A baseline file, as `baseline list` names it, or the folder of all of them.")
    ],
    metric: Annotated[
        list[str] | None, typer.Option(help="Metrics, or patterns of them. Default: the primary ones.")
    ] = None,
    json: AsJson = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="Also write it as a page to send.")
    ] = None,
) -> None:
    """Show each primary metric over sessions and commits: where it changed, and whether it creeps."""
    import json as json_text

    from dflash_bench.baseline.folder import all_in
    from dflash_bench.baseline.history import course_rows, courses

    found = [own for _, own in all_in(baseline)] if baseline.is_dir() else [_load(baseline)]
    if not found:
        raise UsageError(f"{baseline} holds no baseline", hint="dflash-bench baseline save RUN")
    histories = [(own, every) for own in found if (every := courses(own, metric))]
    if not histories:
        raise UsageError(f"{baseline} has no such metric in its history", hint="dflash-bench baseline list")
    if output is not None:
        from dflash_bench.report.history import history_page

        write_whole(output, history_page(histories, shlex.join(["dflash-bench", *sys.argv[1:]])))
    if json:
        rows = [course_rows(c) | {"baseline": own.key.text} for own, each in histories for c in each]
        typer.echo(json_text.dumps(rows, indent=1, ensure_ascii=False))
        return
    for own, each in histories:
        _show_history(own, each)


def _show_history(baseline: Baseline, every: Sequence[Course]) -> None:
    from dflash_bench.report.console import rendered
    from dflash_bench.report.history import change_words, creep_words
    from dflash_bench.report.sheets import Sheet
    from dflash_bench.report.units import symbol, text

    rows = tuple(
        (
            c.metric,
            str(len(c.values)),
            text(c.values[0], c.unit),
            text(c.values[-1], c.unit),
            symbol(c.unit),
            "; ".join(change_words(c, change) for change in c.changes) or "–",
            creep_words(c) or "–",
        )
        for c in every
    )
    columns = ("metric", "sessions", "first", "newest", "unit", "changed", "creeps")
    note = "medians of a session's runs; 1 in 100 metrics without a change shows one"
    stdout.print(
        rendered(Sheet(baseline.key.text, columns, rows, left=("metric", "unit", "changed", "creeps"), note=note))
    )


@app.command(cls=Command)
def prune(
    baseline: Annotated[Path, typer.Argument(help="A baseline file, as `baseline list` names it.")],
    keep: Annotated[int, typer.Option(min=0, help="Newest runs whose samples stay.")] = 10,
    keep_history: Annotated[int, typer.Option(min=0, help="Newest entries of the history that stay.")] = 50,
) -> None:
    """Drop all but the newest runs and history entries of a baseline."""
    from dflash_bench.baseline.folder import prune as prune_file

    _load(baseline)
    after = prune_file(baseline, keep, keep_history)
    text = f"{baseline}: {len(after.runs)} runs with samples, {len(after.history)} in its history"
    stdout.print(text, markup=False, soft_wrap=True)


def _load(path: Path) -> Baseline:
    from dflash_bench.baseline.file import read_baseline

    if not path.is_file():
        raise UsageError(f"{path}: no such baseline", hint="dflash-bench baseline list")
    return read_baseline(path)


def _unit(found: list[Metric | None]) -> Unit:
    return next(m.unit for m in found if m is not None)
