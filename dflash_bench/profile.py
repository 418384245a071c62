"""Profiles: what ingest writes and metrics reads. `layout` says what lies in one."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from dflash_bench.errors import DataError, SchemaError, UsageError
from dflash_bench.layout import (
    FORMAT_VERSION,
    PROCESSES,
    RUN_FILE,
    SCHEMAS,
    STEPS,
    Events,
    StepTable,
    part_path,
    steps_path,
)
from dflash_bench.model import CaptureInfo, Finding, ProcessInfo, ProcessRole, RankSource, Recorder, RunInfo, RunMetrics

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Profile:
    """An ingested run on disk. ``arm``: the one of several arms that take turns in it which is looked at."""

    path: Path
    info: RunInfo
    arm: str | None = None

    def of_arm(self, arm: str) -> Profile:
        """The same run, of which the blocks of one arm alone are looked at. Raises UsageError for another arm."""
        if arm not in self.info.arms:
            known = ", ".join(self.info.arms) or f"it has one arm, {self.info.arm or 'not stated'}"
            raise UsageError(f"{self.info.run} has no blocks of an arm {arm!r}: {known}")
        # of two versions in turns each has processes of its own
        own = tuple(p for p in self.info.processes if p.arm in (None, arm) or p.arm not in self.info.arms)
        return dataclasses.replace(self, info=dataclasses.replace(self.info, arm=arm, processes=own), arm=arm)

    def events(self, table: Events, process: ProcessInfo, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of one process, in the declared schema; empty when the capture had none. ``columns``: only these.

        Raises DataError when the file cannot be read, or is gone although the run counts rows in it.
        """
        return _read_part(self._part(table, process), SCHEMAS[table], columns)

    def steps(self, rank: int, table: StepTable = StepTable.STEPS) -> pa.Table:
        """The steps of one rank as the loop counted them, in the schema `STEPS`; empty when the run has none.

        Raises as `events` does.
        """
        return _read_part(self.path / steps_path(table, rank), STEPS)

    def event_file(self, table: Events, process: ProcessInfo) -> EventFile | None:
        """The rows of one process, to be read row group by row group; None when the capture had none.

        Raises as `events` does.
        """
        path, schema = self._part(table, process), SCHEMAS[table]
        if not path.exists():
            return None
        with _opened(path, schema) as file:
            return EventFile(path, schema, file.metadata)

    def _part(self, table: Events, process: ProcessInfo) -> Path:
        path = self.path / part_path(table, process.rank, process)
        num = {
            Events.RANGES: process.num_ranges,
            Events.API_CALLS: process.num_api_calls,
            Events.GPU_WORK: process.num_gpu_work,
        }.get(table, 0)
        if num and not path.exists():
            raise DataError(f"{path} is missing: {RUN_FILE} counts {num:,} rows in it", hint="ingest the capture again")
        return path

    def samples(self, metric: str) -> pd.DataFrame:
        """The samples of a metric (``step.lead``) as a pandas frame: arm, rank, step, pair, value.

        Values are in the metric's unit, times in ns. ``step`` is the place of the sample's step among those that count,
        ``pair`` that of its pair of blocks in a duet; null where there is none. Of a duet all arms. Raises UsageError
        when the run has no such metric.
        """
        import pandas as pd

        import dflash_bench

        # a stage further on: offered by the package, not imported here
        measure: Callable[[Profile], RunMetrics] = getattr(dflash_bench, "measure")  # noqa: B009
        arms = self.info.arms if self.arm is None else ()
        runs = [measure(self.of_arm(arm)) for arm in arms] or [measure(self)]
        parts = []
        for run in runs:
            found = [m for m in run.metrics if m.name == metric]
            for own in [m for m in found if m.rank is not None] or found:
                columns = {"step": own.block, "pair": own.pair, "value": own.values}
                part = pd.DataFrame({k: pd.Series(v, index=range(len(own.values))) for k, v in columns.items()})
                parts.append(part.assign(arm=run.info.arm, rank=own.rank)[["arm", "rank", *columns]])
        if not parts:
            names = sorted({m.name for run in runs for m in run.metrics})
            near = ", ".join(get_close_matches(metric, names) or names[:5])
            raise UsageError(f"{self.info.run} has no metric {metric!r}", hint=f"it has {near}, …")
        return pd.concat(parts, ignore_index=True)

    def frame(self, table: Events | StepTable | str) -> pd.DataFrame:
        """All ranks of one table as a pandas frame with a ``rank`` column, of events ``process`` too, for notebooks."""
        import pandas as pd

        if table in list(StepTable):
            own = StepTable(table)
            parts = [self.steps(rank, own).to_pandas().assign(rank=rank) for rank in self.info.ranks]
            schema = STEPS
        else:
            parts = [
                self.events(Events(table), p).to_pandas().assign(rank=p.rank, process=p.process)
                for p in self.info.processes
            ]
            schema = SCHEMAS[Events(table)]
        return pd.concat(parts, ignore_index=True) if parts else schema.empty_table().to_pandas()


Span = tuple[int, int]
"""The least and the greatest value of something."""

