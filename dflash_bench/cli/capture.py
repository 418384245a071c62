"""``dflash-bench capture -- CMD …``: record any command, annotated from outside where a table is named."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.cli.console import stderr, stdout
from dflash_bench.cli.options import DEFAULT_PROFILES, NsysPath, ProfilesFolder
from dflash_bench.errors import CaptureError, ExitCode, UsageError

if TYPE_CHECKING:
    from dflash_bench.capture.command import CommandCapture
    from dflash_bench.capture.nsys import NsysTool
    from dflash_bench.capture.nsys_command import ProfileOptions
    from dflash_bench.run.program import MadeProgramRun, ProgramRun


class Kill(StrEnum):
    """What nsys sends to the command when a timed capture ends."""

    NONE = "none"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"


class Wait(StrEnum):
    """Whose end nsys waits for."""

    PRIMARY = "primary"
    ALL = "all"


def capture(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command to record, after --.")],
    name: Annotated[str | None, typer.Option(help="Name of the run; default: the command and the time.")] = None,
    per_rank: Annotated[
        bool, typer.Option("--per-rank", help="This command is started once per rank: one report each, one profile.")
    ] = False,
    trace: Annotated[
        str | None, typer.Option(help="What to trace: cuda,nvtx,osrt. Default: what this machine can.")
    ] = None,
    capture_range: Annotated[
        str | None,
        typer.Option(help="Record only inside cudaProfilerApi, or inside this NVTX range (NAME or NAME@DOMAIN)."),
    ] = None,
    delay: Annotated[int | None, typer.Option(min=0, help="Seconds before recording starts.")] = None,
    duration: Annotated[int | None, typer.Option(min=1, help="Seconds to record.")] = None,
    kill: Annotated[
        Kill | None, typer.Option(help="Sent to the command when --duration is over; nsys' own choice is sigterm.")
    ] = None,
    wait: Annotated[Wait, typer.Option(help="End with the command, or with all it started too.")] = Wait.PRIMARY,
    nsys: NsysPath = None,
    annotate: Annotated[
        str | None,
        typer.Option(help="Put ranges around an engine's functions: sglang, vllm, or a TOML file (docs/annotate.md)."),
    ] = None,
    recorder: Annotated[
        bool, typer.Option("--recorder", help="Record the ranges without nsys, with the built-in recorder.")
    ] = False,
    torch_profiler: Annotated[
        bool, typer.Option("--torch-profiler", help="Record 50 steps of each rank with the torch profiler.")
    ] = False,
    arm: Annotated[str | None, typer.Option(help="Arm that the profile is filed under.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload that the profile is filed under.")] = None,
    profiles: ProfilesFolder = DEFAULT_PROFILES,
    discard_captures: Annotated[
        bool, typer.Option("--discard-captures", help="Do not keep the raw captures beside the profile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command, run nothing.")] = False,
) -> None:
    """Record any command with nsys, or with what its processes write themselves, and ingest it.

    Without --per-rank there is one report with all processes that the command starts. With it, start this command once
    per rank (torchrun --no-python, mpirun, srun) under one --name; the last rank to end ingests all reports.
    """
    from dflash_bench.capture.command import CommandCapture, environment_of, place_of, whole_line
    from dflash_bench.capture.nsys_command import shell_line
    from dflash_bench.run.program import ProgramRun, make_program_run, program_name

    options = _options(trace, capture_range, delay, duration, kill, wait)
    place = place_of(os.environ) if per_rank else None
    if place is not None and name is None:
        raise UsageError("--per-rank needs --name, so that all ranks mean the same run", hint="--name RUN")
    run = program_name(name, command[0], profiles)
    job = CommandCapture(tuple(command), Path(), None, options, place)
    if annotate is not None or recorder or torch_profiler:
        job = _annotated(job, annotate, arm, recorder, torch_profiler)
    if not (recorder or torch_profiler):
        job = replace(job, tool=_usable(nsys, command))
    if dry_run:
        job = replace(job, folder=profiles / run / "captures")
        stdout.out(shell_line(whole_line(job), environment_of(job)))
        return
    if job.tool is not None:
        stderr.print(f"recording with nsys {job.tool.version_text} ({job.tool.path})", markup=False)
    planned = ProgramRun(job, run, profiles, arm, workload, discard_captures)
    made = make_program_run(planned, sys.stdout.buffer, lambda text: stderr.print(f"warning: {text}", markup=False))
    _tell(planned, made)
    if made.end.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    made.require_success()


def _annotated(
    job: CommandCapture, table: str | None, arm: str | None, is_recorder: bool, is_torch: bool
) -> CommandCapture:
    """The same, with the table's ranges; where it records itself, with what it needs to know for that."""
    from dflash_bench.annotate.environment import annotating
    from dflash_bench.annotate.sinks import TRACE_VARIABLE, SinkKind
    from dflash_bench.annotate.table import own_tables, table_file
    from dflash_bench.capture.recorder import FOLDER_VARIABLE, ORIGIN_VARIABLE, Origin

    if is_recorder and is_torch:
        raise UsageError("--recorder and --torch-profiler cannot be combined", hint="choose one")
    if table is None:
        raise UsageError(
            "--recorder and --torch-profiler record the ranges of a table, and none is named",
            hint=f"--annotate {', '.join(own_tables())} or a TOML file",
        )
    if is_recorder:
        variables = annotating(table_file(table), SinkKind.RECORDER, arm) | {ORIGIN_VARIABLE: str(Origin.now())}
        return replace(job, variables=variables, folder_variables=(FOLDER_VARIABLE,))
    if is_torch:
        variables = annotating(table_file(table), SinkKind.TORCH, arm)
        return replace(job, variables=variables, folder_variables=(TRACE_VARIABLE,), written="*.pt.trace.json.gz")
    return replace(job, variables=annotating(table_file(table), SinkKind.NVTX, arm))


