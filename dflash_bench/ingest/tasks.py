"""An ingest as independent tasks: one per section of a capture file, each a plain function of what pickles.

The tasks of a run, and so the bytes of its profile, depend on the captures alone: not on how many processes share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from dflash_bench.duet import duet_mark
from dflash_bench.errors import DataError
from dflash_bench.ingest.ranks import RankMark, engine_stated, warning_stated
from dflash_bench.ingest.rows import Batch, Skipped, values_of
from dflash_bench.ingest.source import Section, Source
from dflash_bench.ingest.writers import Writers
from dflash_bench.layout import Events

_MAX_FILES = 900
"""Files that a task writes at most, one per table and process: a program may have 1,024 open where nobody says more."""

Told = TypeVar("Told")
_OnRows = Callable[[int], None]
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
    """What a task wrote and met. ``counts``: rows by (table, process); ``marks``: ranks by process; ``duets``: the arms
    that a process ran in turn."""

    counts: dict[tuple[Events, int], int]
    marks: dict[int, RankMark]
    skipped: Skipped
    duets: dict[int, frozenset[str]]
    engines: frozenset[str] = frozenset()
    warnings: frozenset[str] = frozenset()


def plan(exports: Sequence[Source], folder: Path) -> tuple[Task, ...]:
    """The tasks of a run, capture by capture."""
    return tuple(
        Task(export, section, capture, folder)
        for capture, export in enumerate(exports)
        for section in export.sections()
    )


def run_task(task: Task, on_rows: _OnRows | None = None) -> TaskResult:
    """Read a section and write its rows, one Parquet file per table and process.

    Raises DataError when the capture is damaged, or its processes are too many to be true, and OSError when the rows
    cannot be written.
    """
    skipped, marks, duets = Skipped(), dict[int, RankMark](), dict[int, frozenset[str]]()
    engines, warnings = frozenset[str](), frozenset[str]()
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
                marks |= {process: mark for mark, own in _told_by(batch, RankMark.parse) for process in own}
                engines |= {engine for engine, _ in _told_by(batch, engine_stated)}
                warnings |= {warning for warning, _ in _told_by(batch, warning_stated)}
                for mark, own in _told_by(batch, duet_mark):
                    duets |= {process: duets.get(process, frozenset()) | {mark.arm} for process in own}
            if on_rows is not None:
                on_rows(len(batch.process))
        writers.close()
    return TaskResult(writers.counts, marks, skipped, duets, engines, warnings)


def _told_by(batch: Batch, read: Callable[[str], Told | None]) -> Iterator[tuple[Told, list[int]]]:
    """What marks say, as far as ``read`` makes something of their text, with the processes that say so."""
    texts = batch.columns["text"]
    for position, text in enumerate(texts.dictionary.to_pylist()):
        if (told := read(text)) is not None:
            rows = np.flatnonzero(values_of(texts.indices) == position)
            yield told, np.unique(batch.process[rows]).tolist()
