"""``dflash-bench run``: record arms of the built-in decode loop."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_bench.capture.launch import Launch, OnProgress, Reports, RunCapture, launch_command, record
from dflash_bench.cli.console import stderr, stdout
from dflash_bench.cli.options import DEFAULT_PROFILES, NsysPath, ProfilesFolder
from dflash_bench.errors import BenchError, ExitCode, UsageError

if TYPE_CHECKING:
    from dflash_bench.capture.ledger import Ledger
    from dflash_bench.capture.supervise import Limits
    from dflash_bench.model import Value
    from dflash_bench.profile import Profile

LINE_EVERY_S = 5.0


def run(
    arm: Annotated[list[str], typer.Option(help="Arm to run: a name, or NAME,switch=value. Repeat for several.")],
    workload: Annotated[str, typer.Option(help="Workload: a name or a TOML file.")] = "smoke",
    ranks: Annotated[int, typer.Option(min=1, help="Processes, one a rank.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps of each run.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Decides requests, lengths and accepted tokens.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each arm; the arms take turns.")] = 1,
    nsys: NsysPath = None,
    recorder: Annotated[bool, typer.Option("--recorder", help="Record with the built-in recorder, not nsys.")] = False,
    reports: Annotated[Reports, typer.Option(help="One nsys report per rank, or one for all.")] = Reports.PER_RANK,
    name: Annotated[str | None, typer.Option(help="Name of the run; with several, the arm is added.")] = None,
    profiles: ProfilesFolder = DEFAULT_PROFILES,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without a sign of life before a run is ended.")] = 300,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Ingest even when ranges were lost.")] = False,
    discard_captures: Annotated[
        bool, typer.Option("--discard-captures", help="Do not keep the raw captures beside the profile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the commands, run nothing.")] = False,
) -> None:
    """Run arms of the built-in decode loop on N ranks, record them, and ingest each into a profile.

    Records with nsys when a usable one is found, otherwise with the built-in recorder, and says which and why. After
    each run every emitted range is looked for in the capture. Ctrl-C ends the ranks and keeps what is whole.
    """
    from dflash_bench.capture.choice import choose_here
    from dflash_bench.capture.launch import require_torch
    from dflash_bench.capture.supervise import Limits

    require_torch()
    arms, workload_name = _validated(arm, workload)
    choice = choose_here(nsys, is_builtin_asked=recorder)
    launch = Launch(arms[0], workload, ranks, steps, seed, Path(), choice, reports)
    planned = _planned(launch, arms, repeats, name, workload_name, profiles)
    stderr.print(choice.text, markup=False)
    if dry_run:
        for each in planned:
            _show(dataclasses.replace(each.launch, folder=profiles / each.run / "captures"))
        return
    settings = Settings(profiles, Limits(silence_s=timeout), allow_missing, discard_captures, workload_name)
    done = [_one(each, settings) for each in planned]
    _say_next(done)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run to make: its name and what to launch. The launch's folder is chosen when it starts."""

    run: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class Settings:
    """What all runs of one command share."""

    profiles: Path
    limits: Limits
    is_lossy_allowed: bool
    is_discarding: bool
    workload: str


def _validated(arms: list[str], workload: str) -> tuple[list[str], str]:
    """Arms in their canonical spelling and the workload's name. Raises UsageError for an unknown one."""
    from dflash_prep.arms import ArmError, parse_arm
    from dflash_prep.workload import WorkloadError, load

    try:
        return [parse_arm(text).name for text in arms], load(workload).name
    except ArmError as error:
        raise UsageError(str(error), hint="python -m dflash_prep.loop --list shows all of them") from None
    except WorkloadError as error:
        raise UsageError(str(error), hint="python -m dflash_prep.loop --list shows the named ones") from None


def _planned(
    launch: Launch, arms: list[str], repeats: int, name: str | None, workload: str, profiles: Path
) -> list[Planned]:
    """All runs in order: the arms take turns, so that a drift of the machine hits all of them alike."""
    from dflash_bench.capture.folder import folder_word, free_name, run_name
    from dflash_bench.ingest.build import check_run_name

    if len(set(arms)) < len(arms):
        raise UsageError("an arm is named twice", hint="--repeats N runs every arm N times, taking turns")
    found = []
    for repeat in range(repeats):
        for arm in arms:
            suffix = f"-r{repeat + 1}" if repeats > 1 else ""
            if name is None:
                run = free_name(profiles, run_name(workload, arm) + suffix)
            else:
                run = (name if len(arms) == 1 else f"{name}-{folder_word(arm)}") + suffix
            check_run_name(run)
            if (profiles / run).exists():
                raise UsageError(f"{profiles / run} exists already", hint="choose another --name")
            found.append(Planned(run, dataclasses.replace(launch, arm=arm)))
    return found


def _show(launch: Launch) -> None:
    from dflash_bench.capture.nsys_command import shown

    command = launch_command(launch)
    variables = {key: value for key, value in command.environment.items() if value is not None}
    stdout.out(shown(command.line, variables))


