"""The runs of one ``dflash-bench run``: planned in turns, made one after the other, each kept as soon as it is whole.

A run that fails costs nothing but itself: the others are made, and the failures are told at the end.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dflash_bench.capture.launch import Launch
from dflash_bench.capture.record import RunCapture, RunInterruptedError, record
from dflash_bench.cli.console import complain, stderr, stdout
from dflash_bench.cli.steps_bar import steps_bar
from dflash_bench.errors import BenchError, CaptureError, DataError, UsageError

if TYPE_CHECKING:
    from dflash_bench.capture.supervise import Limits
    from dflash_bench.model import Value
    from dflash_bench.profile import Profile

E = TypeVar("E", bound=BenchError)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the ladder a run stands, which ``run.json`` keeps: by it all runs of an arm are found together.

    ``ladder`` is one word for all runs of one command; ``repeat`` counts the runs of an arm from 1, ``position`` all
    runs in the order in which they were made.
    """

    ladder: str
    repeat: int
    position: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A run to make: its name, its place and what to launch. The launch's folder is chosen when it starts."""

    run: str
    place: Place
    launch: Launch


@dataclass(frozen=True, slots=True)
class Settings:
    """What all runs of one command share. ``range_cost_ns``: what a range costs under the recorder, where measured;
    ``workload_toml``: the workload's text, where it is a file."""

    profiles: Path
    limits: Limits
    is_lossy_allowed: bool
    is_discarding: bool
    workload: str
    is_unprofiled_too: bool = False
    range_cost_ns: float | None = None
    workload_toml: str | None = None

    @property
    def kept(self) -> dict[str, Value]:
        """What of it ``run.json`` keeps."""
        return {
            "unprofiled": self.is_unprofiled_too,
            "allow_missing": self.is_lossy_allowed,
            "discard_captures": self.is_discarding,
            "timeout_s": self.limits.silence_s,
            "range_cost_ns": self.range_cost_ns,
            "workload_toml": self.workload_toml,
        }


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a run: the profile, what was wrong beside it, and whether a person ended it."""

    profile: Profile
    problem: BenchError | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Ladder:
    """What came of all runs. ``failed`` names runs that gave no profile, or not all that they were to give."""

    profiles: tuple[Profile, ...]
    failed: tuple[str, ...]
    is_interrupted: bool

    def require_all(self, num_planned: int) -> None:
        """Raises CaptureError when any of several runs failed."""
        if self.failed:
            text = f"{len(self.failed)} of {num_planned} runs failed: {', '.join(self.failed)}"
            raise CaptureError(text, hint="what each of them said stands above")


def planned(launch: Launch, arms: Sequence[str], repeats: int, runs: Names) -> list[Planned]:
    """All runs in order: the arms take turns, so that a drift of the machine hits all of them alike.

    Raises UsageError when an arm is named twice or a name cannot be had.
    """
    if len(set(arms)) < len(arms):
        raise UsageError("an arm is named twice", hint="--repeats N runs every arm N times, taking turns")
    ladder = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    turns = [(repeat, arm) for repeat in range(repeats) for arm in arms]
    return [
        Planned(
            runs.of(arm, repeat if repeats > 1 else None, is_only_arm=len(arms) == 1),
            Place(ladder, repeat + 1, position),
            dataclasses.replace(launch, arm=arm),
        )
        for position, (repeat, arm) in enumerate(turns, start=1)
    ]


@dataclass(frozen=True, slots=True)
class Names:
    """How runs are named: after ``name`` where one is given, else after workload, arm and time."""

    profiles: Path
    workload: str
    name: str | None

    def of(self, arm: str, repeat: int | None, *, is_only_arm: bool) -> str:
        """The name of a run. Raises UsageError when it is taken or cannot name a folder."""
        from dflash_bench.capture.folder import folder_word, free_name, run_name
        from dflash_bench.ingest.build import check_run_name

        suffix = "" if repeat is None else f"-r{repeat + 1}"
        if self.name is None:
            run = free_name(self.profiles, run_name(self.workload, arm) + suffix)
        else:
            run = (self.name if is_only_arm else f"{self.name}-{folder_word(arm)}") + suffix
        check_run_name(run)
        if (self.profiles / run).exists():
            raise UsageError(f"{self.profiles / run} exists already", hint="choose another --name")
        return run


def make_all(runs: Sequence[Planned], settings: Settings) -> Ladder:
    """Make the runs. A single run's error is raised as it is; of several, each is told at once and the rest are made.

    Ctrl-C ends the ladder and keeps what is whole.
    """
    done: list[Profile] = []
    failed: list[str] = []
    for each in runs:
        try:
            made = make(each, settings)
        except RunInterruptedError as error:
            complain(error)
            return Ladder(tuple(done), tuple(failed), is_interrupted=True)
        except (CaptureError, DataError) as error:
            if len(runs) == 1:
                raise
            complain(error)
            failed.append(each.run)
            continue
        done.append(made.profile)
        if made.problem is not None and len(runs) == 1:
            raise made.problem
        if made.problem is not None:
            complain(made.problem)
            failed.append(f"{each.run} (unprofiled)")
        if made.is_interrupted:
            return Ladder(tuple(done), tuple(failed), is_interrupted=True)
    return Ladder(tuple(done), tuple(failed), is_interrupted=False)


def make(planned: Planned, settings: Settings) -> Made:
    """Record one run, run it again without a tool where that is asked for, and ingest both into one profile."""
    from dflash_bench.capture.check import require_whole
    from dflash_bench.capture.folder import new_capture_folder, set_aside
    from dflash_bench.capture.machine import gpu_settings

    # before the run, not beside it: asking the driver would disturb what is measured
    gpu = gpu_settings()
    folder = new_capture_folder(settings.profiles, planned.run)
    launch = dataclasses.replace(planned.launch, folder=folder.resolve())
    try:
        with steps_bar(planned.run, launch.steps) as on_progress:
            capture = record(launch, on_progress, settings.limits)
        require_whole(capture.findings, allow_missing=settings.is_lossy_allowed or capture.is_interrupted)
        for finding in capture.findings:
            stderr.print(f"warning: {finding.text}", markup=False)
        is_twice = settings.is_unprofiled_too and not capture.is_interrupted
        problem = _run_unprofiled(planned.run, launch, settings) if is_twice else None
        profile = _ingest(planned, capture, folder, settings, gpu)
    except KeyboardInterrupt:
        if kept := set_aside(folder, settings.profiles, planned.run):
            stderr.print(f"what was recorded is in {kept}", markup=False)
        raise
    except BenchError as error:
        raise _with_place(error, folder, set_aside(folder, settings.profiles, planned.run)) from None
    stdout.print(_summary(profile, capture, launch), markup=False, soft_wrap=True)
    if isinstance(problem, RunInterruptedError):
        return Made(profile, is_interrupted=True)
    if problem is not None:
        problem = _with_place(problem, folder, profile.path / "captures")
    return Made(profile, problem, capture.is_interrupted)


def _run_unprofiled(run: str, launch: Launch, settings: Settings) -> CaptureError | None:
    """The same run without a tool, into a folder below the captures, from where ingest takes its steps.

    Its failure is returned, for the recorded run is whole without it; what it left is then kept under another name.
    """
    from dflash_bench.ingest.steps import UNPROFILED_FOLDER

    folder = launch.folder / UNPROFILED_FOLDER
    folder.mkdir()
    again = dataclasses.replace(launch, folder=folder, is_unprofiled=True)
    try:
        with steps_bar(f"{run} unprofiled", launch.steps) as on_progress:
            capture = record(again, on_progress, settings.limits)
        if capture.is_interrupted:
            raise RunInterruptedError("the unprofiled run was interrupted, so the cost of tracing is not known")
    except CaptureError as error:
        failed = folder.rename(folder.with_name(f"{UNPROFILED_FOLDER}.failed"))
        return _with_place(error, folder, failed)
    return None


def _with_place(error: E, before: Path, kept: Path | None) -> E:
    """The same error, with the paths in it that the failed run's folder has now."""
    if kept is None:
        return error
    text, hint = (part and part.replace(str(before.resolve()), str(kept)) for part in (error.text, error.hint))
    if hint is None or str(kept) not in hint:
        hint = f"{hint}; what the run left is in {kept}" if hint else f"see {kept}"
    return type(error)(text or "", hint=hint)


