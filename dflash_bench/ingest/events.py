"""From the tables of an export to event tables: one streamed query per source table, batch by batch.

ADBC hands over Arrow record batches without a Python object per cell. It takes a column's type from the first batch, so
every nullable column goes through COALESCE with a sentinel, and texts travel as bytes (they need not be UTF-8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa

from dflash_bench.errors import DataError
from dflash_bench.ingest.export import Export
from dflash_bench.model import BoolArray, IntArray
from dflash_bench.profile import Events

BATCH_ROWS = 1 << 16
"""Rows per batch: 65,536 rows of the widest query are about 5 MB, and larger batches read no faster."""

ABSENT = -(1 << 63)
"""Stands for NULL inside a query."""

API_VERSION_SUFFIX = re.compile(r"_v\d+$")
PUSH_POP, START_END, NVTXT_PUSH_POP, NVTXT_START_END, MARK, DOMAIN_CREATE = 59, 60, 70, 71, 34, 75
MEMCPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one event table. ``process`` int64 [n] tells whose they are; ``columns`` follow the table's schema."""

    table: Events
    process: IntArray
    columns: dict[str, pa.Array]


@dataclass(slots=True)
class Skipped:
    """Rows of an export that are no events, counted by reason. The one mutable thing here: it grows while streaming."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, code: str, count: int) -> None:
        if count:
            self.counts[code] = self.counts.get(code, 0) + count


def stream(export: Export, skipped: Skipped) -> Iterator[Batch]:
    """All events of an export. Raises DataError when the file is damaged or a column holds what it must not."""
    try:
        with adbc_driver_sqlite.dbapi.connect(export.uri) as connection:
            yield from _nvtx(export, connection, skipped)
            yield from _api_calls(export, connection, skipped)
            yield from _kernels(export, connection, skipped)
            yield from _copies(export, connection, skipped)
            yield from _graphs(export, connection, skipped)
            yield from _overhead(export, connection, skipped)
    except (adbc_driver_manager.Error, OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].removeprefix("[SQLite] ")
        raise DataError(f"{export.path}: damaged: {reason}", hint="copy or export the file again") from None


def _query(connection: object, sql: str) -> Iterator[pa.RecordBatch]:
    cursor = connection.cursor(adbc_stmt_kwargs={"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})  # type: ignore[attr-defined]
    try:
        cursor.execute(sql)
        yield from cursor.fetch_record_batch()
    finally:
        cursor.close()


def _select(export: Export, table: str, columns: dict[str, int | None], where: str = "") -> str | None:
    """SQL for integer columns by name; an absent or NULL one becomes its default. None: the table cannot be read.

    A column whose default is None must exist; without it the rows mean nothing.
    """
    if table not in export.tables or any(d is None and c not in export.tables[table] for c, d in columns.items()):
        return None
    parts = []
    for column, default in columns.items():
        fallback = ABSENT if default is None else default
        known = column in export.tables[table]
        parts.append(f'COALESCE("{column}", {fallback}) AS "{column}"' if known else f'{fallback} AS "{column}"')
    return f'SELECT {", ".join(parts)} FROM "{table}" {where}'


def _int(batch: pa.RecordBatch, column: str) -> IntArray:
    found: IntArray = batch.column(column).to_numpy(zero_copy_only=False)
    if found.dtype != np.int64:
        raise pa.ArrowInvalid(f"column {column} holds {found.dtype} where integers belong")
    return found


def _process(ids: IntArray) -> IntArray:
    # globalTid and globalPid: thread id in bits 0–23, process and machine above
    return ids >> 24


def _thread(ids: IntArray) -> IntArray:
    return ids & 0xFFFFFF


def _nullable(values: IntArray) -> pa.Array:
    return pa.array(values, mask=values == ABSENT)


UNNAMED = "(unnamed)"
"""The name of a range that has none: NVTX allows it."""


def _constant(text: str, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), pa.array([text], pa.string()))


def _labels(keys: IntArray, label: dict[int, str], missing: str) -> pa.Array:
    """Names for integer keys; only names in use enter the dictionary, since the string table holds secrets too."""
    used, index = np.unique(keys, return_inverse=True)
    texts = [label.get(int(key), missing.format(int(key))) for key in used]
    merged = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    place = np.fromiter((merged[text] for text in texts), np.int32, len(texts))
    return pa.DictionaryArray.from_arrays(place[index].astype(np.int32), pa.array(list(merged), pa.string()))


def _texts(export: Export, batch: pa.RecordBatch) -> pa.Array:
    """NVTX names: the row's own text, else the registered string behind textId. Both occur in one file."""
    own = batch.column("text").dictionary_encode()
    decoded = [value.decode("utf-8", "replace") or UNNAMED for value in own.dictionary.to_pylist()]
    place: IntArray = own.indices.to_numpy().astype(np.int64)
    ids = _int(batch, "textId")
    if not np.any(ids != ABSENT):
        return _labels(place, dict(enumerate(decoded)), "")
    # registered ids keep their number, own texts follow below every id that a file can hold
    label = {**export.strings, **{-2 - k: text for k, text in enumerate(decoded)}}
    return _labels(np.where(ids != ABSENT, ids, -2 - place), label, "string {}")


