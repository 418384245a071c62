"""Build one profile from the exports of one run: streamed, and whole or not there."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

import pyarrow.parquet as pq

from dflash_bench import __version__
from dflash_bench.errors import DataError, UsageError
from dflash_bench.findings import finding
from dflash_bench.ingest.ranks import DEFAULT_RANK_PATTERN, RangeNames, RankMark, RankRule, assign_ranks
from dflash_bench.ingest.rows import Skipped, values_of
from dflash_bench.ingest.source import Source
from dflash_bench.ingest.steps import write_steps
from dflash_bench.ingest.tasks import TaskResult, plan
from dflash_bench.ingest.workers import Progress as Progress
from dflash_bench.ingest.workers import RunTasks, run_tasks
from dflash_bench.ingest.writers import unranked_path
from dflash_bench.layout import Events, part_path
from dflash_bench.model import Finding, ProcessInfo, ProcessRole, RunInfo, Value
from dflash_bench.profile import Profile, is_profile, open_profile, write_run
from dflash_bench.whole import hidden, partial_folder

_log = logging.getLogger(__name__)

MAX_NAME_BYTES = 200
"""Of a run's name, whatever the alphabet: longer names are no folders on some file systems."""


_BASES = ("base", "before", "upstream")
"""What the base of a duet is called where the engine, and not a run of ours, named the arms."""


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How captures become profiles. ``run``: one name for all of them; None: named after the files, run by run.

    ``arm`` and ``workload`` describe the run where the captures' marks do not; ``settings`` and ``counters`` (rank →
    metric → value) come from the built-in loop. ``captures`` is a folder that moves into the profile with it;
    ``findings`` is what making the captures met. ``jobs``:
    how many processes may read (None: one per core); the profile is the same with any number. ``run_tasks``: what
    reads the captures instead of processes of this machine, such as a cluster. ``is_implicit``: another command needs
    the profile; a name that is taken then gets a suffix instead of an error. ``rank_pattern``, ``ranks``: where ranks
    are read (`ranks.RankRule.of`).
    """

    profiles: Path = Path("profiles")
    run: str | None = None
    arm: str | None = None
    workload: str | None = None
    rank_pattern: str = DEFAULT_RANK_PATTERN
    ranks: str | None = None
    nsys: Path | None = None
    is_replace: bool = False
    is_implicit: bool = False
    settings: dict[str, Value] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    captures: Path | None = None
    findings: tuple[Finding, ...] = ()
    jobs: int | None = None
    run_tasks: RunTasks | None = None


def build_profile(
    exports: Sequence[Source],
    run: str,
    options: IngestOptions,
    progress: Progress | None = None,
    unread: Sequence[Path] = (),
) -> Profile:
    """Write ``profiles/<run>`` from the exports of one run and open it. ``unread``: captures that could not be opened.

    The same exports a second time change nothing. Raises UsageError when the name holds another run already and
    DataError when an export cannot be read or holds nothing to measure; then nothing is left behind.
    """
    check_run_name(run)
    target = options.profiles / run
    if (existing := _existing(target, exports, options)) is not None:
        return existing
    with partial_folder(target) as folder:
        parts = _write_events(exports, folder, options, progress)
        info = _describe(exports, parts, run, options, folder)
        info = replace(info, findings=(*options.findings, *info.findings))
        if unread:
            names = ", ".join(path.name for path in unread)
            lost = finding("capture_unreadable", None, len(unread), names=names)
            info = replace(info, findings=(*info.findings, lost))
        _move_to_ranks(folder, info)
        write_steps([export.path for export in exports], info, folder)
        write_run(folder, info)
        with _carried(options.captures, folder):
            return _publish(folder, target, exports, options)


def is_read_so(info: RunInfo, options: IngestOptions) -> bool:
    """Whether a run was read with these options, as far as they decide what its profile says."""
    rule = options.rank_pattern, options.ranks
    is_same = (info.settings.get("rank_pattern"), info.settings.get("ranks")) == rule
    return is_same and options.arm in (None, info.arm) and options.workload in (None, info.workload)


def check_run_name(run: str) -> None:
    """Raises UsageError when a run's name cannot be a folder of its own."""
    if not run or run.startswith(".") or "/" in run or "\0" in run or len(run.encode()) > MAX_NAME_BYTES:
        raise UsageError(f"{run!r} cannot name a run", hint="use letters, digits, '.', '_' and '-'")


@dataclass(frozen=True, slots=True)
class _Part:
    """What was read of one export: its processes with their row counts, its marks, its gaps, the arms of a duet."""

    processes: tuple[ProcessInfo, ...]
    marks: dict[int, RankMark]
    skipped: Skipped
    duets: dict[int, frozenset[str]]
    engines: frozenset[str]
    warnings: frozenset[str]


