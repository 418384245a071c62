"""``dflash-bench metrics``: every figure of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_bench.cli.completion import offer_runs
from dflash_bench.cli.console import reading_progress, stdout
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
from dflash_bench.cli.urls import with_urls


@with_urls("profile")
def metrics(
    profile: Annotated[
        list[str], typer.Argument(autocompletion=offer_runs, help="Profile, capture, folder of either, or a pattern.")
    ],
    full: Full = False,
    rank: OneRank = None,
    metric: MetricPattern = None,
    json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout, a line a metric and rank; times in ns.")] = False,
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
    """Say what the GPU waited for, with the figures that answer first; --full prints every metric, per rank and pooled.

    Captures are ingested on the way and kept as profiles, so that the next look is quick.
    """
    from dflash_bench.cli.sides import measure_all
    from dflash_bench.ingest.sources import IngestOptions, resolve_all
    from dflash_bench.report.as_json import metrics_csv, metrics_json
    from dflash_bench.report.console import show
    from dflash_bench.report.run import run_report
    from dflash_bench.report.sheets import Detail

    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    reading = chosen_reading(preset, step_range, agreement_range, steps, skip_steps)
    with reading_progress() as progress:
        found = resolve_all(profile, options, progress)
    # of a run in which arms take turns each arm has its figures
    arms = [p.of_arm(arm) for p in found for arm in (p.info.arms if p.arm is None else ())]
    runs = measure_all([*(p for p in found if not p.info.arms or p.arm), *arms], reading)
    check_metric(metric, (m.name for run in runs for m in run.metrics))
    if json or csv:
        typer.echo((metrics_json if json else metrics_csv)(runs), nl=json)
        return
    for k, run in enumerate(runs):
        if k:
            stdout.print()
        report = run_report(run, Detail(full, rank, metric, per_rank), reading)
        show(with_place(report, profiles), stdout)