def _nvtx(export: Export, connection: object, skipped: Skipped) -> Iterator[Batch]:
    if not export.has("NVTX_EVENTS", "start", "eventType", "globalTid"):
        return
    numbers = {"start": None, "end": ABSENT, "eventType": None, "globalTid": None, "domainId": 0}
    sql = _select(export, "NVTX_EVENTS", numbers, "")
    has_text, has_id = export.has("NVTX_EVENTS", "text"), export.has("NVTX_EVENTS", "textId")
    text = "CAST(COALESCE(text, '') AS BLOB) AS text" if has_text else "CAST('' AS BLOB) AS text"
    own = "CASE WHEN text IS NULL THEN COALESCE(textId, {0}) ELSE {0} END" if has_text else "COALESCE(textId, {0})"
    text_id = own.format(ABSENT) if has_id else str(ABSENT)
    assert sql is not None
    sql = sql.replace(" FROM ", f", {text}, {text_id} AS textId FROM ", 1)
    domains = _domains(export)
    for batch in _query(connection, sql):
        kind = _int(batch, "eventType")
        is_range = np.isin(kind, (PUSH_POP, START_END, NVTXT_PUSH_POP, NVTXT_START_END))
        yield from _ranges(export, batch, kind, is_range, domains, skipped)
        yield from _marks(export, batch, kind == MARK, domains)


def _domains(export: Export) -> dict[tuple[int, int], str]:
    """(process, domainId) → name. Domain 0 is the default domain and has no name."""
    name = "CAST(COALESCE(text, '') AS BLOB)" if export.has("NVTX_EVENTS", "text") else "CAST('' AS BLOB)"
    text_id = "textId" if export.has("NVTX_EVENTS", "textId") else "NULL"
    if not export.has("NVTX_EVENTS", "domainId"):
        return {}
    found = export.rows(
        f"SELECT globalTid, domainId, {name}, {text_id} FROM NVTX_EVENTS WHERE eventType = {DOMAIN_CREATE}"
    )
    names: dict[tuple[int, int], str] = {}
    for tid, domain, text, key in found:
        if isinstance(tid, int) and isinstance(domain, int):
            own = text.decode("utf-8", "replace") if isinstance(text, bytes) else ""
            names[tid >> 24, domain] = own or (export.strings.get(key, "") if isinstance(key, int) else "")
    return names


def _domain_names(batch: pa.RecordBatch, keep: IntArray, domains: dict[tuple[int, int], str]) -> pa.Array:
    process, domain = _process(_int(batch, "globalTid"))[keep], _int(batch, "domainId")[keep]
    pairs, index = np.unique(np.stack([process, domain]), axis=1, return_inverse=True)
    label = {k: domains.get((int(p), int(d)), "" if d == 0 else f"domain {d}") for k, (p, d) in enumerate(pairs.T)}
    return _labels(index.reshape(-1).astype(np.int64), label, "")