def _existing(target: Path, exports: Sequence[Source], options: IngestOptions) -> Profile | None:
    if not target.exists():
        return None
    if not is_profile(target):
        raise UsageError(f"{target} exists and is not a profile", hint="choose another name with --run NAME")
    if options.is_replace:
        return None
    profile = open_profile(target)
    own = sorted(c.fingerprint for c in profile.info.captures)
    if own == sorted(e.info.fingerprint for e in exports) and is_read_so(profile.info, options):
        _log.info("%s already holds exactly this", target)
        return profile
    raise UsageError(
        f"{target} already holds another run", hint="choose another name with --run NAME, or pass --replace"
    )


@contextmanager
def _carried(captures: Path | None, folder: Path) -> Iterator[None]:
    """Move the raw captures into the profile, and back where they were when it cannot be published."""
    if captures is None:
        yield
        return
    kept = folder / "captures"
    shutil.move(captures, kept)
    try:
        yield
    finally:
        if kept.exists():
            shutil.move(kept, captures)


def _publish(folder: Path, target: Path, exports: Sequence[Source], options: IngestOptions) -> Profile:
    """Rename into place. Of two writers of one run the first wins, and the other finds its own content there."""
    if options.is_replace and target.exists():
        old = hidden(target, "replaced")
        target.rename(old)
        folder.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        return open_profile(target)
    try:
        folder.rename(target)
    except OSError:
        if (existing := _existing(target, exports, options)) is not None:
            return existing
        raise
    return open_profile(target)


def _write_events(
    exports: Sequence[Source], folder: Path, options: IngestOptions, progress: Progress | None
) -> list[_Part]:
    tasks = plan(exports, folder)
    results = options.run_tasks(tasks, progress) if options.run_tasks else run_tasks(tasks, options.jobs, progress)
    by_capture: dict[int, list[TaskResult]] = {k: [] for k in range(len(exports))}
    for task, result in zip(tasks, results, strict=True):
        by_capture[task.capture].append(result)
    return [_part(exports[k], k, found) for k, found in by_capture.items()]


def _part(export: Source, capture: int, results: Sequence[TaskResult]) -> _Part:
    """What the tasks of a capture found, together."""
    skipped, marks, counts = Skipped(), dict(export.stated), dict[tuple[Events, int], int]()
    duets: dict[int, frozenset[str]] = {}
    for result in results:
        skipped.add_all(result.skipped)
        marks |= result.marks
        duets |= result.duets
        counts |= result.counts  # each table comes from one task
    # a process that only shows profiler overhead ran nothing that was traced
    ids = sorted({process for table, process in counts if table is not Events.OVERHEAD})
    processes = tuple(_process_info(process, capture, counts, duets.get(process, frozenset())) for process in ids)
    if not any(p.num_ranges or p.num_api_calls or p.num_gpu_work for p in processes):
        raise DataError(
            f"{export.path}: nothing to measure: the capture holds neither NVTX ranges nor CUDA calls nor GPU work",
            hint="capture again with `dflash-bench capture -- CMD`; `dflash-bench doctor` says what is missing",
        )
    engines = frozenset[str]().union(*(result.engines for result in results))
    engines = engines or frozenset(export.engines[process] for process in ids if process in export.engines)
    warnings = frozenset[str]().union(*(result.warnings for result in results))
    return _Part(processes, marks, skipped, duets, engines, warnings)


def _process_info(
    process: int, capture: int, counts: dict[tuple[Events, int], int], arms: frozenset[str]
) -> ProcessInfo:
    return ProcessInfo(
        process=process,
        pid=process & 0xFFFFFF,
        capture=capture,
        rank=None,
        rank_source=None,
        world=None,
        arm=next(iter(arms)) if len(arms) == 1 else None,
        num_ranges=counts.get((Events.RANGES, process), 0),
        num_api_calls=counts.get((Events.API_CALLS, process), 0),
        num_gpu_work=counts.get((Events.GPU_WORK, process), 0),
    )


def _describe(
    exports: Sequence[Source], parts: Sequence[_Part], run: str, options: IngestOptions, folder: Path
) -> RunInfo:
    marks = {(k, process): mark for k, part in enumerate(parts) for process, mark in part.marks.items()}
    found = [p for part in parts for p in part.processes]
    files, rule = [export.path for export in exports], RankRule.of(options.rank_pattern, options.ranks)
    range_names = cache(partial(_range_names, folder))
    processes = assign_ranks(found, marks, files, rule, range_names)
    arms = sorted({p.arm for p in processes if p.arm is not None})
    duet = _in_order(frozenset[str]().union(*(own for part in parts for own in part.duets.values())), options)
    if len(arms) > 1 and not set(arms) <= set(duet):
        raise DataError(f"run {run} mixes the arms {', '.join(arms)}", hint="ingest each arm on its own")
    worlds = {p.world for p in processes if p.world is not None}
    engines = sorted({engine for part in parts for engine in part.engines})
    devices = tuple(dict.fromkeys(name for export in exports for name in export.gpu_names))
    return RunInfo(
        run=run,
        arm=options.arm or (arms[0] if len(arms) == 1 else None),
        workload=options.workload,
        device=_device(exports, processes, devices, options),
        devices=devices,
        world=max(worlds) if worlds else None,
        created_utc=datetime.now(UTC).isoformat(timespec="microseconds"),
        tool_version=__version__,
        captures=tuple(export.info for export in exports),
        processes=processes,
        findings=_findings(exports, parts, processes, range_names),
        settings={
            "rank_pattern": options.rank_pattern,
            **({} if options.ranks is None else {"ranks": options.ranks}),
            **({"engine": ", ".join(engines)} if engines else {}),
            **options.settings,
        },
        arms=duet,
        counters={rank: dict(values) for rank, values in sorted(options.counters.items())},
    )