EVERYTHING: Span = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class EventFile:
    """One table of one process, read row group by row group: for files that are larger than memory."""

    path: Path
    schema: pa.Schema
    metadata: pq.FileMetaData

    @property
    def num_groups(self) -> int:
        return int(self.metadata.num_row_groups)

    def num_rows(self, group: int) -> int:
        """Rows of a group."""
        return int(self.metadata.row_group(group).num_rows)

    def span(self, group: int, column: str) -> Span:
        """The least and the greatest value of an integer column in a group, as far as the file states them."""
        stated = self.metadata.row_group(group).column(self.schema.get_field_index(column)).statistics
        if stated is None or not stated.has_min_max:
            return EVERYTHING
        return int(stated.min), int(stated.max)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of a row group, in the declared schema. Raises DataError when they cannot be read."""
        with _opened(self.path, self.schema, self.metadata) as file:
            pa.default_memory_pool().release_unused()
            there = [name for name in columns if name in file.schema_arrow.names]
            return _whole(file.read_row_group(group, columns=there, use_threads=False), self.schema, columns)


def _read_part(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    if not path.exists():
        # not Schema.empty_table(), which imports pandas
        found = pa.Table.from_batches([], schema)
        return found if columns is None else found.select(list(columns))
    with _opened(path, schema) as file:
        wanted = schema.names if columns is None else list(columns)
        return _whole(file.read([name for name in wanted if name in file.schema_arrow.names]), schema, wanted)


def _whole(rows: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """The rows with the columns that an older format lacks, which are null."""
    if rows.column_names == list(columns):
        return rows
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(schema.field(name), pa.nulls(len(rows), schema.field(name).type))
    return rows.select(list(columns))


@contextmanager
def _opened(path: Path, schema: pa.Schema, metadata: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """An open part of a profile. Raises SchemaError for other columns, DataError for what Arrow cannot read in it."""
    try:
        with pq.ParquetFile(path, metadata=metadata) as file:
            there = file.schema_arrow
            if not there.equals(pa.schema([f for f in schema if f.name in there.names or not f.nullable])):
                text = f"{path}: columns differ from profile format {FORMAT_VERSION}"
                raise SchemaError(text, hint="ingest the capture again")
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}", hint="ingest the capture again") from None


def is_profile(path: Path) -> bool:
    """Whether the folder is a profile."""
    return (path / RUN_FILE).is_file()


def open_profile(path: Path | str) -> Profile:
    """Open the profile in a folder.

    Raises DataError when it is none, SchemaError when it was written by a format this version does not read.
    """
    path = Path(path)
    file = path / RUN_FILE
    try:
        raw: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is not a profile: it has no {RUN_FILE}", hint=f"dflash-bench ingest {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", hint="ingest the capture again") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version is None:
        raise DataError(f"{file} is not of a profile: it states no format", hint="dflash-bench ingest CAPTURE")
    if version not in range(1, FORMAT_VERSION + 1):
        text = f"{file} has profile format {version}; this version reads 1 to {FORMAT_VERSION}"
        raise SchemaError(text, hint="ingest the capture again")
    try:
        return Profile(path, _run_from_json(raw))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file} is damaged: {error!r}", hint="ingest the capture again") from None


def write_run(path: Path, info: RunInfo) -> None:
    """Write ``run.json`` and ``processes.parquet`` into a profile folder that is being built."""
    pq.write_table(_processes(info), path / "processes.parquet")
    content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(info)}
    (path / RUN_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _processes(info: RunInfo) -> pa.Table:
    if not info.processes:
        return PROCESSES.empty_table()
    # by way of JSON: to make Arrow arrays of Python objects imports pandas, which takes longer than a small ingest
    lines = "\n".join(json.dumps(dataclasses.asdict(p)) for p in info.processes)
    options = {
        "read_options": pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        "parse_options": pa_json.ParseOptions(explicit_schema=PROCESSES),
    }
    return pa_json.read_json(io.BytesIO(lines.encode()), **options).cast(PROCESSES)


def _run_from_json(raw: dict[str, Any]) -> RunInfo:
    content = {k: v for k, v in raw.items() if k != "format_version"}
    content["devices"], content["arms"] = tuple(raw["devices"]), tuple(raw.get("arms", ()))
    content["captures"] = tuple(CaptureInfo(**{**c, "recorder": Recorder(c["recorder"])}) for c in raw["captures"])
    content["processes"] = tuple(
        ProcessInfo(
            **{
                **p,
                "rank_source": RankSource(p["rank_source"]) if p["rank_source"] else None,
                "role": ProcessRole(p["role"]) if p.get("role") else None,
            }
        )
        for p in raw["processes"]
    )
    content["findings"] = tuple(Finding(**f) for f in raw["findings"])
    info = RunInfo(**content)
    for part in (info, *info.captures, *info.processes, *info.findings):
        for name, kind in get_type_hints(type(part)).items():
            if not _fits(getattr(part, name), kind):
                raise ValueError(f"{name} is {getattr(part, name)!r}")
    return info


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of a type as the fields of the run's dataclasses declare them."""
    outer, inner = get_origin(kind), get_args(kind)
    if outer is dict:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if outer is tuple:
        return isinstance(value, tuple) and all(_fits(v, inner[0]) for v in value)
    if outer is not None:  # X | None and its kin
        return any(_fits(value, each) for each in inner)
    return isinstance(value, (int, float) if kind is float else kind)
