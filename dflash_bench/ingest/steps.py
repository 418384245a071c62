"""The steps that the built-in loop counted itself: ``rank<R>.steps.csv`` beside the captures, as typed tables.

The file of a rank is looked for beside the capture that holds the rank, so that a profile can be built again from its
raw captures; below it, in ``unprofiled/``, lies what the arm did without any tool, where that was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dflash_bench.errors import DataError, SchemaError
from dflash_bench.layout import STEPS, StepTable, steps_path
from dflash_bench.model import RankSource, RunInfo

_ALL_RANKS = "all_ranks"
UNPROFILED_FOLDER = "unprofiled"


def _read_steps(path: Path) -> pa.Table:
    """The steps in a CSV file, in the schema `STEPS`. Columns that this version does not know are left out.

    Raises DataError when the file cannot be read, SchemaError when it lacks a column.
    """
    types = {f.name: f.type for f in STEPS}
    options = pa_csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    try:
        found = pa_csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as a table of steps: {error}", hint="make the run again") from None
    for name in ("arm", "pair"):  # of a duet
        if name not in found.column_names:
            found = found.append_column(name, pa.nulls(len(found), STEPS.field(name).type))
    if missing := [name for name in STEPS.names if name not in found.column_names]:
        raise SchemaError(f"{path}: a table of steps without {', '.join(missing)}", hint="make the run again")
    if empty := [f.name for f in STEPS if not f.nullable and found.column(f.name).null_count]:
        raise DataError(f"{path}: {', '.join(empty)} is not stated for every step", hint="make the run again")
    return found.select(STEPS.names).cast(STEPS)


def write_steps(captures: Sequence[Path], info: RunInfo, folder: Path) -> None:
    """Write the step tables found beside the captures of a run into a profile that is being built.

    ``captures`` in the order of ``ProcessInfo.capture``. Raises as `_read_steps` does.
    """
    by_target: dict[Path, list[Path]] = {}
    for table, rank, path in _files(captures, info):
        by_target.setdefault(folder / steps_path(table, rank), []).append(path)
    for target, paths in by_target.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        # two versions of the code that took turns have a file each
        pq.write_table(pa.concat_tables(map(_read_steps, paths)), target, compression="zstd")


def _files(captures: Sequence[Path], info: RunInfo) -> Iterator[tuple[StepTable, int, Path]]:
    for process in info.processes:
        if process.rank is None or process.rank_source is not RankSource.MARK:
            continue
        capture, name = captures[process.capture], f"rank{process.rank}"
        # a folder can hold captures of other runs too: only names that the built-in loop's runs give are taken
        if capture.stem not in (name, _ALL_RANKS):
            continue
        for table, beside in (
            (StepTable.STEPS, capture.parent),
            (StepTable.UNPROFILED, capture.parent / UNPROFILED_FOLDER),
        ):
            if (path := beside / f"{name}.steps.csv").is_file():
                yield table, process.rank, path