def _ranges(
    export: Export,
    batch: pa.RecordBatch,
    kind: IntArray,
    is_range: BoolArray,
    domains: dict[tuple[int, int], str],
    skipped: Skipped,
) -> Iterator[Batch]:
    start, end = _int(batch, "start"), _int(batch, "end")
    backwards = is_range & (end != ABSENT) & (end < start)
    skipped.add("range_ends_before_start", int(backwards.sum()))
    keep = np.flatnonzero(is_range & ~backwards & (start != ABSENT))
    if not len(keep):
        return
    ids = _int(batch, "globalTid")[keep]
    yield Batch(
        Events.RANGES,
        _process(ids),
        {
            "thread": pa.array(_thread(ids)),
            "domain": _domain_names(batch, keep, domains),
            "name": _texts(export, batch.take(pa.array(keep))),
            "kind": _labels(
                np.isin(kind[keep], (START_END, NVTXT_START_END)).astype(np.int64), {0: "push_pop", 1: "start_end"}, ""
            ),
            "start_ns": pa.array(start[keep]),
            "end_ns": _nullable(end[keep]),
        },
    )


def _marks(
    export: Export, batch: pa.RecordBatch, is_mark: BoolArray, domains: dict[tuple[int, int], str]
) -> Iterator[Batch]:
    keep = np.flatnonzero(is_mark & (_int(batch, "start") != ABSENT))
    if not len(keep):
        return
    ids = _int(batch, "globalTid")[keep]
    columns = {
        "thread": pa.array(_thread(ids)),
        "domain": _domain_names(batch, keep, domains),
        "text": _texts(export, batch.take(pa.array(keep))),
        "start_ns": pa.array(_int(batch, "start")[keep]),
    }
    yield Batch(Events.MARKS, _process(ids), columns)


def _usable(batch: pa.RecordBatch, skipped: Skipped, what: str, *, zero_is_absent: bool = False) -> IntArray:
    """Rows with a start, an end, and end ≥ start. CUPTI writes start = end = 0 for "no timestamp"."""
    start, end = _int(batch, "start"), _int(batch, "end")
    absent = (start == ABSENT) | (end == ABSENT)
    if zero_is_absent:
        absent |= (start == 0) & (end == 0)
    backwards = ~absent & (end < start)
    skipped.add(f"{what}_without_time", int(absent.sum()))
    skipped.add(f"{what}_ends_before_start", int(backwards.sum()))
    return np.flatnonzero(~absent & ~backwards)


def _api_calls(export: Export, connection: object, skipped: Skipped) -> Iterator[Batch]:
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    columns = {"start": None, "end": None, "globalTid": None, "correlationId": None, "nameId": None, "eventClass": 0}
    sql = _select(export, table, columns)
    if sql is None:
        return
    names = {key: API_VERSION_SUFFIX.sub("", text) for key, text in export.strings.items()}
    for batch in _query(connection, sql):
        keep = _usable(batch, skipped, "api_call")
        is_call = np.isin(_int(batch, "eventClass")[keep], (0, 1))
        skipped.add("api_row_is_backtrace", int((~is_call).sum()))
        keep = keep[is_call]
        ids = _int(batch, "globalTid")[keep]
        yield Batch(
            Events.API_CALLS,
            _process(ids),
            {
                "thread": pa.array(_thread(ids)),
                "correlation_id": pa.array(_int(batch, "correlationId")[keep]),
                "name": _labels(_int(batch, "nameId")[keep], names, "api {}"),
                "start_ns": pa.array(_int(batch, "start")[keep]),
                "end_ns": pa.array(_int(batch, "end")[keep]),
            },
        )


_WORK = {"start": None, "end": None, "deviceId": 0, "streamId": 0, "correlationId": 0, "globalPid": None}


