"""Did every emitted range arrive? Ledger against file, per rank and name; and what is known to lose ranges.

The trap this exists for: the python ``nvtx`` package from 0.2.12 asks the tool whether its domain is enabled, nsys up
to 2023.4 does not answer, and every range is silently dropped, while the capture looks whole.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from dflash_bench.errors import CaptureError, DataError
from dflash_bench.model import Finding

_DOMAIN = "dflash"
_FIRST_ASKING_NVTX = (0, 2, 12)
_FIRST_ANSWERING_NSYS = (2024,)
NVTX_MEND = 'pip install "nvtx<0.2.12"'

_RANGE_TYPES = (59, 60)
_MARK_TYPE = 34
_RANK_MARK = re.compile(r"dflash_bench rank=(\d+) world=")
_SHOWN_NAMES = 6


@dataclass(frozen=True, slots=True)
class ProcessRanges:
    """What one process of a capture left in a domain. ``rank`` is what its mark says, None without a mark."""

    process: int
    rank: int | None
    ranges: Mapping[str, int]
    num_marks: int
    has_domain_rows: bool

    @property
    def num_ranges(self) -> int:
        return sum(self.ranges.values())


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What can explain that ranges are missing."""

    nsys_version: tuple[int, ...] | None = None
    nvtx_version: str | None = None
    has_window: bool = False
    interrupted: frozenset[int] = field(default_factory=frozenset)
    says_incomplete: bool = False


def nvtx_problem(nvtx_version: str | None, nsys_version: tuple[int, ...]) -> Finding | None:
    """Whether this pair of nvtx package and nsys would lose every range; None when it does not."""
    if nvtx_version is None:
        text = "the python package nvtx is not installed, so nothing would be emitted to nsys"
        return Finding("nvtx_missing", None, 1, text)
    if _numbers(nvtx_version) >= _FIRST_ASKING_NVTX and nsys_version < _FIRST_ANSWERING_NSYS:
        old = ".".join(map(str, nsys_version))
        text = (
            f"nvtx {nvtx_version} asks the tool whether its domain is enabled and nsys {old} does not answer:"
            " every range would be lost"
        )
        return Finding("nvtx_nsys_pair", None, 1, text)
    return None


def count_ranges(path: Path, domain: str | None = _DOMAIN) -> tuple[ProcessRanges, ...]:
    """Ranges by process and name that a capture file holds in `domain`, or in all domains when that is None.

    Processes without any row of the domain are left out.

    Raises DataError when the file is not an nsys export.
    """
    with closing(_connect(path)) as database:
        try:
            return _count(database, domain)
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path}: cannot be read as a capture: {error}") from None


def says_incomplete(path: Path) -> bool:
    """Whether nsys itself noted in the file that NVTX events may be missing."""
    with closing(_connect(path)) as database:
        if not _has_table(database, "DIAGNOSTIC_EVENT"):
            return False
        query = "SELECT count(*) FROM DIAGNOSTIC_EVENT WHERE text LIKE ?"
        return bool(database.execute(query, ("%Not all NVTX events might have been collected%",)).fetchone()[0])


def by_rank(counts: Iterable[ProcessRanges]) -> dict[int, Counter[str]]:
    """Ranges by rank and name, over all processes whose mark names a rank."""
    found: dict[int, Counter[str]] = {}
    for process in counts:
        if process.rank is not None:
            found.setdefault(process.rank, Counter()).update(process.ranges)
    return found


def compare_counts(
    emitted: Mapping[int, Mapping[str, int]],
    recorded: Mapping[int, Mapping[str, int]],
    circumstances: Circumstances | None = None,
) -> tuple[Finding, ...]:
    """One finding per rank whose emitted ranges are not all recorded, and one per rank with more than it emitted.

    `emitted` is rank → name → number, as the program counted itself; `recorded` the same, as found in the file. A
    finding's ``count`` is the number of ranges, its text names them and says why, as far as that is known.
    """
    why = circumstances or Circumstances()
    findings = []
    for rank in sorted(emitted):
        there = recorded.get(rank, {})
        lost = {name: n - there.get(name, 0) for name, n in emitted[rank].items() if n > there.get(name, 0)}
        extra = {name: n - emitted[rank].get(name, 0) for name, n in there.items() if n > emitted[rank].get(name, 0)}
        if lost:
            text = f"rank {rank}: {_listed(lost, emitted[rank])} are not in the capture: {_reason(rank, there, why)}"
            findings.append(Finding("ranges_missing", rank, sum(lost.values()), text))
        if extra:
            text = f"rank {rank} has more ranges in the capture than it emitted: {_names(extra)}"
            findings.append(Finding("ranges_unaccounted", rank, sum(extra.values()), text))
    return tuple(findings)


