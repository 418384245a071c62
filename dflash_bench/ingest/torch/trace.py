"""Chrome traces of the torch profiler (``.json``, ``.json.gz``, one per rank), as SGLang and vLLM write them.

User annotations become ranges, ``cuda_runtime``/``cuda_driver`` events API calls, kernels, copies and memsets GPU work,
CPU operators and Python frames a table of their own. All else (flow arrows, counters) is passed over. The file is
streamed; only names are kept whole.

A trace says its rank in ``distributedInfo``. It has no range domains: annotations with a library's prefix (``nccl:``)
get that prefix as their domain, so that they never take the blame for the program's own time. Counters that the
profiler puts into names (``ProfilerStep#12``) are taken off.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from dflash_bench.errors import DataError
from dflash_bench.ingest.fingerprint import fingerprint
from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import Batch, Skipped
from dflash_bench.ingest.source import Section
from dflash_bench.ingest.torch.events import EventRows, NoEventError, host_process
from dflash_bench.ingest.torch.json_stream import JsonStream, JsonStreamError
from dflash_bench.model import CaptureInfo, Finding, RankSource, Recorder

_TRACE_SUFFIXES = (".json", ".json.gz")
_FACTS = frozenset({"distributedInfo", "deviceProperties", "baseTimeNanoseconds"})
_TAIL_CHARS = 1 << 20
_PROFILERS_WORD = re.compile(
    r'"(distributedInfo|deviceProperties|baseTimeNanoseconds|schemaVersion|Ev Idx|External id)"'
)
ENGINE_SUFFIXES = (".trace.json", ".trace.json.gz")
"""How engines name their traces: in a folder only these are taken for traces, since other JSON lies beside captures."""
_HEAD_EVENTS = 100_000
"""Events read when a trace is opened, at most: its first host event comes long before."""
_BYTES_PER_EVENT = 250
"""About how long an event is as text, to estimate progress by; packed traces are about a tenth of that."""


@dataclass(frozen=True, slots=True)
class TorchTrace:
    """An opened trace. ``process``: the profiled process, as nsys would number it. ``rank``, ``world``: if stated."""

    path: Path
    info: CaptureInfo
    process: int
    rank: int | None
    world: int | None
    gpu_names: tuple[str, ...]

    is_simulated: ClassVar[bool] = False
    engines: ClassVar[Mapping[int, str]] = {}

    @property
    def num_rows(self) -> int:
        """About how many events the file holds."""
        packed = 10 if self.path.suffix == ".gz" else 1
        return max(1, self.info.size_bytes * packed // _BYTES_PER_EVENT)

    @property
    def stated(self) -> dict[int, RankMark]:
        """The rank that ``distributedInfo`` states. The profiler knows no arm."""
        if self.rank is None or self.world is None:
            return {}
        return {self.process: RankMark(self.rank, self.world, None, RankSource.TRACE)}

    def rank_marks(self) -> tuple[RankMark, ...]:
        """The rank that the trace states."""
        return tuple(self.stated.values())

    def findings(self, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
        """What was skipped."""
        return skipped.findings(rank)

    def sections(self) -> tuple[Section, ...]:
        """One: the file can only be read front to back."""
        return (Section("trace", self.num_rows),)

    def stream(self, skipped: Skipped, section: Section | None = None) -> Iterator[Batch]:
        """All events, batch by batch. Raises DataError when the file is damaged."""
        waiting = EventRows()
        with _reading(self.path) as file:
            for name, event in JsonStream(file).members("traceEvents"):
                if name != "traceEvents" or not isinstance(event, dict):
                    continue
                if len(waiting.callers) > 1:
                    raise _merged(self.path, waiting.callers)
                try:
                    full = waiting.add(event, self.process)
                except NoEventError as reason:
                    skipped.add(str(reason), 1)
                    continue
                if full is not None:
                    yield waiting.take(full)
            if len(waiting.callers) > 1:
                raise _merged(self.path, waiting.callers)
            for table in list(waiting.rows):
                yield waiting.take(table)
            skipped.add("name_missing", waiting.num_unnamed)


def open_trace(path: Path) -> TorchTrace:
    """Open a trace: read its head until the first event of the host says which process it is.

    Raises DataError, in one sentence, when the file is no torch-profiler trace or holds no event of a host.
    """
    about: dict[str, Any] = {}
    process, num_events = None, 0
    with _reading(path) as file:
        for name, value in JsonStream(file).members("traceEvents"):
            if name != "traceEvents":
                about[name] = value
                continue
            num_events += 1
            if isinstance(value, dict):
                process = host_process(value)
            if process is not None or num_events >= _HEAD_EVENTS:
                break
    if process is None:
        what = "no event of a host process" if num_events else "JSON, but no events in a list traceEvents"
        raise DataError(f"{path}: no torch-profiler trace: {what}", hint="pass a trace that export_chrome_trace wrote")
    about |= _behind_the_events(path, _FACTS - about.keys())
    ranks = about.get("distributedInfo")
    base = about.get("baseTimeNanoseconds")
    return TorchTrace(
        path=path,
        info=CaptureInfo(
            fingerprint=fingerprint(path),
            size_bytes=path.stat().st_size,
            recorder=Recorder.TORCH,
            exporter_version=None,
            schema_version=None,
            session_start_utc_ns=base if isinstance(base, int) and 0 <= base < 1 << 63 else None,
            first_ns=None,
            last_ns=None,
            file=path.name,
        ),
        process=process,
        rank=_count(ranks, "rank"),
        world=_count(ranks, "world_size"),
        gpu_names=_gpu_names(about.get("deviceProperties")),
    )


def _merged(path: Path, callers: set[object]) -> DataError:
    pids = ", ".join(sorted(map(str, callers)))
    text = f"{path}: traces of several processes merged into one ({pids}): which GPU work is whose cannot be told"
    return DataError(text, hint="pass the traces of single ranks, one file each, in one folder")


def _behind_the_events(path: Path, names: frozenset[str] | set[str]) -> dict[str, Any]:
    """What the file says of itself behind its events, where some writers put it: looked for at its end, as text."""
    if not names:
        return {}
    with _reading(path) as file:
        tail = ""
        while piece := file.read(_TAIL_CHARS):
            tail = tail[-_TAIL_CHARS:] + piece
    found = {}
    for name in names:
        place = tail.rfind(f'"{name}"')
        value = re.compile(r"\s*:\s*").match(tail, place + len(name) + 2) if place >= 0 else None
        if value is not None:
            with suppress(ValueError):
                found[name] = json.JSONDecoder().raw_decode(tail, value.end())[0]
    return found


def is_trace(path: Path) -> bool:
    """Whether a JSON file of any name is a torch-profiler trace, as far as its head tells."""
    if not looks_like_trace(path) or path.name.endswith(ENGINE_SUFFIXES) or not path.is_file():
        return False
    with suppress(DataError), _reading(path) as file:
        head = file.read(_TAIL_CHARS // 8)
        return '"traceEvents"' in head and _PROFILERS_WORD.search(head) is not None
    return False


def looks_like_trace(path: Path) -> bool:
    """Whether the file's name says that it is a trace."""
    return path.name.lower().endswith(_TRACE_SUFFIXES)


def trace_stem(path: Path) -> str:
    """What the traces of one run share of their names: without suffixes and ranks, as engines write these."""
    stem = re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.name, flags=re.IGNORECASE)
    return re.sub(r"[-_.]?(rank|TP|DP|PP|EP|DCP)[-_.]?\d+(?![^-_.])", "", stem, flags=re.IGNORECASE).strip("-_. ")


@contextmanager
def _reading(path: Path) -> Iterator[IO[str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        # a byte that is no UTF-8 spoils one name, not the file
        with opener(path, "rt", encoding="utf-8", errors="replace") as file:
            yield file
    except JsonStreamError as error:
        raise DataError(f"{path}: damaged: {error}", hint="copy or export the trace again") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path}: damaged gzip data: {error}", hint="copy or export the trace again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _count(found: object, key: str) -> int | None:
    value = found.get(key) if isinstance(found, dict) else None
    return value if isinstance(value, int) and 0 <= value < 1 << 20 else None


def _gpu_names(found: object) -> tuple[str, ...]:
    devices = found if isinstance(found, list) else []
    return tuple(d["name"] for d in devices if isinstance(d, dict) and isinstance(d.get("name"), str))
