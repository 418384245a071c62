"""``dflash-bench ingest``: captures to profiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.console import reading_progress, stdout, transfer_progress
from dflash_bench.cli.options import (
    DEFAULT_PROFILES,
    NsysPath,
    PresetName,
    ProfilesPlace,
    RankPattern,
    Ranks,
    chosen_pattern,
)
from dflash_bench.errors import UsageError

if TYPE_CHECKING:
    from dflash_bench.ingest.remote.mirror import Mirror
    from dflash_bench.ingest.workers import RunTasks
    from dflash_bench.model import ProcessInfo, RunInfo
    from dflash_bench.profile import Profile


def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(help="Captures (.sqlite, parquetdir, arrowdir, .nsys-rep, .qdstrm, traces), folders, or URLs."),
    ],
    run: Annotated[str | None, typer.Option(help="Name of the profile; all captures are then one run.")] = None,
    arm: Annotated[str | None, typer.Option(help="Arm, where no mark in the capture tells it.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload that was run.")] = None,
    preset: PresetName = None,
    rank_pattern: RankPattern = None,
    ranks: Ranks = None,
    nsys: NsysPath = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that read. Default: one per core.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Let a Dask cluster read: its scheduler, such as tcp://host:8786."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a profile of the same name.")] = False,
    profiles: ProfilesPlace = DEFAULT_PROFILES,
) -> None:
    """Turn nsys captures into profiles: typed Parquet tables by rank, without anything private.

    One report per rank and one report for all ranks both work. Captures that are here already change nothing. Captures
    and profiles may lie at URLs (s3://, gs://, …), with the extra `remote`.
    """
    from dflash_bench.ingest.remote.mirror import mirrored
    from dflash_bench.ingest.sources import IngestOptions, PartlyReadError
    from dflash_bench.ingest.sources import ingest as ingest_captures

    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs are processes of this machine, --scheduler is a cluster", hint="leave one of them out")
    with mirrored(profiles, paths) as mirror, _cluster(scheduler, mirror) as run_tasks:
        with transfer_progress() as transferred:
            near = [Path(mirror.near(path, transferred)) for path in paths]
        options = IngestOptions(
            # workers have another working directory
            profiles=mirror.profiles if run_tasks is None else mirror.profiles.absolute(),
            run=run,
            arm=arm,
            workload=workload,
            rank_pattern=chosen_pattern(preset, rank_pattern),
            ranks=ranks,
            nsys=nsys,
            jobs=jobs,
            run_tasks=run_tasks,
            is_replace=replace,
        )
        failure: PartlyReadError | None = None
        with reading_progress() as progress:
            try:
                found = ingest_captures(near if run_tasks is None else [p.absolute() for p in near], options, progress)
            except PartlyReadError as error:
                found, failure = error.profiles, error
        with transfer_progress() as transferred:
            mirror.publish(transferred, is_replace=replace)
        for profile in found:
            describe(profile, mirror.say(str(profile.path)))
        if failure is not None:
            raise failure
    names = " ".join(p.info.run for p in found[:2])
    stdout.print(f"next: dflash-bench {'compare' if len(found) == 2 else 'metrics'} {names}", markup=False)


@contextmanager
def _cluster(address: str | None, mirror: Mirror) -> Iterator[RunTasks | None]:
    """What runs the tasks of an ingest on a cluster; None where it is this machine."""
    if address is None:
        yield None
        return
    from dflash_bench.ingest.remote.attempts import Carriage
    from dflash_bench.ingest.remote.cluster import cluster

    with cluster(address, Carriage(mirror.origins, mirror.staging())) as run_tasks:
        yield run_tasks


def describe(profile: Profile, place: str) -> None:
    """Say what a profile holds and what its ranks rest on. ``place``: where it lies, as a person knows it."""
    from dflash_bench.report.sheets import warning_text

    info = profile.info
    stdout.print(place, markup=False, style="bold", soft_wrap=True)
    stdout.print(
        f"  arm {info.arm or 'not stated'}, device {info.device}, {_ranks(info)}", markup=False, soft_wrap=True
    )
    for process in info.processes:
        rank = _rank(info, process)
        counts = (
            f"{process.num_ranges:,} ranges, {process.num_api_calls:,} API calls, {process.num_gpu_work:,} GPU rows"
        )
        stdout.print(f"  {rank}: {counts}", markup=False)
    for finding in info.findings:
        stdout.print(f"  ! {warning_text(finding)}", markup=False, style="yellow", soft_wrap=True)


def _rank(info: RunInfo, process: ProcessInfo) -> str:
    """The rank of a process and what says so."""
    if process.rank is None:
        return "core" if process.role == "core" else "no rank"
    file = info.captures[process.capture].file
    several = sum(p.capture == process.capture for p in info.processes) > 1
    where = [f"process {process.pid}"] if several else []
    where += [file] if file and len(info.captures) > 1 else []
    return f"rank {process.rank}" + (f" ({process.rank_source}, {', '.join(where)})" if where else "")


def _ranks(info: RunInfo) -> str:
    world = f" of {info.world}" if info.world else ""
    ranks = "rank" if len(info.ranks) == 1 and not info.world else "ranks"
    return f"{len(info.ranks)}{world} {ranks}, read from the {info.rank_source or 'nothing'}"
