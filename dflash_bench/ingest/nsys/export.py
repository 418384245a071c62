"""One nsys export, opened read-only: which file or folder this is, and what it says about itself.

Exports of eight years differ in tables, columns and encodings; whatever is asked of one is asked by name, and a table
or column that is absent is simply not there. How its tables are stored is `tables.Tables`' business.

Values are never assumed to be UTF-8: Windows time-zone names and binary system values occur in real files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from dflash_bench.capture.tables import ExportTable
from dflash_bench.errors import DataError
from dflash_bench.ingest.nsys.tables import NSYS_TABLES, Cell, Tables
from dflash_bench.ingest.rows import without_folders
from dflash_bench.model import CaptureInfo, Recorder

_SQLITE_MAGIC = b"SQLite format 3\x00"
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
_RECORDER_KEY = "DFLASH_BENCH:RECORDER"
_DEVICE_KEY = "DFLASH_BENCH:DEVICE"

_BELOW_THE_PROGRAM = re.compile(r"lib(cupti|cuda|cudart|nvToolsExt|ToolsInjection|Tools|c|pthread)[-.]")
"""Modules whose frames are no code of the program's."""
_MAX_FRAMES = 8
_TITLE = re.compile(r"(sglang|vllm)::", re.IGNORECASE)
"""What engines call their processes: ``sglang::scheduler``, ``VLLM::EngineCore``; a thread's name keeps 15 of it."""


@dataclass(frozen=True)
class Export:
    """A readable nsys export. ``path`` is what a person calls it, which for a converted report is the report."""

    path: Path
    stored: Tables
    fingerprint: str
    size_bytes: int

    def __getstate__(self) -> dict[str, object]:
        # what was read on the way stays here: the string table can be large, and holds secrets
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """Each table's columns."""
        return self.stored.columns

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with all of these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def cells(self, table: str, *columns: str) -> list[tuple[Cell, ...]]:
        """The rows of a small table, texts as bytes; empty when the table or one of the columns is not there."""
        return self.stored.cells(table, columns) if self.has(table, *columns) else []

    def nvtx_rows(self, kind: int, *columns: str) -> list[tuple[Cell, ...]]:
        """The different NVTX rows of one event type, None for columns that the export lacks."""
        if not self.has(ExportTable.NVTX_EVENTS, "eventType"):
            return []
        known = [c for c in columns if self.has(ExportTable.NVTX_EVENTS, c)]
        found = self.stored.distinct(ExportTable.NVTX_EVENTS, known, ("eventType", kind)) if known else []
        places = [known.index(c) if c in known else None for c in columns]
        return [tuple(None if p is None else row[p] for p in places) for row in found]

    def nvtx_text(self, text: Cell, key: Cell) -> str:
        """The name that an NVTX row bears: its own text, else the registered string."""
        return _text(text) if isinstance(text, bytes) else self.strings.get(key, "") if isinstance(key, int) else ""

    @cached_property
    def strings(self) -> dict[int, str]:
        """StringIds. It also holds the profiled process's environment: only names that events use may leave here."""
        found = self.cells(ExportTable.STRING_IDS, "id", "value")
        return {key: _text(value) for key, value in found if isinstance(key, int) and value is not None}

    @cached_property
    def call_chains(self) -> dict[int, str]:
        """Each call chain as one text: the program's frames, innermost first, without those of CUDA and nsys."""
        frames: dict[int, list[tuple[int, str]]] = {}
        columns = "id", "stackDepth", "symbol", "module"
        for key, depth, symbol, module in self.cells(ExportTable.CUDA_CALLCHAINS, *columns):
            if isinstance(key, int) and isinstance(depth, int) and isinstance(symbol, int):
                file = without_folders(self.strings.get(module, "") if isinstance(module, int) else "")
                name = without_folders(self.strings.get(symbol, ""))
                if name and not name.startswith("0x") and not _BELOW_THE_PROGRAM.match(file):
                    frames.setdefault(key, []).append((depth, f"{name} ({file})" if file else name))
        return {k: " < ".join(text for _, text in sorted(own)[:_MAX_FRAMES]) for k, own in frames.items()}

    @cached_property
    def about_export(self) -> dict[str, str]:
        """What the exporter says of itself; empty in the oldest files."""
        names = ExportTable.META_DATA_EXPORT, ExportTable.OLD_META_DATA_EXPORT
        table = next((t for t in names if self.has(t, "name", "value")), None)
        return {} if table is None else dict(self._pairs(table))

    @cached_property
    def about_capture(self) -> dict[str, tuple[str, ...]]:
        """Capture options, each with all its values (some repeat). Holds private rows: read single keys, echo none."""
        found: dict[str, tuple[str, ...]] = {}
        if self.has(ExportTable.META_DATA_CAPTURE, "name", "value"):
            for key, value in self._pairs(ExportTable.META_DATA_CAPTURE):
                found[key] = (*found.get(key, ()), value)
        return found

    @property
    def is_simulated(self) -> bool:
        """Whether GPU work in this file comes from the simulated device."""
        return "simulated" in self.about_capture.get(_DEVICE_KEY, ())

    @property
    def schema_version(self) -> str | None:
        return _version(self.about_export.get("EXPORT_SCHEMA_VERSION"))

    @cached_property
    def info(self) -> CaptureInfo:
        """What a profile says of the file."""
        times = self.cells(ExportTable.ANALYSIS_DETAILS, "startTime", "stopTime")
        epoch = self.cells(ExportTable.SESSION_START, "utcEpochNs")
        return CaptureInfo(
            fingerprint=self.fingerprint,
            size_bytes=self.size_bytes,
            recorder=Recorder.BUILTIN if _RECORDER_KEY in self.about_capture else Recorder.NSYS,
            exporter_version=_version(self.about_export.get("EXPORT_PRODUCT_VERSION")),
            schema_version=self.schema_version,
            session_start_utc_ns=int(epoch[0][0]) if epoch and isinstance(epoch[0][0], int) else None,
            first_ns=min((start for start, _ in times if isinstance(start, int)), default=None),
            last_ns=max((stop for _, stop in times if isinstance(stop, int)), default=None),
            file=self.path.name,
        )

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Names of the GPUs in the captured machine. (Windows lists software adapters too; they have no SMs.)"""
        order = next((c for c in ("cuDevice", "id", "deviceId") if self.has(ExportTable.GPUS, c)), "name")
        found = [(name, place) for name, place in self.cells(ExportTable.GPUS, "name", order) if name is not None]
        found.sort(key=lambda gpu: gpu[1] if isinstance(gpu[1], int) else -1)
        return tuple(_text(name) for name, _ in found)

    @property
    def engines(self) -> dict[int, str]:
        """Process → the engine whose title a thread of it has. Names are there of all of a machine's threads."""
        return {
            tid >> 24: found[1].lower()
            for tid, key in self.cells("ThreadNames", "globalTid", "nameId")
            if isinstance(tid, int) and isinstance(key, int) and (found := _TITLE.match(self.strings.get(key, "")))
        }

    def _pairs(self, table: str) -> Iterator[tuple[str, str]]:
        for key, value in self.cells(table, "name", "value"):
            if isinstance(key, bytes):
                yield _text(key), _text(value)


