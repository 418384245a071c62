"""``dflash-bench report``: a run, or two sides, as a page that people look at, and as a trace for Perfetto."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.completion import offer_runs
from dflash_bench.cli.console import reading_progress, stderr, stdout, working
from dflash_bench.cli.files import write_whole
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    AgreementRange,
    NsysPath,
    PresetName,
    ProfilesPlace,
    RankPattern,
    SkipSteps,
    StepRange,
    StepWindow,
    chosen_pattern,
    chosen_reading,
)
from dflash_bench.cli.sides import both_sides, check_common, describe_sides, measure_all, measured
from dflash_bench.cli.urls import with_urls
from dflash_bench.errors import UsageError, quoted

if TYPE_CHECKING:
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.metrics.reading import Reading
    from dflash_bench.profile import Profile
    from dflash_bench.report.perfetto import TracedRun
    from dflash_bench.report.sheets import Report


def page_file(words: str | Path) -> Path:
    """Where the page goes: into a folder, or what ends in a slash, under its usual name."""
    path = Path(words)
    return path / "report.html" if path.is_dir() or str(words).endswith("/") else path


@with_urls("base", "candidate")
def report(
    base: Annotated[
        str | None,
        typer.Argument(
            autocompletion=offer_runs, help="Profile(s), capture or folder: the run, or what to compare against."
        ),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Argument(autocompletion=offer_runs, help="The one with the change; left out for the page of one run."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", parser=page_file, metavar="FILE|FOLDER/", help="The page to write.")
    ] = Path("reports/report.html"),
    perfetto: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Also write a trace that ui.perfetto.dev opens; .gz compresses it."),
    ] = None,
    perfetto_steps: Annotated[
        str | None, typer.Option(help="FIRST:LAST steps in the trace, LAST not included. Default: everything captured.")
    ] = None,
    preset: PresetName = None,
    step_range: StepRange = None,
    steps: StepWindow = None,
    skip_steps: SkipSteps = 0,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
) -> None:
    """Write one self-contained HTML file: the answer, figures with intervals, a step as a timeline, and the code.

    Of one run, or of two sides; without names those that `compare` would take. Several runs of an arm: names with
    commas between, a pattern such as 'smoke-control-*', or a folder of profiles. Verdicts rest on all of them;
    timelines, causes and the trace are those of each side's median run. The terminal shows the same in short.
    """
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.report.console import show

    traced_steps = parse_steps(perfetto_steps)
    if traced_steps is not None and perfetto is None:
        raise UsageError("--perfetto-steps says what --perfetto writes", hint="add --perfetto FILE")
    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    reading = chosen_reading(preset, step_range, agreement_range, steps, skip_steps)
    page, short, traced = _page(base, candidate, options, reading)
    write_whole(output, page)
    show(replace(short, following=()), stdout)
    if perfetto is not None:
        from dflash_bench.report.perfetto import write_trace

        count = write_trace(perfetto, traced, reading, traced_steps)
        stderr.print(f"written: {perfetto}, {count:,} events; open it in https://ui.perfetto.dev", markup=False)


def _page(
    base: str | None, candidate: str | None, options: IngestOptions, reading: Reading
) -> tuple[str, Report, list[TracedRun]]:
    """The page of one run or of two sides, the same in short, and what a trace of it holds."""
    from dflash_bench.ingest.sources import resolve

    command = shlex.join(["dflash-bench", *sys.argv[1:]])
    with reading_progress() as progress:
        alone = resolve(base, options, progress) if base is not None and candidate is None else ()
        is_one = len(alone) == 1 and (alone[0].arm is not None or len(alone[0].info.arms) != 2)
        sides = () if is_one else both_sides(base, candidate, options, progress)
    if sides and candidate is None:
        stderr.print(describe_sides(*sides, is_chosen=False), markup=False)
    if not sides:
        return _run_page(alone[0], reading, command)
    return _comparison_page(*sides, reading, command)


def _run_page(profile: Profile, reading: Reading, command: str) -> tuple[str, Report, list[TracedRun]]:
    from dflash_bench.report.page import run_page
    from dflash_bench.report.page_parts import straggler
    from dflash_bench.report.perfetto import traced_run
    from dflash_bench.report.run import run_report
    from dflash_bench.report.timeline import timeline_document

    (run,) = measure_all([profile], reading)
    with working("drawing"):
        timeline = timeline_document([(run.info.run, profile, run)], run.info.ranks, straggler(run), reading)
        page = run_page(run, timeline, command, reading)
    return page, run_report(run, reading=reading), [traced_run(run.info.run, profile, run)]


def _comparison_page(
    base: tuple[Profile, ...], candidate: tuple[Profile, ...], reading: Reading, command: str
) -> tuple[str, Report, list[TracedRun]]:
    from dflash_bench.compare import compare as compare_sides
    from dflash_bench.model import Sides
    from dflash_bench.report.comparison import comparison_report
    from dflash_bench.report.page import comparison_page
    from dflash_bench.report.page_parts import side_names, straggler
    from dflash_bench.report.perfetto import traced_run
    from dflash_bench.report.timeline import timeline_document

    (old, old_runs), (new, new_runs) = measured(base, reading), measured(candidate, reading)
    with working("comparing"):
        found = compare_sides(Sides(old_runs, new_runs))
    judgements = found.judgements
    check_common(found)
    names = side_names(found)
    ranks = sorted({*found.base.info.ranks, *found.candidate.info.ranks})
    first = straggler(found.base)
    both = [(names[0], old, found.base), (names[1], new, found.candidate)]
    with working("drawing"):
        page = comparison_page(found, judgements, timeline_document(both, ranks, first, reading), command)
    return page, comparison_report(found, judgements), [traced_run(*each) for each in both]


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """``FIRST:LAST`` as numbers. Raises UsageError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(
            f"--perfetto-steps {quoted(text)} is not FIRST:LAST with FIRST < LAST", hint="--perfetto-steps 0:100"
        )
    return int(match[1]), int(match[2])
