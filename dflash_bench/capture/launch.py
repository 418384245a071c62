"""One run: one launch of one arm on all its ranks, recorded.

``torchrun`` starts the ranks, each rank becomes ``python -m dflash_prep.loop``; nsys goes around each rank (one report
per rank) or around torchrun (one report), or every rank records itself with the built-in recorder. torch is never
imported here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dflash_bench.capture import supervise
from dflash_bench.capture.check import Circumstances, by_rank, compare_counts, count_ranges, says_incomplete
from dflash_bench.capture.choice import RecorderChoice
from dflash_bench.capture.convert import sqlite_of
from dflash_bench.capture.ledger import Ledger, read_ledgers
from dflash_bench.capture.nsys import has_nvidia_gpu
from dflash_bench.capture.nsys_command import ProfileOptions, Trace, profile_command
from dflash_bench.capture.recorder import FOLDER_VARIABLE, ORIGIN_VARIABLE, Origin
from dflash_bench.capture.supervise import Group, Limits, Outcome, Watch
from dflash_bench.errors import CaptureError, DataError, UsageError
from dflash_bench.model import Finding

LOOP = (sys.executable, "-m", "dflash_prep.loop")
SINK_VARIABLE = "DFLASH_PREP_SINK"
SINK = "dflash_bench.capture.recorder:sink"
ALL_RANKS = "all_ranks"
LAUNCHER_LOG = "launcher.log"
PROGRESS = "progress"
TAIL_LINES = 12
_BAR = re.compile(r"\[\d+/\d+\] \[[^\]]*\] ")


class Reports(StrEnum):
    """How nsys reports are split."""

    PER_RANK = "per-rank"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run and where the capture goes. ``folder`` must be empty; ``workload`` is a name or a TOML file."""

    arm: str
    workload: str
    ranks: int
    steps: int
    seed: int
    folder: Path
    choice: RecorderChoice
    reports: Reports = Reports.PER_RANK
    program: tuple[str, ...] = LOOP


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and the variables it gets; a variable that is None is taken away."""

    line: tuple[str, ...]
    environment: dict[str, str | None] = field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        """This process's environment with the changes applied."""
        merged: dict[str, str | None] = {**os.environ, **self.environment}
        return {key: value for key, value in merged.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RunCapture:
    """What a run left: capture files in rank order, each rank's own account, and what is missing."""

    files: tuple[Path, ...]
    ledgers: tuple[Ledger, ...]
    findings: tuple[Finding, ...]
    outcome: Outcome

    @property
    def is_interrupted(self) -> bool:
        return self.outcome.is_interrupted


def require_torch() -> None:
    """Raises UsageError when the ranks could not import torch or the decode loop."""
    for module in ("torch", "dflash_prep"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"the built-in decode loop needs {module}, which is not installed in {sys.prefix}",
                hint='pip install "dflash-bench[impl]"',
            )


def launch_command(launch: Launch) -> Command:
    """The whole command line of a run; a pure function of the launch and of this machine's GPU."""
    loop = [*launch.program, "--arm", launch.arm, "--workload", launch.workload]
    loop += ["--steps", str(launch.steps), "--seed", str(launch.seed), "--out", str(launch.folder)]
    loop += ["--progress", str(launch.folder / PROGRESS)]
    rank = ["-m", "dflash_bench.capture.exec_rank", str(launch.folder), "--", *loop]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
    # One thread per rank, as torchrun would choose with a warning: ranks on one host must not fight for cores.
    environment: dict[str, str | None] = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    tool = launch.choice.tool
    if tool is None:
        environment |= {SINK_VARIABLE: SINK, FOLDER_VARIABLE: str(launch.folder)}
        return Command((*torchrun, *rank), environment)
    environment[SINK_VARIABLE] = None
    options = ProfileOptions(traces=default_traces())
    folder = str(launch.folder).replace("%", "%%")
    if launch.reports is Reports.ONE:
        return Command(tuple(profile_command(tool, f"{folder}/{ALL_RANKS}", [*torchrun, *rank], options)), environment)
    each = profile_command(tool, f"{folder}/rank%q{{RANK}}", [sys.executable, *rank], options)
    return Command((*torchrun, "--no-python", *each), environment)


def default_traces() -> tuple[Trace, ...]:
    """CUDA is traced where there is a GPU; elsewhere nsys would only warn about it."""
    return (Trace.CUDA, Trace.NVTX) if has_nvidia_gpu() else (Trace.NVTX,)


OnProgress = Callable[[int], None]


def record(launch: Launch, on_progress: OnProgress | None = None, limits: Limits | None = None) -> RunCapture:
    """Run it, wait, and collect what is whole; `on_progress` is called with the number of finished steps.

    Raises CaptureError when a rank fails, hangs, or leaves nothing that can be read.
    """
    command = launch_command(launch)
    environment = command.full_environment()
    if launch.choice.tool is None:
        environment[ORIGIN_VARIABLE] = str(Origin.now())
    limits = limits or Limits()
    outcome = _supervised(launch, command.line, environment, on_progress, limits)
    if outcome.is_silent:
        raise _failure(launch, f"gave no sign of life for {limits.silence_s:g} s and was ended")
    if outcome.code != 0 and not outcome.is_interrupted:
        raise _failure(launch, f"ended with exit code {outcome.code}")
    return _collect(launch, outcome)


def _supervised(
    launch: Launch,
    line: tuple[str, ...],
    environment: dict[str, str],
    on_progress: OnProgress | None,
    limits: Limits,
) -> Outcome:
    def signs() -> object:
        done = steps_done(launch.folder)
        if on_progress is not None:
            on_progress(done)
        return done, len(living_ranks(launch.folder)), supervise.bytes_in(launch.folder)

    with (launch.folder / LAUNCHER_LOG).open("wb") as output, supervise.counted_interrupts() as interrupts:
        child = Group(supervise.start(line, environment, output), lambda: living_ranks(launch.folder))
        outcome = Watch(child, limits, signs, interrupts).wait()
    if on_progress is not None:
        on_progress(steps_done(launch.folder))
    for note in (*launch.folder.glob("rank*.pid"), launch.folder / PROGRESS):
        note.unlink(missing_ok=True)
    return outcome


def steps_done(folder: Path) -> int:
    """Finished steps of rank 0: the progress file holds one byte for each."""
    try:
        return (folder / PROGRESS).stat().st_size
    except FileNotFoundError:
        return 0


def living_ranks(folder: Path) -> list[int]:
    """Process ids of the ranks that run now."""
    noted = (path.read_text(encoding="ascii").strip() for path in sorted(folder.glob("rank*.pid")))
    return [int(text) for text in noted if text.isdecimal() and supervise.is_alive(int(text))]


def _collect(launch: Launch, outcome: Outcome) -> RunCapture:
    ledgers = read_ledgers(launch.folder)
    files, lost = _captures(launch, is_lenient=outcome.is_interrupted)
    if not files:
        raise CaptureError("the run was interrupted before there was anything whole to keep", hint="run it again")
    findings = (*lost, *_check(launch, files, ledgers))
    if len(ledgers) < launch.ranks:
        without = sorted(set(range(launch.ranks)) - {ledger.rank for ledger in ledgers})
        text = f"ranks {', '.join(map(str, without))} left no ledger, so their ranges cannot be counted"
        if not outcome.is_interrupted:
            raise CaptureError(text, hint=f"see {launch.folder / LAUNCHER_LOG}")
        findings = (*findings, Finding("ledger_missing", None, len(without), text))
    return RunCapture(files, ledgers, findings, outcome)


def _captures(launch: Launch, *, is_lenient: bool) -> tuple[tuple[Path, ...], tuple[Finding, ...]]:
    tool = launch.choice.tool
    stems = [ALL_RANKS] if tool is not None and launch.reports is Reports.ONE else _rank_stems(launch)
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


def _rank_stems(launch: Launch) -> list[str]:
    return [f"rank{rank}" for rank in range(launch.ranks)]


def _check(launch: Launch, files: tuple[Path, ...], ledgers: tuple[Ledger, ...]) -> tuple[Finding, ...]:
    if not ledgers:
        return ()
    counts = [count for path in files for count in count_ranges(path, ledgers[0].domain)]
    tool = launch.choice.tool
    circumstances = Circumstances(
        nsys_version=tool.version if tool else None,
        nvtx_version=ledgers[0].versions.get("nvtx"),
        interrupted=frozenset(ledger.rank for ledger in ledgers if ledger.interrupted),
        says_incomplete=any(says_incomplete(path) for path in files),
    )
    return compare_counts({ledger.rank: ledger.ranges for ledger in ledgers}, by_rank(counts), circumstances)


def _failure(launch: Launch, how: str) -> CaptureError:
    """One error for a run that went wrong: which rank, how, and the end of what it said."""
    reported = first_failure(_text(launch.folder / LAUNCHER_LOG))
    rank = reported[0] if reported else _guess_rank(launch)
    if reported:
        how = f"ended with exit code {reported[1]}"
    who = "the launcher" if rank is None else f"rank {rank} of {launch.ranks}"
    logs = [launch.folder / LAUNCHER_LOG] if rank is None else [launch.folder / f"rank{rank}.log"]
    # A rank that never started has no log of its own: then whoever was to start it said why.
    path = next((log for log in logs if said_at_end(log)), launch.folder / LAUNCHER_LOG)
    tail = "\n".join(f"    {line}" for line in said_at_end(path))
    said = f"; it said:\n{tail}" if tail else ", and it said nothing"
    return CaptureError(f"arm {launch.arm}: {who} {how}{said}", hint=f"the whole log is {path}")


def said_at_end(path: Path) -> list[str]:
    """The last lines of a log, without nsys' progress bars."""
    lines = [line.rstrip() for line in _text(path).splitlines()]
    return [line for line in lines if line and not _BAR.match(line)][-TAIL_LINES:]


def first_failure(launcher_log: str) -> tuple[int, int] | None:
    """(rank, exit code) of the root cause that torchrun reports, None when it reports none."""
    root = launcher_log.partition("Root Cause")[2]
    rank = re.search(r"rank\s*:\s*(\d+)", root)
    code = re.search(r"exitcode\s*:\s*(-?\d+)", root)
    return (int(rank[1]), int(code[1])) if rank and code else None


def _guess_rank(launch: Launch) -> int | None:
    # Without torchrun's report: a rank that said something and wrote no ledger.
    said = (r for r in range(launch.ranks) if _text(launch.folder / f"rank{r}.log").strip())
    return next((r for r in said if not (launch.folder / f"rank{r}.json").exists()), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
