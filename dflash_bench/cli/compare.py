"""``dflash-bench compare``: two runs side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dflash_bench.cli.completion import offer_runs
from dflash_bench.cli.console import reading_progress, stderr, stdout, working
from dflash_bench.cli.files import write_whole
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    AgreementRange,
    AsJson,
    Full,
    MetricPattern,
    NsysPath,
    OneRank,
    PerRank,
    PresetName,
    ProfilesPlace,
    RankPattern,
    SkipSteps,
    StepRange,
    StepWindow,
    check_metric,
    chosen_pattern,
    chosen_reading,
    with_place,
)
from dflash_bench.cli.sides import both_sides, check_common, describe_sides, measured
from dflash_bench.cli.urls import with_urls


@with_urls("base", "candidate")
def compare(
    base: Annotated[
        str | None, typer.Argument(autocompletion=offer_runs, help="Profile(s), capture or folder to compare against.")
    ] = None,
    candidate: Annotated[str | None, typer.Argument(autocompletion=offer_runs, help="The one with the change.")] = None,
    json: AsJson = False,
    markdown: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the comparison to this file.")
    ] = None,
    full: Full = False,
    brief: Annotated[bool, typer.Option("--brief", hidden=True, help="What is shown by default now.")] = False,
    rank: OneRank = None,
    metric: MetricPattern = None,
    per_rank: PerRank = None,
    preset: PresetName = None,
    step_range: StepRange = None,
    steps: StepWindow = None,
    skip_steps: SkipSteps = 0,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
) -> None:
    """Compare two runs, or several of each arm: what changed, how much, how sure, and which code did it.

    Several runs of an arm: names with commas between, a pattern such as 'smoke-control-*', or a folder of profiles.
    Without names: the two newest arms of one workload, with all their repeats. With one name that holds two runs:
    these two, the one captured first as base.
    """
    from dflash_bench.compare import compare as compare_sides
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.model import Sides
    from dflash_bench.report.as_json import comparison_json
    from dflash_bench.report.comparison import comparison_report
    from dflash_bench.report.console import show
    from dflash_bench.report.markdown import markdown as as_markdown
    from dflash_bench.report.sheets import Detail

    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    with reading_progress() as progress:
        old, new = both_sides(base, candidate, options, progress)
    stderr.print(describe_sides(old, new, is_chosen=candidate is not None), markup=False)
    reading = chosen_reading(preset, step_range, agreement_range, steps, skip_steps)
    (_, old_runs), (_, new_runs) = measured(old, reading), measured(new, reading)
    with working("comparing"):
        found = compare_sides(Sides(old_runs, new_runs))
    judgements = found.judgements
    check_common(found)
    detail = Detail(full and not brief, rank, metric, per_rank)
    check_metric(metric, (c.metric for c in found.changes))
    if json:
        typer.echo(comparison_json(found, judgements))
    else:
        show(with_place(comparison_report(found, judgements, detail), profiles), stdout)
    if markdown is not None:
        whole = detail if detail.is_close else replace(detail, is_full=True)
        write_whole(markdown, as_markdown(comparison_report(found, judgements, whole)))
