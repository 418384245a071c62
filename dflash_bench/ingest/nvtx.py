"""NVTX: ranges and marks, their names and domains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dflash_bench.ingest.rows import (
    ABSENT,
    UNNAMED,
    Batch,
    Skipped,
    int_column,
    labels,
    nullable,
    process_of,
    query,
    select,
    thread_of,
)
from dflash_bench.model import BoolArray, IntArray
from dflash_bench.profile import Events

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcConnection

    from dflash_bench.ingest.export import Export

PUSH_POP, START_END, NVTXT_PUSH_POP, NVTXT_START_END, MARK, DOMAIN_CREATE = 59, 60, 70, 71, 34, 75


def _texts(export: Export, batch: pa.RecordBatch) -> pa.Array:
    """NVTX names: the row's own text, else the registered string behind textId. Both occur in one file."""
    own = batch.column("text").dictionary_encode()
    decoded = [value.decode("utf-8", "replace") or UNNAMED for value in own.dictionary.to_pylist()]
    place: IntArray = own.indices.to_numpy().astype(np.int64)
    ids = int_column(batch, "textId")
    if not np.any(ids != ABSENT):
        return labels(place, dict(enumerate(decoded)), "")
    # registered ids keep their number, own texts follow below every id that a file can hold
    label = {**export.strings, **{-2 - k: text for k, text in enumerate(decoded)}}
    return labels(np.where(ids != ABSENT, ids, -2 - place), label, "string {}")


def nvtx_batches(export: Export, connection: AdbcConnection, skipped: Skipped) -> Iterator[Batch]:
    """Ranges and marks of an export, batch by batch."""
    if not export.has("NVTX_EVENTS", "start", "eventType", "globalTid"):
        return
    numbers = {"start": None, "end": ABSENT, "eventType": None, "globalTid": None, "domainId": 0}
    sql = select(export, "NVTX_EVENTS", numbers, "")
    has_text, has_id = export.has("NVTX_EVENTS", "text"), export.has("NVTX_EVENTS", "textId")
    text = "CAST(COALESCE(text, '') AS BLOB) AS text" if has_text else "CAST('' AS BLOB) AS text"
    own = "CASE WHEN text IS NULL THEN COALESCE(textId, {0}) ELSE {0} END" if has_text else "COALESCE(textId, {0})"
    text_id = own.format(ABSENT) if has_id else str(ABSENT)
    assert sql is not None
    sql = sql.replace(" FROM ", f", {text}, {text_id} AS textId FROM ", 1)
    domains = _domains(export)
    for batch in query(connection, sql):
        kind = int_column(batch, "eventType")
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
    process, domain = process_of(int_column(batch, "globalTid"))[keep], int_column(batch, "domainId")[keep]
    pairs, index = np.unique(np.stack([process, domain]), axis=1, return_inverse=True)
    label = {k: domains.get((int(p), int(d)), "" if d == 0 else f"domain {d}") for k, (p, d) in enumerate(pairs.T)}
    return labels(index.reshape(-1).astype(np.int64), label, "")


def _ranges(
    export: Export,
    batch: pa.RecordBatch,
    kind: IntArray,
    is_range: BoolArray,
    domains: dict[tuple[int, int], str],
    skipped: Skipped,
) -> Iterator[Batch]:
    start, end = int_column(batch, "start"), int_column(batch, "end")
    backwards = is_range & (end != ABSENT) & (end < start)
    skipped.add("range_ends_before_start", int(backwards.sum()))
    keep = np.flatnonzero(is_range & ~backwards & (start != ABSENT))
    if not len(keep):
        return
    ids = int_column(batch, "globalTid")[keep]
    yield Batch(
        Events.RANGES,
        process_of(ids),
        {
            "thread": pa.array(thread_of(ids)),
            "domain": _domain_names(batch, keep, domains),
            "name": _texts(export, batch.take(pa.array(keep))),
            "kind": labels(
                np.isin(kind[keep], (START_END, NVTXT_START_END)).astype(np.int64), {0: "push_pop", 1: "start_end"}, ""
            ),
            "start_ns": pa.array(start[keep]),
            "end_ns": nullable(end[keep]),
        },
    )


def _marks(
    export: Export, batch: pa.RecordBatch, is_mark: BoolArray, domains: dict[tuple[int, int], str]
) -> Iterator[Batch]:
    keep = np.flatnonzero(is_mark & (int_column(batch, "start") != ABSENT))
    if not len(keep):
        return
    ids = int_column(batch, "globalTid")[keep]
    columns = {
        "thread": pa.array(thread_of(ids)),
        "domain": _domain_names(batch, keep, domains),
        "text": _texts(export, batch.take(pa.array(keep))),
        "start_ns": pa.array(int_column(batch, "start")[keep]),
    }
    yield Batch(Events.MARKS, process_of(ids), columns)
