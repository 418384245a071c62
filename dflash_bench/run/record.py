"""One run: started, watched, and what is whole of it collected; `launch.py` says how it is started."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from dflash_bench.capture import supervise
from dflash_bench.capture.check import Circumstances, by_rank, compare_counts, count_ranges, says_incomplete
from dflash_bench.capture.convert import sqlite_of
from dflash_bench.capture.recorder import ORIGIN_VARIABLE, Origin
from dflash_bench.capture.supervise import ChildEnd, Group, Groups, Limits, Watch
from dflash_bench.errors import CaptureError, DataError, ExitCode
from dflash_bench.model import Finding
from dflash_bench.run.failure import LAUNCHER_LOG, failure, is_session_clash
from dflash_bench.run.launch import ALL_RANKS, PROGRESS, Launch, launch_command
from dflash_bench.run.ledger import LoopLedger, read_ledgers
from dflash_bench.run.turns import TurnTaking

log = logging.getLogger(__name__)

OnProgress = Callable[[int], None]

_SESSION_ATTEMPTS = 3
_STAGGER_S = 0.5
"""Between the starts of neighbouring ranks' nsys, once they were seen to clash. nsys 2022.4 records `true`, start to
end, in as long (2 cores, x86)."""


@dataclass(frozen=True, slots=True)
class RunCapture:
    """What a run left: capture files in rank order, each rank's own account, and what is missing.

    An unprofiled run has no files.
    """

    files: tuple[Path, ...]
    ledgers: tuple[LoopLedger, ...]
    findings: tuple[Finding, ...]
    end: ChildEnd

    @property
    def is_interrupted(self) -> bool:
        return self.end.is_interrupted

    @property
    def steps(self) -> int:
        """Steps that every rank finished."""
        return min((ledger.steps for ledger in self.ledgers), default=0)

    @property
    def num_missing(self) -> int:
        """Emitted ranges that are not in the files."""
        return sum(finding.count for finding in self.findings if finding.code == "ranges_missing")

    @property
    def is_whole(self) -> bool:
        """Whether every emitted range is known to be there."""
        return bool(self.ledgers) and not self.num_missing

    @property
    def verified_tokens(self) -> int:
        """Tokens that the loop itself compared with its oracle, over all ranks."""
        return sum(int(ledger.checks.get("verified_tokens", 0)) for ledger in self.ledgers)


class RunInterruptedError(CaptureError):
    """A person ended the run before there was anything whole to keep."""

    exit_code = ExitCode.INTERRUPTED


class _SessionClashError(CaptureError):
    """nsys could not start on every rank at once."""


def record(launch: Launch, on_progress: OnProgress | None = None, limits: Limits | None = None) -> RunCapture:
    """Run it, wait, and collect what is whole; `on_progress` is called with the number of finished steps.

    When the nsys of several ranks, started at one moment, get into each other's way, the run is made again with their
    starts apart, and the log says so. Raises CaptureError when a rank fails, hangs, decodes wrongly, or leaves
    nothing that can be read; RunInterruptedError when a person ended it before there was anything.
    """
    return record_together([launch], None, on_progress, limits)


def record_together(
    launches: Sequence[Launch],
    turns: Callable[[], TurnTaking] | None,
    on_progress: OnProgress | None = None,
    limits: Limits | None = None,
) -> RunCapture:
    """The same of several launches that are alive together and take turns, as one capture."""
    for attempt in range(1, _SESSION_ATTEMPTS + 1):
        try:
            with turns() if turns else nullcontext():
                return _recorded(launches, on_progress, limits or Limits())
        except _SessionClashError as error:
            if attempt == _SESSION_ATTEMPTS:
                raise
            log.warning("%s; starting again, one after the other", error.text)
            for launch in launches:
                _empty(launch.folder)
            launches = [replace(launch, stagger_s=_STAGGER_S * attempt) for launch in launches]
    raise AssertionError("unreachable")


def _recorded(launches: Sequence[Launch], on_progress: OnProgress | None, limits: Limits) -> RunCapture:
    end, failed = _supervised(launches, on_progress, limits)
    for launch in launches:
        clashed = not end.is_interrupted and launch.tool and is_session_clash(launch.folder, launch.ranks)
        if clashed and launch.tool:
            raise _SessionClashError(
                f"{launch.title}: nsys {launch.tool.version_text} could not start on all {launch.ranks} ranks at one"
                " moment (sem_open)",
                hint="--reports one starts a single nsys for all ranks, --recorder starts none",
            )
    if end.is_silent:
        how = f"gave no sign of life for {limits.silence_s:g} s and was ended"
        raise failure(failed.title, failed.folder, failed.ranks, how)
    if end.code != 0 and not end.is_interrupted:
        how = f"ended with exit code {end.code}"
        raise failure(failed.title, failed.folder, failed.ranks, how, end.code)
    found = [_collect(launch, end) for launch in launches]
    files, ledgers, findings = ([*chain(*(getattr(own, n) for own in found))] for n in ("files", "ledgers", "findings"))
    return RunCapture(tuple(files), tuple(ledgers), tuple(findings), end)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _supervised(launches: Sequence[Launch], on_progress: OnProgress | None, limits: Limits) -> tuple[ChildEnd, Launch]:
    """How they ended together, and the one that failed first, if any did."""
    folders = [launch.folder for launch in launches]

    def signs() -> object:
        done = sum(map(_steps_done, folders))
        if on_progress is not None:
            on_progress(done)
        return done, [(len(supervise.living_ranks(at)), supervise.bytes_in(at)) for at in folders]

    origin = str(Origin.now())
    with ExitStack() as stack:
        interrupts = stack.enter_context(supervise.counted_interrupts())
        groups = Groups([_started(launch, origin, stack) for launch in launches])
        end = Watch(groups, limits, signs, interrupts).wait()
    signs()
    for note in (note for at in folders for note in (*at.glob("rank*.pid"), at / PROGRESS)):
        note.unlink(missing_ok=True)
    return end, launches[groups.failed or 0]


def _started(launch: Launch, origin: str, stack: ExitStack) -> Group:
    command = launch_command(launch)
    environment = command.full_environment()
    if launch.tool is None:
        environment[ORIGIN_VARIABLE] = origin
    output = stack.enter_context((launch.folder / LAUNCHER_LOG).open("wb"))
    return Group(supervise.start(command.line, environment, output), lambda: supervise.living_ranks(launch.folder))


def _steps_done(folder: Path) -> int:
    """Finished steps of rank 0: the progress file holds one byte for each."""
    try:
        return (folder / PROGRESS).stat().st_size
    except FileNotFoundError:
        return 0


def _collect(launch: Launch, end: ChildEnd) -> RunCapture:
    ledgers = read_ledgers(launch.folder)
    files, findings = ((), ()) if launch.is_unprofiled else _captures(launch, is_lenient=end.is_interrupted)
    if end.is_interrupted and not (ledgers if launch.is_unprofiled else files):
        raise RunInterruptedError(
            "the run was interrupted before there was anything whole to keep", hint="run it again"
        )
    if not launch.is_unprofiled:
        findings = (*findings, *_check(launch, files, ledgers))
    if len(ledgers) < launch.ranks:
        without = sorted(set(range(launch.ranks)) - {ledger.rank for ledger in ledgers})
        text = f"ranks {', '.join(map(str, without))} left no ledger, so their ranges cannot be counted"
        if not end.is_interrupted:
            raise CaptureError(text, hint=f"see {launch.folder / LAUNCHER_LOG}")
        findings = (*findings, Finding("ledger_missing", None, len(without), text))
    return RunCapture(files, ledgers, findings, end)


def _captures(launch: Launch, *, is_lenient: bool) -> tuple[tuple[Path, ...], tuple[Finding, ...]]:
    tool = launch.tool
    stems = [ALL_RANKS] if launch.is_one_report else [f"rank{rank}" for rank in range(launch.ranks)]
    files, findings = [], []
    for rank, stem in enumerate(stems):
        try:
            if tool is not None:
                files.append(sqlite_of(launch.folder, stem, tool))
            elif (path := launch.folder / f"{stem}.sqlite").is_file():
                files.append(path)
            else:
                raise CaptureError(f"rank {rank} wrote no recording", hint=f"see {launch.folder / f'{stem}.log'}")
        except (CaptureError, DataError) as error:
            if not is_lenient:
                raise
            findings.append(Finding("capture_missing", None if stem == ALL_RANKS else rank, 1, error.text))
    return tuple(files), tuple(findings)


def _check(launch: Launch, files: tuple[Path, ...], ledgers: tuple[LoopLedger, ...]) -> tuple[Finding, ...]:
    if not ledgers:
        return ()
    counts = [count for path in files for count in count_ranges(path, ledgers[0].domain)]
    tool = launch.tool
    circumstances = Circumstances(
        nsys_version=tool.version if tool else None,
        nvtx_version=ledgers[0].versions.get("nvtx"),
        interrupted=frozenset(ledger.rank for ledger in ledgers if ledger.interrupted),
        says_incomplete=any(says_incomplete(path) for path in files),
    )
    return compare_counts({ledger.rank: ledger.ranges for ledger in ledgers}, by_rank(counts), circumstances)
