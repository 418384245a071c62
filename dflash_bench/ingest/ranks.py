"""Which rank a process is: from the mark it wrote, else from the name of its file, else from the order of processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_bench.errors import DataError, UsageError, quoted
from dflash_bench.ingest.rows import without_folders
from dflash_bench.model import ProcessInfo, ProcessRole, RankSource

DEFAULT_RANK_PATTERN = r"rank[-_.]?(?P<rank>\d+)"
_MARK = re.compile(
    r"dflash_bench rank=(?P<rank>\d+) world=(?P<world>\d+)(?: arm=(?P<arm>.*?))?"
    r"(?: group=(?P<group>\S+))?(?: role=(?P<role>core|worker))?",
    re.DOTALL,
)
_AXES = re.compile(r"(?<![a-z])(?P<axis>dp|pp|tp|ep|dcp)[-_.]?(?P<number>\d+)(?!\d)", re.IGNORECASE)
_AXIS_ORDER = ("dp", "pp", "tp", "dcp", "ep")
"""How engines number the ranks of a parallel group: data, then pipeline, then tensor parallel."""
_STEPS = re.compile(
    r"decode_step|scheduler\.run_batch|execute_model|execute_(context|new)_.*|step\[.*|.*_forward_step.*"
)
"""Names that engines give their steps: a process without any, beside others with some, is none of the ranks."""
_NODE = re.compile(r"(node|host|machine|worker)[-_.]?\d+", re.IGNORECASE)

RangeNames = Callable[[ProcessInfo], frozenset[str]]


@dataclass(frozen=True, slots=True)
class RankMark:
    """What a process says of itself, in the NVTX mark ``dflash_bench rank=R world=W arm=A group=G role=core|worker``.

    All after ``world`` may be left out. A torch-profiler trace states rank and world too (``source``), and no arm.
    """

    rank: int
    world: int
    arm: str | None
    source: RankSource = RankSource.MARK
    group: str | None = None
    role: ProcessRole | None = None

    @classmethod
    def parse(cls, text: str) -> RankMark | None:
        """The mark in a text, or None when the text is another one."""
        if (found := _MARK.fullmatch(text)) is None:
            return None
        arm, role = found["arm"], found["role"]
        return cls(
            rank=int(found["rank"]),
            world=int(found["world"]),
            arm=None if arm is None else arm.strip(),
            group=found["group"],
            role=None if role is None else ProcessRole(role),
        )


def engine_stated(text: str) -> str | None:
    """An annotated process's engine: ``sglang 0.5.23``, of the mark ``dflash_bench engine=sglang version=0.5.23``."""
    found = re.fullmatch(r"dflash_bench engine=(?P<name>[\w.-]{1,40})(?: version=(?P<version>[\w.+-]{1,40}))?", text)
    return None if found is None else " ".join(filter(None, found.groups()))


def warning_stated(text: str) -> str | None:
    """What the annotations of an engine could not do (``dflash_bench warning …``)."""
    found = re.fullmatch(r"dflash_bench warning (?P<text>.{1,400})", text)
    return None if found is None else without_folders(found["text"])


@dataclass(frozen=True, slots=True)
class RankRule:
    """Where ranks are read.

    ``pattern``: of the rank in a file's name, with a group ``rank``, or one group. ``source``: only from there; None:
    from the best there is. ``given``: what a person says of processes, by pid: a rank, or None for a core.
    """

    pattern: re.Pattern[str]
    is_own_pattern: bool = False
    source: RankSource | None = None
    given: tuple[tuple[int, int | None], ...] = ()

    @classmethod
    def of(cls, pattern: str, ranks: str | None = None) -> RankRule:
        """The rule of ``--rank-pattern`` and ``--ranks``. Raises UsageError when one of them means nothing."""
        own, sources = _compiled(pattern), {"mark": RankSource.MARK, "name": RankSource.FILE_NAME}
        sources["order"] = RankSource.PROCESS_ORDER
        is_own = pattern != DEFAULT_RANK_PATTERN
        if ranks is None or ranks in sources:
            return cls(own, is_own, sources.get(ranks or ""))
        given = []
        for word in ranks.split(","):
            found = re.fullmatch(r"(?P<pid>\d+)=(?:(?P<rank>\d+)|core)", word.strip())
            if found is None:
                hint = "--ranks mark, name or order, or PID=RANK,PID=core,…"
                raise UsageError(f"--ranks {quoted(ranks)} says nothing of ranks", hint=hint)
            given.append((int(found["pid"]), None if found["rank"] is None else int(found["rank"])))
        return cls(own, is_own, None, tuple(given))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"--rank-pattern {quoted(pattern)} is no regular expression: {error}") from None
    if "rank" not in compiled.groupindex and compiled.groups != 1:
        raise UsageError(
            f"--rank-pattern {quoted(pattern)} captures no rank",
            hint=f"write one group, as in {quoted(DEFAULT_RANK_PATTERN)}",
        )
    return compiled


