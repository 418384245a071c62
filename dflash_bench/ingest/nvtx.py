"""NVTX: ranges and marks, their names and domains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dflash_bench.ingest.rows import (
    UNNAMED,
    Batch,
    Skipped,
    int_column,
    labels,
    nullable,
    process_of,
    rows_of,
    thread_of,
)
from dflash_bench.ingest.tables import ABSENT, is_null
from dflash_bench.model import BoolArray, IntArray
from dflash_bench.profile import Events

if TYPE_CHECKING:
    from dflash_bench.ingest.export import Export

PUSH_POP, START_END, NVTXT_PUSH_POP, NVTXT_START_END, MARK, DOMAIN_CREATE = 59, 60, 70, 71, 34, 75


def _texts(export: Export, batch: pa.RecordBatch) -> pa.Array:
    """NVTX names: the row's own text, else the registered string behind textId. Both occur in one file."""
    own = batch.column("text").dictionary_encode()
    decoded = [value.decode("utf-8", "replace") or UNNAMED for value in own.dictionary.to_pylist()]
    place: IntArray = own.indices.to_numpy().astype(np.int64)
    is_own = int_column(batch, is_null("text")) == 0
    ids = np.where(is_own, ABSENT, int_column(batch, "textId"))
    if not np.any(ids != ABSENT):
        return labels(place, dict(enumerate(decoded)), "")
    # registered ids keep their number, own texts follow below every id that a file can hold
    label = {**export.strings, **{-2 - k: text for k, text in enumerate(decoded)}}
    return labels(np.where(ids != ABSENT, ids, -2 - place), label, "string {}")


def nvtx_batches(export: Export, skipped: Skipped) -> Iterator[Batch]:
    """Ranges and marks of an export, batch by batch."""
    numbers = {"start": None, "end": ABSENT, "eventType": None, "globalTid": None, "domainId": 0, "textId": ABSENT}
    domains = _domains(export)
    for batch in rows_of(export, "NVTX_EVENTS", numbers, skipped, ("text",)):
        kind = int_column(batch, "eventType")
        is_range = np.isin(kind, (PUSH_POP, START_END, NVTXT_PUSH_POP, NVTXT_START_END))
        yield from _ranges(export, batch, kind, is_range, domains, skipped)
        yield from _marks(export, batch, kind == MARK, domains)


def _domains(export: Export) -> dict[tuple[int, int], str]:
    """(process, domainId) → name. Domain 0 is the default domain and has no name."""
    names: dict[tuple[int, int], str] = {}
    for tid, domain, text, key in export.nvtx_rows(DOMAIN_CREATE, "globalTid", "domainId", "text", "textId"):
        if isinstance(tid, int) and isinstance(domain, int):
            names[tid >> 24, domain] = export.nvtx_text(text, key)
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
