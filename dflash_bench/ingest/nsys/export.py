"""One nsys export, opened read-only: which file or folder this is, and what it says about itself.

Exports of eight years differ in tables, columns and encodings; whatever is asked of one is asked by name, and a table
or column that is absent is simply not there. How its tables are stored is `tables.Tables`' business.

Values are never assumed to be UTF-8: Windows time-zone names and binary system values occur in real files.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from dflash_bench.errors import DataError
from dflash_bench.ingest.nsys.diagnostics import findings_of
from dflash_bench.ingest.nsys.events import sections, stream
from dflash_bench.ingest.nsys.folder_tables import FolderTables, table_files
from dflash_bench.ingest.nsys.nvtx import MARK
from dflash_bench.ingest.nsys.sqlite_tables import SqliteTables, reading
from dflash_bench.ingest.nsys.tables import NSYS_TABLES, Cell, Tables
from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import Batch, Skipped
from dflash_bench.ingest.source import Section
from dflash_bench.model import Finding, Recorder

SQLITE_MAGIC = b"SQLite format 3\x00"
LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
RECORDER_KEY = "DFLASH_BENCH:RECORDER"
DEVICE_KEY = "DFLASH_BENCH:DEVICE"


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
        if not self.has("NVTX_EVENTS", "eventType"):
            return []
        known = [c for c in columns if self.has("NVTX_EVENTS", c)]
        found = self.stored.distinct("NVTX_EVENTS", known, ("eventType", kind)) if known else []
        places = [known.index(c) if c in known else None for c in columns]
        return [tuple(None if p is None else row[p] for p in places) for row in found]

    def nvtx_text(self, text: Cell, key: Cell) -> str:
        """The name that an NVTX row bears: its own text, else the registered string."""
        return _text(text) if isinstance(text, bytes) else self.strings.get(key, "") if isinstance(key, int) else ""

    @cached_property
    def strings(self) -> dict[int, str]:
        """StringIds. It also holds the profiled process's environment: only names that events use may leave here."""
        found = self.cells("StringIds", "id", "value")
        return {key: _text(value) for key, value in found if isinstance(key, int) and value is not None}

    @cached_property
    def about_export(self) -> dict[str, str]:
        """What the exporter says of itself; empty in the oldest files."""
        table = next((t for t in ("META_DATA_EXPORT", "EXPORT_META_DATA") if self.has(t, "name", "value")), None)
        return {} if table is None else dict(self._pairs(table))

    @cached_property
    def about_capture(self) -> dict[str, tuple[str, ...]]:
        """Capture options, each with all its values (some repeat). Holds private rows: read single keys, echo none."""
        found: dict[str, tuple[str, ...]] = {}
        if self.has("META_DATA_CAPTURE", "name", "value"):
            for key, value in self._pairs("META_DATA_CAPTURE"):
                found[key] = (*found.get(key, ()), value)
        return found

    @property
    def recorder(self) -> Recorder:
        return Recorder.BUILTIN if RECORDER_KEY in self.about_capture else Recorder.NSYS

    @property
    def is_simulated(self) -> bool:
        """Whether GPU work in this file comes from the simulated device."""
        return "simulated" in self.about_capture.get(DEVICE_KEY, ())

    @property
    def exporter_version(self) -> str | None:
        return _version(self.about_export.get("EXPORT_PRODUCT_VERSION"))

    @property
    def schema_version(self) -> str | None:
        return _version(self.about_export.get("EXPORT_SCHEMA_VERSION"))

    @property
    def session_start_utc_ns(self) -> int | None:
        found = self.cells("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        return int(found[0][0]) if found and isinstance(found[0][0], int) else None

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Names of the GPUs in the captured machine. (Windows lists software adapters too; they have no SMs.)"""
        order = next((c for c in ("cuDevice", "id", "deviceId") if self.has("TARGET_INFO_GPU", c)), "name")
        found = [(name, place) for name, place in self.cells("TARGET_INFO_GPU", "name", order) if name is not None]
        found.sort(key=lambda gpu: gpu[1] if isinstance(gpu[1], int) else -1)
        return tuple(_text(name) for name, _ in found)

    @property
    def time_range(self) -> tuple[int | None, int | None]:
        """First and last capture time, where the file says so."""
        found = self.cells("ANALYSIS_DETAILS", "startTime", "stopTime")
        first = [start for start, _ in found if isinstance(start, int)]
        last = [stop for _, stop in found if isinstance(stop, int)]
        return min(first, default=None), max(last, default=None)

    @property
    def stated(self) -> dict[int, RankMark]:
        """nsys knows no ranks: only marks among the events tell them."""
        return {}

    def rank_marks(self) -> tuple[RankMark, ...]:
        """The rank marks of the file, without reading the rest of it."""
        texts = [self.nvtx_text(text, key) for text, key in self.nvtx_rows(MARK, "text", "textId")]
        return tuple(mark for text in texts if (mark := RankMark.parse(text)) is not None)

    def sections(self) -> tuple[Section, ...]:
        """NVTX, API calls, GPU work and overhead, where the file has them (`events.sections`)."""
        return sections(self)

    def stream(self, skipped: Skipped, section: Section | None = None) -> Iterator[Batch]:
        """The events of a section, or all (`events.stream`)."""
        return stream(self, skipped, section)

    def findings(self, skipped: Skipped, rank: int | None) -> tuple[Finding, ...]:
        """What the file gives to know (`diagnostics.findings_of`)."""
        return findings_of(self, skipped, rank)

    def _pairs(self, table: str) -> Iterator[tuple[str, str]]:
        for key, value in self.cells(table, "name", "value"):
            if isinstance(key, bytes):
                yield _text(key), _text(value)


def open_export(path: Path, source: Path | None = None) -> Export:
    """Open an export: an SQLite file or a folder of tables. ``source``: the report it was made of, whose name it bears.

    Raises DataError, with one sentence that names the file and what it is instead, when it is no readable nsys export.
    """
    name = source or path
    if path.is_dir():
        folder = FolderTables.of(path, name)
        size = sum(file.stat().st_size for file in folder.files.values())
        return Export(name, _known(folder, name, "a folder of tables"), fingerprint(name), size)
    size = _check_header(path)
    return Export(name, _known(SqliteTables.of(path, name), name, "a SQLite database"), fingerprint(name), size)


def _known(stored: Tables, path: Path, what: str) -> Tables:
    """The tables, when they are those of nsys."""
    if not stored.columns:
        raise DataError(f"{path}: {what.replace('a ', 'an empty ', 1)}, without any table", hint="export it again")
    if not NSYS_TABLES & stored.columns.keys():
        some = ", ".join(sorted(stored.columns)[:3])
        raise DataError(f"{path}: {what}, but no nsys export (its tables: {some})", hint="pass an nsys export")
    return stored


def is_folder_export(path: Path) -> bool:
    """Whether a folder holds tables of nsys as files. One that cannot be looked into does not."""
    with suppress(OSError):
        return path.is_dir() and any(file.stem in NSYS_TABLES for file in table_files(path))
    return False


def unsettled(path: Path) -> list[Path]:
    """The write-ahead log or rollback journal beside a SQLite file: what it holds is part of the content."""
    logs = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    return [log for log in logs if log.exists() and log.stat().st_size > 0]


def settled(path: Path, scratch: Path) -> Path:
    """The file itself, or, when a log lies beside it, a copy in ``scratch`` that the log is worked into.

    Opening such a file in place would write beside it, and would fail in a folder that cannot be written.
    """
    logs = unsettled(path)
    if not logs:
        return path
    copy = scratch / path.name
    for file in (path, *logs):
        shutil.copyfile(file, scratch / file.name)
    with reading(path), closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    return copy


def fingerprint(path: Path) -> str:
    """Identity of a capture's content, with that of a log beside it; of a folder, that of its tables' files."""
    digest = hashlib.sha256()
    if path.is_dir():
        for file in table_files(path):
            digest.update(file.name.encode("utf-8", "surrogateescape"))
            _sample(file, digest)
        return digest.hexdigest()[:32]
    for file in (path, *unsettled(path)):
        _sample(file, digest)
    return digest.hexdigest()[:32]


def _sample(path: Path, digest: hashlib._Hash) -> None:
    """Hash a file's size, its first and last MiB and 64 samples in between.

    Hashing gigabytes whole would cost as much as reading them. Any change that SQLite makes alters the first page.
    """
    size = path.stat().st_size
    digest.update(str(size).encode())
    edge, piece = 1 << 20, 1 << 14
    with path.open("rb") as file:
        digest.update(file.read(edge))
        if size > 2 * edge:
            for k in range(64):
                file.seek(edge + (size - 2 * edge) * k // 64)
                digest.update(file.read(piece))
        if size > edge:
            file.seek(max(edge, size - edge))
            digest.update(file.read())


def _check_header(path: Path) -> int:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes)", hint="export the report again")
    if head.startswith(LFS_MAGIC):
        raise DataError(f"{path}: a Git LFS pointer, not the capture itself", hint="git lfs pull")
    if not head.startswith(SQLITE_MAGIC):
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
