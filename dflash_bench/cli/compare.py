"""``dflash-bench compare``: two runs side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.console import reading_progress, stderr, stdout
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
    StepRange,
    chosen_pattern,
    chosen_reading,
)
from dflash_bench.cli.sides import both_sides, measured
from dflash_bench.cli.urls import with_urls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_bench.ingest.build import Progress
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.profile import Profile


@with_urls("base", "candidate")
def compare(
    base: Annotated[str | None, typer.Argument(help="Profile(s), capture or folder to compare against.")] = None,
    candidate: Annotated[str | None, typer.Argument(help="The one with the change.")] = None,
    json: AsJson = False,
    markdown: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the comparison to this file.")
    ] = None,
    full: Full = False,
    rank: OneRank = None,
    metric: MetricPattern = None,
    per_rank: PerRank = None,
    preset: PresetName = None,
    step_range: StepRange = None,
    agreement_range: AgreementRange = None,
    rank_pattern: RankPattern = None,
    nsys: NsysPath = None,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
) -> None:
    """Compare two runs, or several of each arm: what changed, how much, how sure, and which code did it.

    Several runs of an arm: names with commas between, a pattern such as 'smoke-control-*', or a folder of profiles.
    Without names: the two newest arms of one workload. With one name that holds two runs: these two.
    """
    from dflash_bench.compare import compare_sides
    from dflash_bench.ingest.sources import IngestOptions
    from dflash_bench.model import Sides
    from dflash_bench.report.as_json import comparison_json
    from dflash_bench.report.comparison import comparison_report
    from dflash_bench.report.console import show
    from dflash_bench.report.markdown import markdown as as_markdown
    from dflash_bench.report.sheets import Detail

    options = IngestOptions(profiles=profiles, rank_pattern=chosen_pattern(preset, rank_pattern), nsys=nsys)
    with reading_progress() as progress:
        old, new = _sides(base, candidate, options, progress)
    stderr.print(f"base {_names(old)}, candidate {_names(new)}", markup=False)
    reading = chosen_reading(preset, step_range, agreement_range)
    (_, old_runs), (_, new_runs) = measured(old, reading), measured(new, reading)
    found, judgements = compare_sides(Sides(old_runs, new_runs))
    detail = Detail(full, rank, metric, per_rank)
    if json:
        typer.echo(comparison_json(found, judgements))
    else:
        show(comparison_report(found, judgements, detail), stdout)
    if markdown is not None:
        whole = detail if detail.is_close else replace(detail, is_full=True)
        write_whole(markdown, as_markdown(comparison_report(found, judgements, whole)))


def _sides(
    base: str | None, candidate: str | None, options: IngestOptions, progress: Progress | None
) -> tuple[tuple[Profile, ...], tuple[Profile, ...]]:
    """The runs of base and candidate; without names those of the two newest arms."""
    from dflash_bench.ingest.sources import newest_pair

    if base is not None:
        return both_sides(base, candidate, options, progress)
    older, newer = _in_ladder_order(*newest_pair(options.profiles))
    return (older,), (newer,)


def _names(side: Sequence[Profile]) -> str:
    return ", ".join(p.info.run for p in side)


def _in_ladder_order(older: Profile, newer: Profile) -> tuple[Profile, Profile]:
    """Base and candidate: of two arms of the ladder the earlier one is the base, whichever ran first."""
    from dflash_prep.arms import ARMS

    ladder = list(ARMS)
    arms = older.info.arm, newer.info.arm
    if all(arm in ladder for arm in arms) and ladder.index(str(arms[0])) > ladder.index(str(arms[1])):
        return newer, older
    return older, newer