def _work(batch: pa.RecordBatch, keep: IntArray, kind: str, name: pa.Array, **extra: IntArray) -> Batch:
    def nothing() -> IntArray:
        return np.full(len(keep), ABSENT, np.int64)

    return Batch(
        Events.GPU_WORK,
        _process(_int(batch, "globalPid")[keep]),
        {
            "device": pa.array(_int(batch, "deviceId")[keep]),
            "stream": pa.array(_int(batch, "streamId")[keep]),
            "correlation_id": pa.array(_int(batch, "correlationId")[keep]),
            "kind": _constant(kind, len(keep)),
            "name": name,
            "start_ns": pa.array(_int(batch, "start")[keep]),
            "end_ns": pa.array(_int(batch, "end")[keep]),
            **{c: _nullable(extra.get(c, nothing())) for c in ("graph_exec_id", "graph_node_id", "bytes")},
        },
    )


def _kernels(export: Export, connection: object, skipped: Skipped) -> Iterator[Batch]:
    columns = {**_WORK, "shortName": ABSENT, "graphNodeId": ABSENT}
    if sql := _select(export, "CUPTI_ACTIVITY_KIND_KERNEL", columns):
        for batch in _query(connection, sql):
            keep = _usable(batch, skipped, "gpu_work", zero_is_absent=True)
            name = _labels(_int(batch, "shortName")[keep], export.strings, "kernel {}")
            yield _work(batch, keep, "kernel", name, graph_node_id=_int(batch, "graphNodeId")[keep])


def _copies(export: Export, connection: object, skipped: Skipped) -> Iterator[Batch]:
    columns = {**_WORK, "copyKind": 0, "graphNodeId": ABSENT, "bytes": ABSENT}
    labels = {key: f"memcpy {text}" for key, text in MEMCPY_KINDS.items()}
    if sql := _select(export, "CUPTI_ACTIVITY_KIND_MEMCPY", columns):
        for batch in _query(connection, sql):
            keep = _usable(batch, skipped, "gpu_work", zero_is_absent=True)
            name = _labels(_int(batch, "copyKind")[keep], labels, "memcpy kind {}")
            extra = {"graph_node_id": _int(batch, "graphNodeId")[keep], "bytes": _int(batch, "bytes")[keep]}
            yield _work(batch, keep, "memcpy", name, **extra)
    columns = {**_WORK, "graphNodeId": ABSENT, "bytes": ABSENT}
    if sql := _select(export, "CUPTI_ACTIVITY_KIND_MEMSET", columns):
        for batch in _query(connection, sql):
            keep = _usable(batch, skipped, "gpu_work", zero_is_absent=True)
            extra = {"graph_node_id": _int(batch, "graphNodeId")[keep], "bytes": _int(batch, "bytes")[keep]}
            yield _work(batch, keep, "memset", _constant("memset", len(keep)), **extra)


def _graphs(export: Export, connection: object, skipped: Skipped) -> Iterator[Batch]:
    columns = {**_WORK, "graphExecId": ABSENT}
    if sql := _select(export, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns):
        for batch in _query(connection, sql):
            keep = _usable(batch, skipped, "gpu_work", zero_is_absent=True)
            exec_id = _int(batch, "graphExecId")[keep]
            yield _work(batch, keep, "graph", _constant("graph", len(keep)), graph_exec_id=exec_id)


def _overhead(export: Export, connection: object, skipped: Skipped) -> Iterator[Batch]:
    columns = {"start": None, "end": None, "globalTid": None, "nameId": ABSENT}
    for table in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        if sql := _select(export, table, columns):
            for batch in _query(connection, sql):
                keep = _usable(batch, skipped, "overhead")
                ids = _int(batch, "globalTid")[keep]
                yield Batch(
                    Events.OVERHEAD,
                    _process(ids),
                    {
                        "thread": pa.array(_thread(ids)),
                        "name": _labels(_int(batch, "nameId")[keep], export.strings, "overhead {}"),
                        "start_ns": pa.array(_int(batch, "start")[keep]),
                        "end_ns": pa.array(_int(batch, "end")[keep]),
                    },
                )
