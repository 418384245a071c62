"""Rows on their way from a capture to a profile: batches of one event table, and the columns they are made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash_bench.layout import Events
from dflash_bench.model import BoolArray, Finding, IntArray

BATCH_ROWS = 1 << 16
"""Rows per batch: 65,536 rows of the widest query are about 5 MB, and larger batches read no faster."""

ABSENT = -(1 << 63)
"""Stands for NULL in a batch."""

_VERSION_SUFFIX = re.compile(r"_v\d+$")

_FOLDERS = re.compile(
    r"(?<![\w.])(?:~|[A-Za-z]:)?[/\\](?:[^/\\:()\s]*[/\\])*?"
    r"(?:(?:site|dist)-packages[/\\]|(?=[^/\\:()\s]*(?:[:()\s]|$)))"
)

_SKIPPED = {
    "table_without_columns": "rows lie in tables without a column that they mean nothing without, and were left out",
    "table_without_ids": "rows lie in tables without the column of an id, and were read as if all had one and the same",
    "name_missing": "rows have a name that the file does not hold, and are shown by its number or without one",
    "ranges_lost": "NVTX domains were opened and not one range is there: the nvtx package and this nsys may not match",
    "range_open_at_end": "ranges were still open when the capture ended: they are in no figure of durations",
    "gpu_work_without_device": "graph replays begin on the host, without a device: they count for one of their own",
    "range_without_time": "ranges have no start or length and were left out",
    "range_ends_before_start": "NVTX ranges end before they start and were left out",
    "api_call_ends_before_start": "API calls end before they start and were left out",
    "gpu_work_ends_before_start": "GPU rows end before they start and were left out",
    "overhead_ends_before_start": "overhead rows end before they start and were left out",
    "api_call_without_time": "API calls have no start or end and were left out",
    "gpu_work_without_time": "GPU rows have no timestamps (CUPTI writes 0) and were left out",
    "overhead_without_time": "overhead rows have no start or end and were left out",
    "operator_without_time": "operators or Python frames have no start or length and were left out",
    "operator_ends_before_start": "operators or Python frames end before they start and were left out",
    "api_row_is_backtrace": "API rows are backtraces that repeat a call's id; they are no calls and were left out",
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

    def add_all(self, other: Skipped) -> None:
        for code, count in other.counts.items():
            self.add(code, count)

    def findings(self, rank: int | None) -> tuple[Finding, ...]:
        """What was left out while reading, and why. ``rank``: the file's, None if it holds several."""
        return tuple(Finding(code, rank, n, f"{n:,} {_SKIPPED[code]}") for code, n in sorted(self.counts.items()))


# Between Arrow and NumPy by way of the buffers: `pa.array` and `to_numpy` import pandas to ask what it knows, which
# costs every process 0.4 s and 40 MB.


def values_of(column: pa.Array) -> IntArray:
    """The integers of a column without nulls, int64 [n] or int32 [n] as they are stored. Nothing is copied."""
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def ints(values: IntArray) -> pa.Array:
    """A column of integers without nulls."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def nullable(values: IntArray) -> pa.Array:
    """A column of integers in which `ABSENT` is null."""
    is_valid = values != ABSENT
    if is_valid.all():
        return ints(values)
    bits = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def _texts(values: Sequence[str]) -> pa.Array:
    """A column of texts without nulls."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def process_of(ids: IntArray) -> IntArray:
    """Process id of each globalTid or globalPid: the thread id is in bits 0–23, process and machine above."""
    return ids >> 24


def thread_of(ids: IntArray) -> IntArray:
    """Thread id of each globalTid."""
    return ids & 0xFFFFFF


def without_version(name: str) -> str:
    """The name of an API call without the suffix that nsys gives some (``cudaLaunchKernel_v7000``)."""
    return _VERSION_SUFFIX.sub("", name)


def without_folders(text: str) -> str:
    """A text with files in place of their absolute paths: folders name users. Of a package its own folders stay."""
    return _FOLDERS.sub("", text)


UNNAMED = "(unnamed)"
"""The name of a range that has none: NVTX allows it."""


def constant(text: str, n: int) -> pa.Array:
    """A name column with one text n times."""
    return _names(np.zeros(n, np.int32), [text])


def labels(keys: IntArray, text_of: Callable[[int], str]) -> pa.Array:
    """Names for integer keys; only names in use enter the dictionary, since the string table holds secrets too."""
    encoded = ints(keys).dictionary_encode()
    found = [text_of(key) for key in values_of(encoded.dictionary).tolist()]
    place = {text: position for position, text in enumerate(dict.fromkeys(found))}
    codes = np.fromiter((place[text] for text in found), np.int32, len(found))
    return _names(codes[values_of(encoded.indices)], list(place))


def _names(codes: npt.NDArray[np.int32], found: Sequence[str]) -> pa.Array:
    indices = pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)])
    return pa.DictionaryArray.from_arrays(indices, _texts(found))


def chosen(mask: BoolArray) -> IntArray | slice:
    """Where a mask is true: as positions, or as a slice where it is true everywhere, which costs no copy."""
    return slice(None) if mask.all() else np.flatnonzero(mask)