def check_is_nsys(stored: Tables, path: Path, what: str) -> None:
    """Raises DataError when the tables are none of nsys."""
    if not stored.columns:
        raise DataError(f"{path}: {what.replace('a ', 'an empty ', 1)}, without any table", hint="export it again")
    if not NSYS_TABLES & stored.columns.keys():
        some = ", ".join(sorted(stored.columns)[:3])
        raise DataError(f"{path}: {what}, but no nsys export (its tables: {some})", hint="pass an nsys export")


def check_header(path: Path) -> int:
    """The size of an SQLite file. Raises DataError when it is none, or not all of it is there."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes)", hint="export the report again")
    if head.startswith(_LFS_MAGIC):
        raise DataError(f"{path}: a Git LFS pointer, not the capture itself", hint="git lfs pull")
    if not head.startswith(_SQLITE_MAGIC):
        raise DataError(f"{path}: not a SQLite database ({_looks_like(head)})", hint="pass an nsys SQLite export")
    page_size = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page_size == 1 else page_size)
    if size < expected or len(head) < 100:
        raise DataError(
            f"{path}: truncated: {size:,} of {expected:,} bytes are there", hint="copy or export the file again"
        )
    return size


def _looks_like(head: bytes) -> str:
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "an HTML page, as a failed download leaves"
    if text.startswith((b"<?xml", b"<")):
        return "XML or HTML text"
    if text.startswith((b"{", b"[")):
        return "JSON text"
    if head.startswith(b"PK"):
        return "a ZIP archive"
    if head.startswith(b"\x1f\x8b"):
        return "gzip data: unpack it first"
    return "unknown content"


def _text(value: Cell) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _version(text: str | None) -> str | None:
    # only what looks like a version: the rows around it name hosts and users
    found = re.match(r"\d+(\.\d+)*", text or "")
    return found.group(0) if found else None