def _one(planned: Planned, settings: Settings) -> Profile:
    """Record one run and ingest it."""
    from dflash_bench.capture.check import require_whole
    from dflash_bench.capture.folder import new_capture_folder, set_aside

    folder = new_capture_folder(settings.profiles, planned.run)
    launch = dataclasses.replace(planned.launch, folder=folder.resolve())
    try:
        with _progress(planned.run, launch.steps) as on_progress:
            capture = record(launch, on_progress, settings.limits)
        require_whole(capture.findings, allow_missing=settings.is_lossy_allowed or capture.is_interrupted)
        for finding in capture.findings:
            stderr.print(f"warning: {finding.text}", markup=False)
        profile = _ingest(planned.run, launch, capture, folder, settings)
    except BenchError as error:
        raise _with_place(error, folder, set_aside(folder, settings.profiles, planned.run)) from None
    stdout.print(_summary(profile, capture), markup=False, soft_wrap=True)
    if capture.is_interrupted:
        stderr.print("interrupted: what was whole is kept")
        raise typer.Exit(ExitCode.INTERRUPTED)
    return profile


def _with_place(error: BenchError, before: Path, kept: Path | None) -> BenchError:
    """The same error, with the paths in it that the failed run's folder has now."""
    if kept is None:
        return error
    text, hint = (part and part.replace(str(before.resolve()), str(kept)) for part in (error.text, error.hint))
    if hint is None or str(kept) not in hint:
        hint = f"{hint}; what the run left is in {kept}" if hint else f"see {kept}"
    return type(error)(text or "", hint=hint)


def _ingest(run: str, launch: Launch, capture: RunCapture, folder: Path, settings: Settings) -> Profile:
    """Hand the capture to ingest. The raw files hold the environment; they go along only into ``captures/``."""
    from dflash_bench.ingest.sources import IngestOptions, ingest

    options = IngestOptions(
        profiles=settings.profiles,
        run=run,
        arm=launch.arm,
        workload=settings.workload,
        settings=run_settings(launch, capture.ledgers),
        counters={ledger.rank: dict(ledger.counters) for ledger in capture.ledgers},
        captures=None if settings.is_discarding else folder,
    )
    (profile,) = ingest(list(capture.files), options)
    if settings.is_discarding:
        shutil.rmtree(folder)
    return profile


def run_settings(launch: Launch, ledgers: tuple[Ledger, ...]) -> dict[str, Value]:
    """What ``run.json`` keeps of how a run was made: by these keys runs are told comparable or not."""
    tool = launch.choice.tool
    settings: dict[str, Value] = {
        "recorder": str(launch.choice.recorder),
        "nsys": tool.version_text if tool else None,
        "reports": str(launch.reports) if tool else None,
        "ranks": launch.ranks,
        "seed": launch.seed,
        "steps_asked": launch.steps,
    }
    if ledgers:
        first = ledgers[0]
        settings |= {"steps": min(ledger.steps for ledger in ledgers), "device": first.device}
        settings["interrupted"] = any(ledger.interrupted for ledger in ledgers)
        settings |= {f"switch.{key}": value for key, value in sorted(first.switches.items())}
        settings |= {f"version.{key}": value for key, value in sorted(first.versions.items())}
    return settings


def _summary(profile: Profile, capture: RunCapture) -> str:
    info = profile.info
    num_ranges = sum(process.num_ranges for process in info.processes)
    steps = min((ledger.steps for ledger in capture.ledgers), default=0)
    lost = sum(finding.count for finding in capture.findings if finding.code == "ranges_missing")
    whole = "every emitted range is there" if capture.ledgers and not lost else f"{lost:,} emitted ranges are missing"
    return f"{profile.path}: arm {info.arm}, {len(info.ranks)} ranks, {steps:,} steps, {num_ranges:,} ranges; {whole}"


def _say_next(done: list[Profile]) -> None:
    if len(done) == 1:
        text = f"dflash-bench metrics {done[0].path}"
    else:
        base, candidate = _base_first(done[0], done[1])
        text = f"dflash-bench compare {base.path} {candidate.path}"
    stdout.print(f"next: {text}", markup=False, soft_wrap=True)


def _base_first(one: Profile, other: Profile) -> tuple[Profile, Profile]:
    """The pair in the order of the ladder of arms, on which every rung adds a change to the one before."""
    from dflash_prep.arms import ARMS

    ladder = [*ARMS]
    first, second = sorted((one, other), key=lambda p: ladder.index((p.info.arm or ladder[0]).partition(",")[0]))
    return first, second


@contextmanager
def _progress(title: str, steps: int) -> Iterator[OnProgress]:
    """A bar with rate and time left on a terminal; elsewhere a line every few seconds."""
    if not stderr.is_terminal:
        yield _Lines(title, steps).show
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("starting" if speed is None else f"{speed:,.0f} steps/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=stderr) as bar:
        task = bar.add_task(title, total=steps)
        yield lambda done: bar.update(task, completed=done)


class _Lines:
    """Progress for logs. The rate counts from the first sign of progress, so that starting up does not dilute it."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps = title, steps
        self.shown_at = time.monotonic()
        self.shown = 0
        self.first: tuple[float, int] | None = None

    def show(self, done: int) -> None:
        now = time.monotonic()
        if done and self.first is None:
            self.first = now, done
        if self.first is None or done == self.shown or now - self.shown_at < LINE_EVERY_S:
            return
        self.shown, self.shown_at = done, now
        started, offset = self.first
        text = f"{self.title}: {done:,}/{self.steps:,} steps"
        if done > offset:
            rate = (done - offset) / (now - started)
            text += f", {rate:,.1f} steps/s, {max(self.steps - done, 0) / rate:,.0f} s left"
        stderr.print(text, markup=False)
