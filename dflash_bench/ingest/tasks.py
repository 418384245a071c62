"""An ingest as independent tasks: one per section of a capture file, each a plain function of what pickles.

The tasks of a run, and so the bytes of its profile, depend on the captures alone: not on how many processes share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_bench.duet import duet_mark
from dflash_bench.errors import DataError
from dflash_bench.ingest.ranks import RankMark
from dflash_bench.ingest.rows import Batch, Skipped, values_of
from dflash_bench.ingest.source import Section, Source
from dflash_bench.ingest.writers import Writers
from dflash_bench.layout import Events

_MAX_FILES = 900
"""Files that a task writes at most, one per table and process: a program may have 1,024 open where nobody says more."""

OnRows = Callable[[int], None]
"""Called with the number of rows that were read since the last call."""


@dataclass(frozen=True, slots=True)
class Task:
    """One section of a capture, to be written into the profile that is being built in ``folder``.

    ``capture`` is the file's place among the captures of the run.
    """

    source: Source
    section: Section
    capture: int
    folder: Path


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task wrote and met.

    ``counts``: rows by (table, process); ``marks``: ranks by process; ``arms``: those that take turns in a duet.
    """

    counts: dict[tuple[Events, int], int]
    marks: dict[int, RankMark]
    skipped: Skipped
    arms: tuple[str, ...] = ()


def plan(exports: Sequence[Source], folder: Path) -> tuple[Task, ...]:
    """The tasks of a run, capture by capture."""
    return tuple(
        Task(export, section, capture, folder)
        for capture, export in enumerate(exports)
        for section in export.sections()
    )


def run_task(task: Task, on_rows: OnRows | None = None) -> TaskResult:
    """Read a section and write its rows, one Parquet file per table and process.

    Raises DataError when the capture is damaged, or its processes are too many to be true, and OSError when the rows
    cannot be written.
    """
    skipped, marks, arms = Skipped(), dict[int, RankMark](), list[str]()
    with ExitStack() as stack:
        writers = Writers(task.folder, task.capture, stack)
        for batch in task.source.stream(skipped, task.section):
            writers.add(batch)
            if len(writers.counts) > _MAX_FILES:
                raise DataError(
                    f"{task.source.path}: holds rows of more than {_MAX_FILES} processes, which no run has",
                    hint="copy or export the file again",
                )
            if batch.table is Events.MARKS:
                marks |= _rank_marks(batch)
                arms += [
                    found.arm for text in batch.columns["text"].dictionary.to_pylist() if (found := duet_mark(text))
                ]
            if on_rows is not None:
                on_rows(len(batch.process))
        writers.close()
    return TaskResult(writers.counts, marks, skipped, tuple(dict.fromkeys(arms)))


def _rank_marks(batch: Batch) -> dict[int, RankMark]:
    texts, found = batch.columns["text"], dict[int, RankMark]()
    for position, text in enumerate(texts.dictionary.to_pylist()):
        if (mark := RankMark.parse(text)) is not None:
            rows = np.flatnonzero(values_of(texts.indices) == position)
            found |= {int(process): mark for process in np.unique(batch.process[rows])}
    return found
