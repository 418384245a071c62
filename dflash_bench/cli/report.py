"""``dflash-bench report``: two runs as a page that people look at, and as a trace for Perfetto."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from dflash_bench.cli.console import reading_progress, stderr, stdout
from dflash_bench.cli.files import write_whole
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    AgreementRange,
    NsysPath,
    PerRank,
    PresetName,
    ProfilesPlace,
    RankPattern,
    StepRange,
    chosen_pattern,
    chosen_reading,
)
from dflash_bench.cli.sides import both_sides, measured
from dflash_bench.cli.urls import with_urls
from dflash_bench.errors import UsageError


@with_urls("base", "candidate")
def report(
    base: Annotated[str, typer.Argument(help="Profile(s), capture or folder to compare against.")],
    candidate: Annotated[
        str | None, typer.Argument(help="The one with the change; left out where BASE holds two runs.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The page to write.")] = Path(
        "reports/report.html"
    ),
    perfetto: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Also write a trace that ui.perfetto.dev opens; .gz compresses it."),
    ] = None,
    perfetto_steps: Annotated[
        str | None, typer.Option(help="FIRST:LAST steps in the trace, LAST not included. Default: everything captured.")
    ] = None,
    per_rank: PerRank = None,
    preset: PresetName = None,
    step_range: StepRange = None,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
) -> None:
    """Compare two runs, or several of each arm, in one self-contained HTML file: verdicts, figures, timelines, causes.

    Several runs of an arm: names with commas between, a pattern such as 'smoke-control-*', or a folder of profiles.
    Verdicts rest on all of them; timelines, causes and the trace are those of each side's median run. The terminal
    shows the same in short.
    """
    from dflash_bench.compare import compare_sides
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.model import Sides
    from dflash_bench.report.comparison import comparison_report
    from dflash_bench.report.console import show
    from dflash_bench.report.figures import side_names
    from dflash_bench.report.html import html_report, timelines
    from dflash_bench.report.perfetto import traced_run, write_trace

    steps = parse_steps(perfetto_steps)
    if steps is not None and perfetto is None:
        raise UsageError("--perfetto-steps says what --perfetto writes", hint="add --perfetto FILE")
    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    with reading_progress() as progress:
        sides = both_sides(base, candidate, options, progress)
    reading = chosen_reading(preset, step_range, agreement_range)
    (old, old_runs), (new, new_runs) = (measured(runs, reading) for runs in sides)
    found, judgements = compare_sides(Sides(old_runs, new_runs))
    page = html_report(found, timelines(old, new, found, reading), judgements)
    show(comparison_report(found, is_per_rank=per_rank, is_brief=True, judgements=judgements), stdout)
    write_whole(output, page)
    if perfetto is not None:
        names = side_names(found)
        traced = [traced_run(names[0], old, found.base), traced_run(names[1], new, found.candidate)]
        count = write_trace(perfetto, traced, reading, steps)
        stderr.print(f"written: {perfetto}, {count:,} events; open it in https://ui.perfetto.dev", markup=False)


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """``FIRST:LAST`` as numbers. Raises UsageError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(
            f"--perfetto-steps {text!r} is not FIRST:LAST with FIRST < LAST", hint="--perfetto-steps 0:100"
        )
    return int(match[1]), int(match[2])