def _ingest(planned: Planned, capture: RunCapture, folder: Path, settings: Settings, gpu: dict[str, Value]) -> Profile:
    """Hand the capture to ingest. The raw files hold the environment; they go along only into ``captures/``."""
    from dflash_bench.capture.settings import run_settings
    from dflash_bench.ingest.sources import IngestOptions, ingest

    options = IngestOptions(
        profiles=settings.profiles,
        run=planned.run,
        arm=planned.launch.arm,
        workload=settings.workload,
        settings={**run_settings(planned.launch, capture, gpu), **dataclasses.asdict(planned.place), **settings.kept},
        counters={ledger.rank: dict(ledger.counters) for ledger in capture.ledgers},
        captures=None if settings.is_discarding else folder,
    )
    (profile,) = ingest(list(capture.files), options)
    if settings.is_discarding:
        shutil.rmtree(folder)
    return profile


def _summary(profile: Profile, capture: RunCapture, launch: Launch) -> str:
    return f"{profile.path}: {'; '.join(_facts(profile, capture, launch))}"


def _facts(profile: Profile, capture: RunCapture, launch: Launch) -> Iterator[str]:
    info = profile.info
    num_ranges = sum(process.num_ranges for process in info.processes)
    steps = min((ledger.steps for ledger in capture.ledgers), default=0)
    yield f"arm {info.arm}, {len(info.ranks)} ranks, {steps:,} steps, {num_ranges:,} ranges"
    lost = sum(finding.count for finding in capture.findings if finding.code == "ranges_missing")
    yield "every emitted range is there" if capture.ledgers and not lost else f"{lost:,} emitted ranges are missing"
    if launch.options.is_verified:
        from dflash_bench.capture.settings import verified_tokens

        yield f"{verified_tokens(capture):,} tokens equal the oracle's"
