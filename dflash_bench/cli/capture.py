"""``dflash-bench capture -- CMD …``: record any command, annotated from outside where a table is named."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.capture.folder import free_name, new_capture_folder, run_name, set_aside, shared_capture_folder
from dflash_bench.cli.console import stderr, stdout
from dflash_bench.cli.options import DEFAULT_PROFILES, NsysPath, ProfilesFolder
from dflash_bench.errors import BenchError, CaptureError, ExitCode, UsageError, quoted

if TYPE_CHECKING:
    from dflash_bench.capture.command import CommandCapture, RankPlace
    from dflash_bench.capture.nsys import NsysTool
    from dflash_bench.capture.nsys_command import ProfileOptions
    from dflash_bench.capture.supervise import ChildEnd


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

    options = _options(trace, capture_range, delay, duration, kill, wait)
    place = place_of(os.environ) if per_rank else None
    if place is not None and name is None:
        raise UsageError("--per-rank needs --name, so that all ranks mean the same run", hint="--name RUN")
    filed = _Filed(_name(name, command, profiles), profiles, arm, workload, discard_captures)
    job = CommandCapture(tuple(command), Path(), None, options, place)
    if annotate is not None or recorder or torch_profiler:
        job = _annotated(job, annotate, arm, recorder, torch_profiler)
    if not (recorder or torch_profiler):
        job = replace(job, tool=_usable(nsys, command))
    if dry_run:
        shown_in = profiles / filed.run / "captures"
        job = replace(job, folder=shown_in)
        stdout.out(shell_line(whole_line(job), environment_of(job)))
        return
    _one(job, filed)


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


@dataclass(frozen=True, slots=True)
class _Filed:
    """Where the profile goes and what it is filed under."""

    run: str
    profiles: Path
    arm: str | None
    workload: str | None
    is_discarding: bool


def _options(
    trace: str | None, capture_range: str | None, delay: int | None, duration: int | None, kill: Kill | None, wait: Wait
) -> ProfileOptions:
    from dflash_bench.capture.nsys_command import ProfileOptions, default_traces, parse_traces

    traces = default_traces() if trace is None else parse_traces(trace)
    return ProfileOptions(traces, capture_range, delay, duration, None if kill is None else str(kill), str(wait))


def _name(name: str | None, command: list[str], profiles: Path) -> str:
    from dflash_bench.ingest.build import check_run_name

    if name is None:
        return free_name(profiles, run_name(Path(command[0]).name))
    check_run_name(name)
    if (profiles / name).exists():
        raise UsageError(f"{profiles / name} exists already", hint="choose another --name")
    return name


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


def _one(job: CommandCapture, filed: _Filed) -> None:
    from dflash_bench.capture.command import record_command

    if shutil.which(job.command[0]) is None:
        raise UsageError(
            f"there is no command {quoted(job.command[0])}", hint="look at its spelling, or give its whole path"
        )
    folder = _folder(job, filed)
    job = replace(job, folder=folder.resolve())
    if job.tool is not None:
        stderr.print(f"recording with nsys {job.tool.version_text} ({job.tool.path})", markup=False)
    outcome: ChildEnd | None = None
    try:
        files, outcome = record_command(job, sys.stdout.buffer)
        _say_what_is_lost(job, files)
        where = (
            _ingest(files, folder, filed) if job.place is None else _ingest_when_all_done(job, job.place, folder, filed)
        )
    except BenchError as error:
        placed = _with_place(error, folder, filed, job.place)
        if outcome is None or outcome.code == 0:
            raise placed from None
        # most likely the cause of whatever is missing
        raise type(placed)(f"the command ended with {_ending(outcome)}, and {placed.text}", hint=placed.hint) from None
    if outcome.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if outcome.code != 0:
        text = f"the command ended with {_ending(outcome)}; what it did until then is recorded"
        raise CaptureError(text, hint=f"see {where}")


def _say_what_is_lost(job: CommandCapture, files: list[Path]) -> None:
    from dflash_bench.annotate.sinks import RUNNING
    from dflash_bench.capture.check import count_ranges, silent_domains

    if job.tool is not None:
        for finding in silent_domains(count_ranges(files[0], None)):
            stderr.print(f"warning: {finding.text}", markup=False)
    for note in sorted(job.folder.glob(f"*.{RUNNING}")):
        note.unlink()
        lost = f"process {note.stem.removeprefix('pid')} was killed before it wrote what it had recorded"
        stderr.print(f"warning: {lost}: its ranges are lost", markup=False)


def _ending(outcome: ChildEnd) -> str:
    return f"exit code {outcome.code}" if outcome.code > 0 else f"signal {-outcome.code}"


def _with_place(error: BenchError, folder: Path, filed: _Filed, place: RankPlace | None) -> BenchError:
    """The same error; it says where what was recorded is, if anything was."""
    kept = folder if place is not None else set_aside(folder, filed.profiles, filed.run)
    if kept is None:
        return error
    text = error.text.replace(str(folder.resolve()), str(kept))
    hint = f"what was recorded is in {kept}"
    return type(error)(text, hint=f"{error.hint}; {hint}" if error.hint else hint)


def _folder(job: CommandCapture, filed: _Filed) -> Path:
    """A folder of its own; all ranks of one run share one, each with its own files."""
    if job.place is None:
        return new_capture_folder(filed.profiles, filed.run)
    folder = shared_capture_folder(filed.profiles, filed.run)
    if any(folder.glob(f"{job.stem}.*")):
        raise UsageError(f"{folder} holds a capture of rank {job.place.rank} already", hint="choose another --name")
    return folder


def _ingest_when_all_done(job: CommandCapture, place: RankPlace, folder: Path, filed: _Filed) -> Path:
    """The last rank to come here ingests all; the others only note that they are done."""
    (folder / f"rank{place.rank}.done").touch()
    done = len(list(folder.glob("rank*.done")))
    if place.world is None:
        later = f"dflash-bench ingest {folder} --run {filed.run}"
        stdout.print(
            f"{place.variable} says which rank this is, nothing how many there are; when all are done: {later}"
        )
        return folder
    if done < place.world:
        return folder
    try:
        (folder / "ingesting").touch(exist_ok=False)
    except (FileExistsError, FileNotFoundError):
        return folder
    written = "rank*.sqlite" if job.tool is not None else job.written
    return _ingest(sorted(folder.glob(written)), folder, filed)


def _ingest(files: list[Path], folder: Path, filed: _Filed) -> Path:
    from dflash_bench.capture.machine import gpu_settings, host_settings
    from dflash_bench.ingest.sources import IngestOptions, ingest

    kept = None if filed.is_discarding else folder
    options = IngestOptions(
        profiles=filed.profiles,
        run=filed.run,
        arm=filed.arm,
        workload=filed.workload,
        settings={**host_settings(), **gpu_settings()},
        captures=kept,
    )
    (profile,) = ingest(files, options)
    if filed.is_discarding:
        shutil.rmtree(folder)
    for note in ("ingesting", *(f"rank{rank}.done" for rank in profile.info.ranks)):
        (profile.path / "captures" / note).unlink(missing_ok=True)
    info = profile.info
    num_ranges = sum(process.num_ranges for process in info.processes)
    num_work = sum(process.num_gpu_work for process in info.processes)
    num = len(info.processes)
    text = f"{num} process{'es' if num != 1 else ''}, {num_ranges:,} ranges, {num_work:,} pieces of GPU work"
    stdout.print(f"{profile.path}: {text}", markup=False, soft_wrap=True)
    stdout.print(f"next: dflash-bench metrics {profile.path}", markup=False, soft_wrap=True)
    return profile.path
