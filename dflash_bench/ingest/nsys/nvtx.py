"""NVTX: ranges and marks, their names and domains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dflash_bench.capture.tables import ExportTable
from dflash_bench.ingest.nsys.columns import RowChoice, int_column, rows_of
from dflash_bench.ingest.nsys.export import Export
from dflash_bench.ingest.nsys.tables import NvtxEvent, is_null
from dflash_bench.ingest.rows import (
    ABSENT,
    UNNAMED,
    Batch,
    Skipped,
    chosen,
    ints,
    labels,
    nullable,
    process_of,
    thread_of,
    values_of,
)
from dflash_bench.layout import Events
from dflash_bench.model import BoolArray, IntArray

_START_END = (NvtxEvent.START_END, NvtxEvent.NVTXT_START_END)
_RANGES = (NvtxEvent.PUSH_POP, NvtxEvent.NVTXT_PUSH_POP, *_START_END)


def _texts(export: Export, batch: pa.RecordBatch, keep: RowChoice, skipped: Skipped) -> pa.Array:
    """NVTX names: the row's own text, else the registered string behind textId. Both occur in one file."""
    column = batch.column("text")
    own = (column if isinstance(keep, slice) else column.take(ints(keep))).dictionary_encode()
    registered = ints(int_column(batch, "textId")[keep]).dictionary_encode()
    ids = values_of(registered.dictionary).tolist()
    decoded = [value.decode("utf-8", "replace") or UNNAMED for value in own.dictionary.to_pylist()]
    is_registered = (int_column(batch, "textId")[keep] != ABSENT) & (int_column(batch, is_null("text"))[keep] != 0)
    # one numbering for both: first the registered strings, then the rows' own texts
    keys = np.where(is_registered, values_of(registered.indices), len(ids) + values_of(own.indices)).astype(np.int64)

    def text_of(key: int) -> str:
        if key >= len(ids):
            return decoded[key - len(ids)]
        return export.strings.get(ids[key], f"string {ids[key]}") or UNNAMED

    if missing := [key for key, own_id in enumerate(ids) if own_id not in export.strings]:
        skipped.add("name_missing", int(np.isin(keys, missing).sum()))
    return labels(keys, text_of)


def nvtx_batches(export: Export, skipped: Skipped) -> Iterator[Batch]:
    """Ranges and marks of an export, batch by batch."""
    numbers = {"start": None, "end": ABSENT, "eventType": None, "globalTid": None, "domainId": 0, "textId": ABSENT}
    domains, num_ranges = _domains(export), 0
    for batch in rows_of(export, ExportTable.NVTX_EVENTS, numbers, skipped, ("text",)):
        kind = int_column(batch, "eventType")
        is_range = np.isin(kind, _RANGES)
        yield from _ranges(export, batch, kind, is_range, domains, skipped)
        yield from _marks(export, batch, kind == NvtxEvent.MARK, domains, skipped)
        num_ranges += int(is_range.sum())
    if not num_ranges:
        skipped.add("ranges_lost", len(domains))


def _domains(export: Export) -> dict[tuple[int, int], str]:
    """(process, domainId) → name. Domain 0 is the default domain and has no name."""
    names: dict[tuple[int, int], str] = {}
    for tid, domain, text, key in export.nvtx_rows(NvtxEvent.DOMAIN_CREATE, "globalTid", "domainId", "text", "textId"):
        if isinstance(tid, int) and isinstance(domain, int):
            names[tid >> 24, domain] = export.nvtx_text(text, key)
    return names


def _domain_names(batch: pa.RecordBatch, keep: RowChoice, domains: dict[tuple[int, int], str]) -> pa.Array:
    process = ints(process_of(int_column(batch, "globalTid")[keep])).dictionary_encode()
    domain = ints(int_column(batch, "domainId")[keep]).dictionary_encode()
    of_process, of_domain = values_of(process.dictionary), values_of(domain.dictionary)
    pairs = values_of(process.indices).astype(np.int64) * len(of_domain) + values_of(domain.indices)

    def name_of(pair: int) -> str:
        own, number = divmod(pair, len(of_domain))
        key = int(of_process[own]), int(of_domain[number])
        return domains.get(key, f"domain {key[1]}" if key[1] else "")

    return labels(pairs, name_of)


def _ranges(
    export: Export,
    batch: pa.RecordBatch,
    kind: IntArray,
    is_range: BoolArray,
    domains: dict[tuple[int, int], str],
    skipped: Skipped,
) -> Iterator[Batch]:
    start, end = int_column(batch, "start"), int_column(batch, "end")
    backwards = is_range & (start != ABSENT) & (end != ABSENT) & (end < start)
    skipped.add("range_ends_before_start", int(backwards.sum()))
    skipped.add("range_without_time", int((is_range & (start == ABSENT)).sum()))
    keep = chosen(is_range & ~backwards & (start != ABSENT))
    ids = int_column(batch, "globalTid")[keep]
    if not len(ids):
        return
    skipped.add("range_open_at_end", int((end[keep] == ABSENT).sum()))
    is_start_end = np.isin(kind[keep], _START_END).astype(np.int64)
    yield Batch(
        Events.RANGES,
        process_of(ids),
        {
            "thread": ints(thread_of(ids)),
            "domain": _domain_names(batch, keep, domains),
            "name": _texts(export, batch, keep, skipped),
            "kind": labels(is_start_end, ("push_pop", "start_end").__getitem__),
            "start_ns": ints(start[keep]),
            "end_ns": nullable(end[keep]),
        },
    )


def _marks(
    export: Export, batch: pa.RecordBatch, is_mark: BoolArray, domains: dict[tuple[int, int], str], skipped: Skipped
) -> Iterator[Batch]:
    keep = chosen(is_mark & (int_column(batch, "start") != ABSENT))
    ids = int_column(batch, "globalTid")[keep]
    if not len(ids):
        return
    columns = {
        "thread": ints(thread_of(ids)),
        "domain": _domain_names(batch, keep, domains),
        "text": _texts(export, batch, keep, skipped),
        "start_ns": ints(int_column(batch, "start")[keep]),
    }
    yield Batch(Events.MARKS, process_of(ids), columns)
