"""One nsys SQLite export, opened read-only: which file this is, which tables it has, what it says about itself.

Exports of eight years differ in tables, columns and encodings; whatever is asked of a file is asked by name, and a
table or column that is absent is simply not there. The file is never changed: it is opened read-only and immutable, so
that no lock, journal or index appears beside it.

Values are never assumed to be UTF-8: Windows time-zone names and binary system values occur in real files.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from dflash_bench.errors import DataError
from dflash_bench.ingest.diagnostics import findings_of
from dflash_bench.ingest.events import sections, stream
from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import Batch, Skipped
from dflash_bench.ingest.source import Section
from dflash_bench.model import Finding, Recorder

SQLITE_MAGIC = b"SQLite format 3\x00"
LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
RECORDER_KEY = "DFLASH_BENCH:RECORDER"
DEVICE_KEY = "DFLASH_BENCH:DEVICE"

EVENT_TABLES = (
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
_OTHER_NSYS_TABLES = (
    "StringIds",
    "ANALYSIS_DETAILS",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "ProcessStreams",
    "OSRT_API",
)


@dataclass(frozen=True)
class Export:
    """A readable nsys export. ``tables`` maps each table that has rows' definition to its columns."""

    path: Path
    uri: str
    fingerprint: str
    size_bytes: int
    tables: dict[str, frozenset[str]]

    def __getstate__(self) -> dict[str, object]:
        # what was read on the way stays here: the string table can be large, and holds secrets
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with all of these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def rows(self, sql: str) -> list[tuple[bytes | int | float | None, ...]]:
        """A small query's rows, texts as bytes."""
        with _reading(self.path), closing(sqlite3.connect(self.uri, uri=True)) as connection:
            connection.text_factory = bytes
            return connection.execute(sql).fetchall()

    @cached_property
    def strings(self) -> dict[int, str]:
        """StringIds. It also holds the profiled process's environment: only names that events use may leave here."""
        if not self.has("StringIds", "id", "value"):
            return {}
        found = self.rows("SELECT id, CAST(value AS BLOB) FROM StringIds WHERE value IS NOT NULL")
        return {int(key): _text(value) for key, value in found if isinstance(key, int)}

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
        if not self.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            return None
        found = self.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1")
        return int(found[0][0]) if found and isinstance(found[0][0], int) else None

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Names of the GPUs in the captured machine. (Windows lists software adapters too; they have no SMs.)"""
        if not self.has("TARGET_INFO_GPU", "name"):
            return ()
        order = next((c for c in ("cuDevice", "id", "deviceId") if self.has("TARGET_INFO_GPU", c)), "rowid")
        found = self.rows(f'SELECT CAST(name AS BLOB) FROM TARGET_INFO_GPU WHERE name IS NOT NULL ORDER BY "{order}"')
        return tuple(_text(name) for (name,) in found)

    @property
    def time_range(self) -> tuple[int | None, int | None]:
        """First and last capture time, where the file says so."""
        if not self.has("ANALYSIS_DETAILS", "startTime", "stopTime"):
            return None, None
        found = self.rows("SELECT MIN(startTime), MAX(stopTime) FROM ANALYSIS_DETAILS")
        first, last = found[0]
        return (first if isinstance(first, int) else None), (last if isinstance(last, int) else None)

    def last_row(self, table: str) -> int:
        """The highest row id of a table, which in files that nsys wrote is the number of its rows; 0 without rows."""
        found = self.rows(f'SELECT MAX(rowid) FROM "{table}"')[0][0]
        return found if isinstance(found, int) else 0

    @property
    def stated(self) -> dict[int, RankMark]:
        """nsys knows no ranks: only marks among the events tell them."""
        return {}

    def rank_marks(self) -> tuple[RankMark, ...]:
        """The rank marks of the file, without reading the rest of it."""
        if not self.has("NVTX_EVENTS", "eventType"):
            return ()
        text = "CAST(text AS BLOB)" if self.has("NVTX_EVENTS", "text") else "NULL"
        key = "textId" if self.has("NVTX_EVENTS", "textId") else "NULL"
        found = self.rows(f"SELECT DISTINCT {text}, {key} FROM NVTX_EVENTS WHERE eventType = 34")
        texts = [
            _text(own) if isinstance(own, bytes) else self.strings.get(k, "") if isinstance(k, int) else ""
            for own, k in found
        ]
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
        for key, value in self.rows(f'SELECT CAST(name AS BLOB), CAST(value AS BLOB) FROM "{table}"'):
            if isinstance(key, bytes):
                yield _text(key), _text(value)


def open_export(path: Path, source: Path | None = None) -> Export:
    """Open a capture file. ``source``: the file it was made of, whose name and identity it bears.

    Raises DataError, with one sentence that names the file and what it is instead, when it is no readable nsys export.
    """
    size = _check_header(path)
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    path = source or path
    with _reading(path), closing(sqlite3.connect(uri, uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = {
            name: frozenset(
                column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))
            )
            for name in names
        }
    if not tables:
        raise DataError(f"{path}: an empty SQLite database, without any table", hint="export the report again")
    if not any(t in tables for t in (*EVENT_TABLES, *_OTHER_NSYS_TABLES)):
        some = ", ".join(sorted(tables)[:3])
        raise DataError(
            f"{path}: a SQLite database, but no nsys export (its tables: {some})", hint="pass an nsys export"
        )
    return Export(path=path, uri=uri, fingerprint=fingerprint(path), size_bytes=size, tables=tables)


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
    with _reading(path), closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    return copy


def fingerprint(path: Path) -> str:
    """Identity of a capture's content, with that of a log beside it."""
    digest = hashlib.sha256()
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # a damaged page can hold a name, or make SQLite say something, that is no UTF-8
        raise DataError(f"{path}: damaged: {error}", hint="copy or export the file again") from None


def _text(value: bytes | int | float | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _version(text: str | None) -> str | None:
    # only what looks like a version: the rows around it name hosts and users
    found = re.match(r"\d+(\.\d+)*", text or "")
    return found.group(0) if found else None