def _in_order(arms: frozenset[str], options: IngestOptions) -> tuple[str, ...]:
    """The arms of a duet as they were asked for, where that is known: the marks come in a random order.

    Else the one that is called like a base comes first.
    """
    asked = str(options.settings.get("arms") or "").split()

    def place(arm: str) -> tuple[int, bool, str]:
        return asked.index(arm) if arm in asked else len(asked), arm not in _BASES, arm

    return tuple(sorted(arms, key=place))


def _range_names(folder: Path, process: ProcessInfo) -> frozenset[str]:
    """The names of a process's ranges, which are written already."""
    file = folder / unranked_path(Events.RANGES, process.capture, process.process)
    if not file.exists():
        return frozenset()
    with pq.ParquetFile(file) as parquet:
        names = parquet.read(["name"], use_threads=False).column("name")
    # a dictionary may hold names of other processes too
    used = ((chunk.dictionary.to_pylist(), set(values_of(chunk.indices).tolist())) for chunk in names.chunks)
    return frozenset(found[code] for found, codes in used for code in codes)


def _device(
    exports: Sequence[Source], processes: Sequence[ProcessInfo], devices: tuple[str, ...], options: IngestOptions
) -> str:
    stated = options.settings.get("device")
    # nsys on a machine without GPU sees nothing of the simulated device, but the loop's own word tells
    if any(export.is_simulated for export in exports) or stated == "simulated":
        return "simulated"
    if any(p.num_gpu_work or p.num_api_calls for p in processes):
        return " + ".join(devices) or "unknown GPU"
    # without CUDA rows a capture cannot tell a run on the CPU from a GPU that was not traced
    return "cpu" if stated == "cpu" else "no GPU traced"


def _findings(
    exports: Sequence[Source], parts: Sequence[_Part], processes: Sequence[ProcessInfo], range_names: RangeNames
) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for k, (export, part) in enumerate(zip(exports, parts, strict=True)):
        ranks = {p.rank for p in processes if p.capture == k}
        found += export.findings(part.skipped, ranks.pop() if len(ranks) == 1 else None)
    found += _without_rank(processes, range_names)
    warnings = sorted({warning for part in parts for warning in part.warnings})
    found += [Finding("annotation_warning", None, 1, warning) for warning in warnings]
    worlds = {p.world for p in processes if p.world is not None}
    missing = sorted(set(range(max(worlds))) - {p.rank for p in processes}) if worlds else []
    if missing:
        some = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        found.append(Finding("rank_missing", None, len(missing), f"no capture of rank {some} (world {max(worlds)})"))
    return tuple(found)


def _without_rank(processes: Sequence[ProcessInfo], range_names: RangeNames) -> Iterator[Finding]:
    """What is known of the processes that are no rank: a worker's CUDA, an engine's core, or a launcher."""
    ranks = [p for p in processes if p.rank is not None]
    rest = [p for p in processes if p.rank is None and p.role is not ProcessRole.CORE]
    if ranks and not any(p.num_api_calls or p.num_gpu_work for p in ranks):
        cuda = [p for p in rest if p.num_gpu_work]
        rest = [p for p in rest if p not in cuda]
        if cuda:
            calls, pids = sum(p.num_api_calls for p in cuda), ", ".join(str(p.pid) for p in cuda)
            yield finding("cuda_in_another_process", None, calls, ranges=ranks[0].pid, cuda=pids)
    for process in (p for p in rest if p.num_ranges):
        names = sorted(range_names(process))
        some = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        yield finding("process_unassigned", None, process.num_ranges, pid=process.pid, names=some)
    if others := [p for p in rest if not p.num_ranges]:
        what = "1 process has" if len(others) == 1 else f"{len(others)} processes have"
        calls, work = sum(p.num_api_calls for p in others), sum(p.num_gpu_work for p in others)
        text = f"{what} no rank (a launcher, a helper); {calls:,} API calls and {work:,} GPU rows are kept apart"
        yield Finding("process_without_rank", None, len(others), text)


def _move_to_ranks(folder: Path, info: RunInfo) -> None:
    for process in info.processes:
        for table in Events:
            old = folder / unranked_path(table, process.capture, process.process)
            if old.exists():
                new = folder / part_path(table, process.rank, process)
                new.parent.mkdir(exist_ok=True)
                old.rename(new)
    for rest in folder.glob("*/capture*.parquet"):
        rest.unlink()
