"""Options that several commands share, each spelled and explained once."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.completion import offer_metrics, offer_presets
from dflash_bench.cli.urls import local_folder, place
from dflash_bench.errors import UsageError, quoted

if TYPE_CHECKING:
    from dflash_bench.metrics.presets import Preset
    from dflash_bench.metrics.reading import Reading
    from dflash_bench.report.sheets import Report

DEFAULT_PROFILES = Path("profiles")

ProfilesFolder = Annotated[
    Path,
    typer.Option(
        "--profiles",
        parser=local_folder,
        metavar="FOLDER",
        envvar="DFLASH_BENCH_PROFILES",
        help="Folder of the profiles.",
    ),
]
ProfilesPlace = Annotated[
    Path,
    typer.Option(
        "--profiles",
        parser=place,
        metavar="FOLDER|URL",
        envvar="DFLASH_BENCH_PROFILES",
        help="Folder of the profiles, or its URL, such as s3://bucket/profiles.",
    ),
]
"""For commands under `with_urls`, which see the folder as a local one."""
RankPattern = Annotated[
    str | None,
    typer.Option(help="Regular expression with a group for the rank in a file's name, where no mark tells it."),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        metavar="mark|name|order|PID=RANK,PID=core,…",
        help="Where ranks are read, or which process is which: a rank, or the core of an engine that serves others.",
    ),
]
NsysPath = Annotated[Path | None, typer.Option("--nsys", help="The nsys to use, instead of the best one found.")]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        autocompletion=offer_presets,
        help="How the captured engine names things: dflash-bench, sglang, vllm or trtllm.",
    ),
]
StepRange = Annotated[
    str | None,
    typer.Option(
        help="Name of a step's range, or after 're:' a regular expression for whole names. Default: decode_step, or"
        " what a known engine calls it."
    ),
]
StepWindow = Annotated[
    str | None,
    typer.Option("--steps", metavar="A:B", help="Only the steps of each process from number A to B − 1, from 0."),
]
SkipSteps = Annotated[int, typer.Option("--skip-steps", min=0, help="Leave out the first steps of each process.")]
AgreementRange = Annotated[
    str | None, typer.Option(help="Name of the range in which ranks meet. Default: dp_agreement.")
]
PerRank = Annotated[
    bool | None,
    typer.Option("--per-rank/--pooled", help="With --full: each rank, or all together. Default: each up to 4 ranks."),
]
Full = Annotated[bool, typer.Option("--full", help="Everything: every metric, table and warning.")]
OneRank = Annotated[int | None, typer.Option("--rank", min=0, help="The figures of this rank.")]
MetricPattern = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="PATTERN",
        autocompletion=offer_metrics,
        help="The metrics whose name holds or fits this, by rank.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of tables; times in nanoseconds.")]


def check_metric(pattern: str | None, names: Iterable[str]) -> None:
    """Raises UsageError, naming what is near, where no metric fits the pattern."""
    from dflash_bench.report.sheets import Detail

    known = sorted(set(names))
    if pattern is not None and not any(Detail(metric=pattern).shows(name, None) for name in known):
        near = get_close_matches(pattern, known, 3, 0.5)
        raise UsageError(
            f"no metric of these runs fits {quoted(pattern)}",
            hint=f"--metric {near[0]}" if near else "leave --metric out to see what there is",
        )


def with_place(report: Report, profiles: Path) -> Report:
    """The report with commands to type that find the profiles where they lie."""
    usual = Path(os.environ.get("DFLASH_BENCH_PROFILES", DEFAULT_PROFILES))
    if profiles == usual:
        return report
    return replace(report, following=tuple(f"{c} --profiles {shlex.quote(str(profiles))}" for c in report.following))


def chosen_reading(
    preset: str | None,
    step_range: str | None,
    agreement_range: str | None,
    window: str | None = None,
    skipped: int = 0,
) -> Reading:
    """How the ranges are read: the preset's roles, and what the command line says instead.

    ``window`` is ``A:B``, either of them empty for no bound; ``skipped`` steps are left out at the beginning of it.
    Raises UsageError for a window that is none, or holds no step.
    """
    from dflash_bench.metrics.presets import reading_of
    from dflash_bench.metrics.reading import Reading

    reading = Reading() if preset is None else reading_of(_preset(preset))
    first, last = (0, None) if window is None else _bounds(window)
    return replace(
        reading,
        is_open=preset is None and step_range is None,
        step=reading.step if step_range is None else step_range,
        agreement=reading.agreement if agreement_range is None else agreement_range,
        first=first + skipped,
        last=last,
    )


def _bounds(window: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"(\d*):(\d*)", window)
    if found is None or (found[2] and int(found[1] or 0) >= int(found[2])):
        raise UsageError(f"--steps {quoted(window)} is no window of steps", hint="--steps 100:400, 100: or :400")
    return int(found[1] or 0), int(found[2]) if found[2] else None


def chosen_pattern(preset: str | None, rank_pattern: str | None) -> str:
    """How the rank is found in file names: as the command line says, else by the default."""
    from dflash_bench.ingest.ranks import DEFAULT_RANK_PATTERN

    if preset is not None:
        _preset(preset)
    return rank_pattern or DEFAULT_RANK_PATTERN


def _preset(name: str) -> Preset:
    from dflash_bench.metrics.presets import Preset

    if name not in set(Preset):
        raise UsageError(f"there is no preset {quoted(name)}", hint=f"--preset is one of {', '.join(Preset)}")
    return Preset(name)