def rank_in_name(name: str, pattern: re.Pattern[str]) -> int | None:
    """The rank that a file name states, or None."""
    found = pattern.search(name)
    if found is None:
        return None
    text = found["rank"] if "rank" in pattern.groupindex else found[1]
    if text is None or not text.isdecimal():
        raise UsageError(f"--rank-pattern found {quoted(text)} in {quoted(name)}, which is no rank number")
    return int(text)


def natural(path: Path) -> list[tuple[str, int]]:
    """A key by which ``report_2`` comes before ``report_10``."""
    parts = re.findall(r"(\D*)(\d*)", str(path))
    return [(text, int(number) if number else -1) for text, number in parts]


def run_folder(path: Path) -> Path:
    """The folder that the captures of one run share: that of its nodes (``node0/``, ``node1/``) is not it."""
    return path.parent.parent if _NODE.fullmatch(path.parent.name) else path.parent


def ranks_in_names(files: Sequence[Path], pattern: re.Pattern[str]) -> list[int] | None:
    """The ranks that the files' names state; None where one states none.

    A rank that several folders hold, one a node, is counted on from node to node. Names that tell places in parallel
    groups (``TP-0-DP-1``) are ranks in the order of these.
    """
    found = [rank_in_name(file.name, pattern) for file in files]
    if all(rank is not None for rank in found):
        return _over_nodes(files, [rank for rank in found if rank is not None])
    places = [_places(file.name) for file in files]
    if not all(places) or len({tuple(sorted(own)) for own in places}) > 1:
        return None
    tensor = [own.get("tp", -1) for own in places]
    if len(set(tensor)) == len(files) and -1 not in tensor:
        return tensor
    keys = [tuple(own.get(axis, 0) for axis in _AXIS_ORDER) for own in places]
    return [sorted(set(keys)).index(key) for key in keys]


def _places(name: str) -> dict[str, int]:
    return {found["axis"].lower(): int(found["number"]) for found in _AXES.finditer(name)}


def _over_nodes(files: Sequence[Path], ranks: list[int]) -> list[int]:
    folders = sorted({file.parent for file in files}, key=natural)
    if len(set(ranks)) == len(ranks) or len(folders) < 2:
        return ranks
    own = [sorted(rank for file, rank in zip(files, ranks, strict=True) if file.parent == f) for f in folders]
    if any(len(set(each)) < len(each) for each in own):
        return ranks
    before = dict(zip(folders, (sum(map(len, own[:k])) for k in range(len(folders))), strict=True))
    return [
        before[file.parent] + own[folders.index(file.parent)].index(rank)
        for file, rank in zip(files, ranks, strict=True)
    ]


def assign_ranks(
    processes: Sequence[ProcessInfo],
    marks: dict[tuple[int, int], RankMark],
    files: Sequence[Path],
    rule: RankRule,
    range_names: RangeNames,
) -> tuple[ProcessInfo, ...]:
    """Give every process its rank, by the best source that the run offers, or by the one that is asked for.

    ``marks`` is keyed by (capture, process); ``range_names``: the names of a process's ranges. A source is used for the
    whole run or not at all: mixing them could give one rank twice. With marks, a process without one stays without rank
    (the launcher, helpers). Raises UsageError when the rule fits nothing, DataError when two captures claim one rank.
    """
    given = dict(rule.given)
    if unknown := given.keys() - {p.pid for p in processes}:
        pids = ", ".join(str(p.pid) for p in processes)
        raise UsageError(f"--ranks names process {min(unknown)}, which is not there", hint=f"there are {pids}")
    named = [_by_hand(p, given[p.pid]) if p.pid in given else p for p in processes]
    rest = [p for p in processes if p.pid not in given]
    if any(rank is not None for rank in given.values()):
        found = {}
    else:
        found = {(p.capture, p.process): p for p in _by_source(rest, marks, files, rule, range_names)}
    ranked = tuple(found.get((p.capture, p.process), p) for p in named)
    _check_unique(ranked, files)
    return ranked


def _by_hand(process: ProcessInfo, rank: int | None) -> ProcessInfo:
    if rank is None:
        return replace(process, role=ProcessRole.CORE)
    return replace(process, rank=rank, rank_source=RankSource.OPTION)


