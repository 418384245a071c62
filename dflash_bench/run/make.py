"""Making the runs of a plan, one after the other; each is kept as soon as it is whole, and a listener is told.

A run that fails costs nothing but itself: the others are made, and the failures are told at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from dflash_bench.capture.check import require_whole
from dflash_bench.capture.folder import free_name, new_capture_folder, run_name, set_aside
from dflash_bench.capture.machine import gpu_settings, host_settings
from dflash_bench.capture.supervise import Limits
from dflash_bench.errors import BenchError, CaptureError, DataError
from dflash_bench.model import RunInfo, Value
from dflash_bench.run.launch import Launch
from dflash_bench.run.plan import PlannedRun, RunPlan, plan_runs
from dflash_bench.run.range_cost import range_cost_ns
from dflash_bench.run.record import RunCapture, RunInterruptedError, record, record_together
from dflash_bench.run.request import request_of
from dflash_bench.run.turns import TurnTaking
from dflash_bench.run.versions import CodeVersion, two_versions
from dflash_bench.session import session_settings

if TYPE_CHECKING:
    from dflash_bench.profile import Profile

_E = TypeVar("_E", bound=BenchError)


@dataclass(frozen=True, slots=True)
class MadeRun:
    """What came of a run: the profile, what was recorded, what was wrong beside it, and whether a person ended it."""

    profile: Profile
    capture: RunCapture
    problem: BenchError | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class MadeRuns:
    """What came of a plan. ``failed`` names runs that gave no profile, or not all that they were to give."""

    profiles: tuple[Profile, ...]
    failed: tuple[str, ...]
    is_interrupted: bool

    def require_all(self, plan: RunPlan) -> None:
        """Raises CaptureError when any of several runs failed."""
        if self.failed:
            text = f"{len(self.failed)} of {len(plan.runs)} runs failed: {', '.join(self.failed)}"
            raise CaptureError(text, hint="what each of them said stands above")


class RunListener:
    """Who is told what happens while runs are made. This one keeps it to itself."""

    def on_plan(self, plan: RunPlan) -> None:
        """Before the first run: what will be made, and with which recorder."""

    @contextmanager
    def progress(self, _title: str, _steps: int) -> Iterator[Callable[[int], None]]:
        """Around a run: a function that takes the number of its finished steps."""
        yield lambda _done: None

    def on_warning(self, text: str) -> None:
        """Something that a reader of the figures should know; nothing is stopped by it."""

    def on_failure(self, error: BenchError) -> None:
        """One of several runs failed; the others are made."""

    def on_run(self, made: MadeRun) -> None:
        """A run is whole and kept."""


def make_runs(plan: RunPlan, listener: RunListener | None = None) -> MadeRuns:
    """Make the runs. A single run's error is raised as it is; of several, each is told at once and the rest are made.

    Ctrl-C ends it and keeps what is whole.
    """
    told = listener or RunListener()
    told.on_plan(plan)
    with two_versions(plan.request) if plan.request.is_against else nullcontext(()) as versions:
        return _made_in_turn(_Maker(plan, told, _range_cost(plan, told), tuple(versions)))


def _made_in_turn(maker: _Maker) -> MadeRuns:
    plan, told = maker.plan, maker.listener
    done: list[Profile] = []
    failed: list[str] = []
    is_alone = len(plan.runs) == 1
    for run in plan.runs:
        try:
            made = maker.make(run)
        except RunInterruptedError as error:
            told.on_failure(error)
            return MadeRuns(tuple(done), tuple(failed), is_interrupted=True)
        except (CaptureError, DataError) as error:
            if is_alone:
                raise
            told.on_failure(error)
            failed.append(run.name)
            continue
        done.append(made.profile)
        if made.problem is not None:
            if is_alone:
                raise made.problem
            told.on_failure(made.problem)
            failed.append(f"{run.name} (unprofiled)")
        if made.is_interrupted:
            return MadeRuns(tuple(done), tuple(failed), is_interrupted=True)
    return MadeRuns(tuple(done), tuple(failed), is_interrupted=False)


def make_again(info: RunInfo, profiles: Path, nsys: Path | None = None, listener: RunListener | None = None) -> Profile:
    """One more run, asked for as that one was. ``nsys``: the one to record with, where it was nsys.

    Raises UsageError when the run is not one of the built-in loop's or its workload is not known here; CaptureError
    and DataError when it fails.
    """
    like = request_of(info)
    name = free_name(profiles, run_name(str(info.workload), *like.arms, "again"))
    like = replace(like, name=name, profiles=profiles, nsys=None if like.recorder else nsys)
    with TemporaryDirectory(prefix="dflash-bench-") as folder:
        if text := info.settings.get("workload_toml"):
            file = Path(folder) / like.workload
            file.write_text(str(text), encoding="utf-8")
            like = replace(like, workload=str(file))
        made = make_runs(plan_runs(like), listener)
    if made.is_interrupted:
        raise KeyboardInterrupt
    return made.profiles[0]


def _range_cost(plan: RunPlan, listener: RunListener) -> float | None:
    """Measured once for all runs; that it could not be is said, and stops nothing."""
    if not plan.request.unprofiled:
        return None
    with TemporaryDirectory(prefix="dflash-bench-") as folder:
        try:
            return range_cost_ns(plan.choice, Path(folder))
        except CaptureError as error:
            listener.on_warning(error.text)
            return None


@dataclass(frozen=True, slots=True)
class _Maker:
    plan: RunPlan
    listener: RunListener
    range_cost_ns: float | None
    versions: tuple[CodeVersion, ...] = ()

    def make(self, run: PlannedRun) -> MadeRun:
        """Record one run, run it again without a tool where that is asked for, and ingest both into one profile."""
        request = self.plan.request
        # before the run, not beside it: asking the driver would disturb what is measured
        gpu = gpu_settings()
        folder = new_capture_folder(request.profiles, run.name)
        launch, *unprofiled = self.plan.launches(run, folder.resolve())
        problem = None
        try:
            capture = self._together(run, launch) if self.versions else self._recorded(run.name, launch)
            require_whole(capture.findings, allow_missing=request.allow_missing or capture.is_interrupted)
            for finding in capture.findings:
                self.listener.on_warning(finding.text)
            if unprofiled and not capture.is_interrupted:
                problem = self._unprofiled(run.name, unprofiled[0])
            profile = self._ingest(run, capture, folder, gpu)
        except KeyboardInterrupt:
            if left := set_aside(folder, request.profiles, run.name):
                self.listener.on_warning(f"what was recorded is in {left}")
            raise
        except BenchError as error:
            raise _with_place(error, folder, set_aside(folder, request.profiles, run.name)) from None
        is_interrupted = capture.is_interrupted or isinstance(problem, RunInterruptedError)
        if problem is not None:
            problem = None if is_interrupted else _with_place(problem, folder, profile.path / "captures")
        made = MadeRun(profile, capture, problem, is_interrupted)
        self.listener.on_run(made)
        return made

    def _recorded(self, title: str, launch: Launch) -> RunCapture:
        with self.listener.progress(title, self.plan.request.num_steps) as on_progress:
            return record(launch, on_progress, Limits(silence_s=self.plan.request.timeout))

    def _together(self, run: PlannedRun, launch: Launch) -> RunCapture:
        """Each version in a folder of its own; they take turns."""
        request = self.plan.request
        with TemporaryDirectory(prefix="dflash-") as short:
            turns = {version.label: Path(short) / version.label for version in self.versions}
            launches = [
                replace(launch, folder=launch.folder / version.label, version=version, turns=turns[version.label])
                for version in self.versions
            ]
            for folder in (*turns.values(), *(each.folder for each in launches)):
                folder.mkdir()
            with self.listener.progress(run.name, request.num_steps) as on_progress:
                return record_together(
                    launches,
                    lambda: TurnTaking(turns, request.ranks, request.block, request.pairs, launch.order_seed),
                    on_progress,
                    Limits(silence_s=request.timeout),
                )

    def _unprofiled(self, name: str, launch: Launch) -> CaptureError | None:
        """The same run without a tool, into a folder below the captures, from where ingest takes its steps.

        Its failure is returned, for the recorded run is whole without it; what it left is then kept under another name.
        """
        launch.folder.mkdir()
        try:
            if self._recorded(f"{name} unprofiled", launch).is_interrupted:
                raise RunInterruptedError("the unprofiled run was interrupted, so the cost of tracing is not known")
        except CaptureError as error:
            failed = launch.folder.rename(launch.folder.with_name(f"{launch.folder.name}.failed"))
            return _with_place(error, launch.folder, failed)
        return None

    def _ingest(self, run: PlannedRun, capture: RunCapture, folder: Path, gpu: Mapping[str, Value]) -> Profile:
        """Hand the capture to ingest. The raw files hold the environment; they go along only into ``captures/``."""
        from dflash_bench.ingest.sources import IngestOptions, ingest

        request = self.plan.request
        options = IngestOptions(
            profiles=request.profiles,
            run=run.name,
            arm=None if request.is_duet else run.arms[0],
            workload=self.plan.workload,
            settings=self._settings(run, capture, gpu),
            counters=self._counters(capture),
            captures=None if request.discard_captures else folder,
        )
        (profile,) = ingest(list(capture.files), options)
        if request.discard_captures:
            shutil.rmtree(folder)
        return profile

    def _counters(self, capture: RunCapture) -> dict[str, dict[str, float]]:
        """Those of each rank, of each rank and arm in a duet."""
        labels = [version.label for version in self.versions for _ in range(self.plan.request.ranks)]
        if not labels:
            return {key: own for ledger in capture.ledgers for key, own in ledger.counters_by_rank()}
        # the ledgers of an interrupted run may lack some: then whose the others are is not known
        pairs = zip(labels, capture.ledgers, strict=True) if len(labels) == len(capture.ledgers) else ()
        return {f"{ledger.rank}:{label}": dict(ledger.counters) for label, ledger in pairs}

    def _settings(self, run: PlannedRun, capture: RunCapture, gpu: Mapping[str, Value]) -> dict[str, Value]:
        """What ``run.json`` keeps of what was asked for, of what the run ran on, and of its place among the others."""
        tool = self.plan.choice.tool
        settings: dict[str, Value] = {
            **self.plan.request.settings,
            "recorder": str(self.plan.choice.recorder),
            "nsys": tool.version_text if tool else None,
            "reports": str(self.plan.request.reports) if tool else None,
            "arms": " ".join(self.plan.request.labels) if self.plan.request.is_duet else None,
            **{version.label: version.text for version in self.versions},
            "workload_toml": self.plan.workload_toml,
            "range_cost_ns": self.range_cost_ns,
            "ladder": self.plan.ladder,
            "repeat": run.repeat,
            "position": run.position,
            **host_settings(),
            **session_settings(_loop_folder()),
        }
        if ledgers := capture.ledgers:
            first = ledgers[0]
            settings |= {"steps": capture.steps, "device": first.device, "model": first.settings.get("model")}
            settings["interrupted"] = any(ledger.interrupted for ledger in ledgers)
            settings["verified_tokens"] = capture.verified_tokens
            # only a run that decoded on the GPU depends on it
            settings |= gpu if first.device == "cuda" else {}
            settings |= {f"switch.{key}": value for key, value in first.switch_settings()}
            settings |= {f"version.{key}": value for key, value in sorted(first.versions.items())}
        return settings


def _loop_folder() -> Path | None:
    """Where the code of the loop lies, whose commit a run is of."""
    found = find_spec("dflash_prep")
    return Path(found.origin).parent if found is not None and found.origin is not None else None


def _with_place(error: _E, before: Path, after: Path | None) -> _E:
    """The same error, with the paths in it that the failed run's folder has now."""
    if after is None:
        return error
    text, hint = (part and part.replace(str(before.resolve()), str(after)) for part in (error.text, error.hint))
    if hint is None or str(after) not in hint:
        hint = f"{hint}; what the run left is in {after}" if hint else f"see {after}"
    return type(error)(text or "", hint=hint)