def _options(
    trace: str | None, capture_range: str | None, delay: int | None, duration: int | None, kill: Kill | None, wait: Wait
) -> ProfileOptions:
    from dflash_bench.capture.nsys_command import ProfileOptions, default_traces, parse_traces

    traces = default_traces() if trace is None else parse_traces(trace)
    return ProfileOptions(traces, capture_range, delay, duration, None if kill is None else str(kill), str(wait))


def _usable(explicit: Path | None, command: list[str]) -> NsysTool:
    """The nsys to use. One without a working importer is used too: what it leaves can be converted elsewhere."""
    from dflash_bench.capture import nsys
    from dflash_bench.capture.choice import lost_ranges

    tool = nsys.find_nsys(explicit)
    if tool is None:
        raise CaptureError(
            "recording a command with nsys needs one, and none was found",
            hint="--annotate TABLE --recorder does without; dflash-bench doctor says where nsys was looked for",
        )
    if not tool.can_convert:
        lacks = f"lacks {', '.join(tool.missing_libs)}" if tool.missing_libs else "is not where it looks for it"
        text = f"warning: the importer of nsys {tool.version_text} {lacks}: only a raw .qdstrm will be left"
        stderr.print(f"{text} (to mend it: {tool.mend})" if tool.mend else text, markup=False)
    if problem := lost_ranges(command, tool):
        stderr.print(f"warning: {problem}", markup=False)
    return tool


def _tell(run: ProgramRun, made: MadeProgramRun) -> None:
    place = run.capture.place
    if made.profile is None:
        if place is not None and place.world is None:
            later = f"dflash-bench ingest {made.folder} --run {run.name}"
            text = f"{place.variable} says which rank this is, nothing how many there are; when all are done: {later}"
            stdout.print(text, markup=False, soft_wrap=True)
        return
    processes = made.profile.info.processes
    num_ranges = sum(process.num_ranges for process in processes)
    num_work = sum(process.num_gpu_work for process in processes)
    num = f"{len(processes)} process{'es' if len(processes) != 1 else ''}"
    text = f"{num}, {num_ranges:,} ranges, {num_work:,} pieces of GPU work"
    stdout.print(f"{made.profile.path}: {text}", markup=False, soft_wrap=True)
    stdout.print(f"next: dflash-bench metrics {made.profile.path}", markup=False, soft_wrap=True)