def _by_source(
    processes: Sequence[ProcessInfo],
    marks: dict[tuple[int, int], RankMark],
    files: Sequence[Path],
    rule: RankRule,
    range_names: RangeNames,
) -> Iterator[ProcessInfo]:
    has_marks = any((p.capture, p.process) in marks for p in processes)
    if rule.source is RankSource.MARK and not has_marks:
        raise UsageError("--ranks mark: no process wrote a rank mark", hint="leave --ranks out, or say name or order")
    if has_marks and rule.source in (None, RankSource.MARK):
        yield from (_by_mark(p, marks.get((p.capture, p.process))) for p in processes)
        return
    ranks = list(_candidates(processes, range_names))
    num = [sum(p.capture == k for p in ranks) for k in range(len(files))]
    if rule.source is not RankSource.PROCESS_ORDER:
        numbers = ranks_in_names(files, rule.pattern)
        if numbers is None and (rule.is_own_pattern or rule.source is RankSource.FILE_NAME):
            silent = next(file.name for file in files if rank_in_name(file.name, rule.pattern) is None)
            raise UsageError(
                f"--rank-pattern {quoted(rule.pattern.pattern)} finds no rank in {silent}", hint=_NAME_HINT
            )
        # a name cannot be the rank of several processes
        if numbers is not None and max(num, default=0) < 2:
            for p in processes:
                yield replace(p, rank=numbers[p.capture], rank_source=RankSource.FILE_NAME) if p in ranks else p
            return
        if numbers is not None and (rule.is_own_pattern or rule.source is RankSource.FILE_NAME):
            several = files[num.index(max(num))].name
            text = f"{several} holds {max(num)} processes, and its name only one rank"
            raise UsageError(text, hint="leave --rank-pattern out: processes are numbered then, file by file")
    order = {(p.capture, p.process): k for k, p in enumerate(sorted(ranks, key=lambda p: (p.capture, p.pid)))}
    for p in processes:
        place = order.get((p.capture, p.process))
        yield p if place is None else replace(p, rank=place, rank_source=RankSource.PROCESS_ORDER)


_NAME_HINT = "leave --rank-pattern out, or write a pattern that fits every file's name"


def _by_mark(process: ProcessInfo, mark: RankMark | None) -> ProcessInfo:
    if mark is None:
        return process
    is_core = mark.role is ProcessRole.CORE
    return replace(
        process,
        rank=None if is_core else mark.rank,
        rank_source=None if is_core else mark.source,
        world=mark.world,
        arm=process.arm if mark.arm is None else mark.arm,
        group=mark.group,
        role=mark.role,
    )


def _candidates(processes: Sequence[ProcessInfo], range_names: RangeNames) -> Iterator[ProcessInfo]:
    """The processes that are ranks, where nothing says it: of each capture those that did the work.

    A launcher makes a few API calls at most, and an engine's core has ranges, but neither steps nor GPU work.
    """
    for capture in sorted({p.capture for p in processes}):
        own = [p for p in processes if p.capture == capture]
        busy = [p for p in own if p.num_ranges or p.num_gpu_work] or own
        if len(busy) == 1:
            yield from busy
            continue
        names = {p.process: range_names(p) for p in busy}
        steps = [p for p in busy if any(_STEPS.fullmatch(name) for name in names[p.process])]
        work = [p for p in busy if p.num_gpu_work]
        ranged = [p for p in work if p.num_ranges]
        if steps and work and not any(p.num_gpu_work for p in steps) and not ranged:
            yield from steps  # the ranges lie in one process and CUDA in another: the steps make the rank
        elif work:
            of_work = frozenset[str]().union(*(names[p.process] for p in ranged))
            # nsys traces the first of forked workers alone: the others do the same, and show no GPU work
            alike = [p for p in busy if not p.num_gpu_work and (p in steps or _is_alike(names[p.process], of_work))]
            yield from (p for p in busy if p in work or p in alike)
        else:
            yield from steps or busy


def _is_alike(names: frozenset[str], others: frozenset[str]) -> bool:
    return 2 * len(names & others) > len(names)


def _check_unique(processes: Sequence[ProcessInfo], files: Sequence[Path]) -> None:
    seen: dict[tuple[int, str | None], int] = {}
    for process in processes:
        if process.rank is None:
            continue
        # of a duet between two versions each has processes of its own, told apart by the arm
        first = seen.setdefault((process.rank, process.arm), process.capture)
        if first != process.capture:
            raise DataError(
                f"{files[first].name} and {files[process.capture].name} both hold rank {process.rank}",
                hint="ingest each run on its own, with --run NAME",
            )