def silent_domains(counts: Iterable[ProcessRanges]) -> tuple[Finding, ...]:
    """For programs without a ledger: processes that created the domain and left not one range or mark in it.

    Where another process of the same capture has ranges, the package works and these had nothing to say.
    """
    processes = list(counts)
    silent = [c for c in processes if c.has_domain_rows and not c.num_ranges and not c.num_marks]
    if not silent or any(c.num_ranges for c in processes):
        return ()
    who = "1 process" if len(silent) == 1 else f"{len(silent)} processes"
    text = (
        f"{who} opened an NVTX domain and left no range in it: so looks nvtx 0.2.12 or later under nsys 2023.4 or"
        f" older; {NVTX_MEND}, or use a newer nsys"
    )
    return (Finding("domain_without_ranges", None, len(silent), text),)


def require_whole(findings: Iterable[Finding], *, allow_missing: bool) -> None:
    """Raises CaptureError when ranges are missing, unless that is allowed."""
    lost = [f for f in findings if f.code == "ranges_missing"]
    if lost and not allow_missing:
        total = sum(f.count for f in lost)
        text = "\n".join([f"{total:,} emitted ranges are not in the capture", *(f"    {f.text}" for f in lost)])
        raise CaptureError(text, hint="--allow-missing ingests such a capture as it is")


def _reason(rank: int, there: Mapping[str, int], why: Circumstances) -> str:
    if why.nsys_version is not None and not there:
        pair = nvtx_problem(why.nvtx_version, why.nsys_version)
        if pair is not None:
            return f"{pair.text}; {NVTX_MEND}"
    if why.has_window:
        return "the capture covered only a part of the run"
    if rank in why.interrupted:
        return "the run was interrupted before the profiler had written everything"
    if why.says_incomplete:
        return "nsys itself says that not all NVTX events were collected"
    if not there:
        return "no process of the capture carries this rank's mark, so it was not profiled or its report is incomplete"
    return "the cause is not known"


def _listed(lost: Mapping[str, int], emitted: Mapping[str, int]) -> str:
    total = sum(emitted.values())
    return f"{sum(lost.values())} of {total} ranges ({_names(lost)})"


def _names(counts: Mapping[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name} {n}" for name, n in ranked[:_SHOWN_NAMES])
    return shown if len(ranked) <= _SHOWN_NAMES else f"{shown} and {len(ranked) - _SHOWN_NAMES} more"


def _connect(path: Path) -> sqlite3.Connection:
    # immutable: neither a lock nor a journal appears beside the capture
    database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return database


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    return bool(database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone())


def _count(database: sqlite3.Connection, domain: str | None) -> tuple[ProcessRanges, ...]:
    if not _has_table(database, "NVTX_EVENTS"):
        return ()
    name = "n.text"
    join = ""
    if _has_table(database, "StringIds"):
        name, join = "coalesce(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"
    domains = (
        "SELECT DISTINCT globalTid >> 24, domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = coalesce(?, text)"
    )
    created: set[tuple[int, int]] = set(database.execute(domains, (domain,)))
    ranges: dict[int, Counter[str]] = {process: Counter() for process, _ in created}
    marks: dict[int, list[str]] = {process: [] for process, _ in created}
    columns = f"n.globalTid >> 24, n.domainId, n.eventType, {name}, count(*)"
    for process, domain_id, kind, text, number in database.execute(
        f"SELECT {columns} FROM NVTX_EVENTS n {join} GROUP BY 1, 2, 3, 4"
    ):
        if domain is not None and (process, domain_id) not in created:
            continue
        if kind in _RANGE_TYPES:
            ranges.setdefault(process, Counter())[text] += number
        elif kind == _MARK_TYPE:
            marks.setdefault(process, []).extend([text] * number)
    opened = {process for process, _ in created}
    return tuple(
        ProcessRanges(
            process,
            _rank(texts := marks.get(process, [])),
            dict(ranges.get(process, {})),
            len(texts),
            process in opened,
        )
        for process in sorted(ranges.keys() | marks.keys())
    )


def _rank(marks: Iterable[str]) -> int | None:
    found = (_RANK_MARK.match(text) for text in marks)
    return next((int(match[1]) for match in found if match), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
