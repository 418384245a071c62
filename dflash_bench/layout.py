"""What lies where in a profile, and with which columns.

A profile is a folder, whole or not there::

    profiles/<run>/
      run.json                            what the run is (RunInfo), format version beside it
      ranges/rank=0/….parquet             NVTX push/pop and start/end ranges
      api_calls/…                         CUDA runtime and driver API calls
      gpu_work/…                          kernels, copies, memsets, graph replays, as rows of the capture
      marks/…                             NVTX marks
      overhead/…                          what the profiler itself cost
      operators/…                         operators and Python frames that a torch trace holds
      stacks/…                            which code made an API call, where the capture holds its call chain
      steps/rank=0/steps.parquet          what the built-in loop counted itself, one row a step; only for its runs
      unprofiled_steps/…                  the same of the arm's run without any tool, where one was made
      figures/…                           what was measured of it, while nothing of it changes (`metrics.cache`)
      processes.parquet                   the processes, their ranks, and where the rank was read

The folders are Hive-partitioned: ``pandas.read_parquet("profiles/x/ranges")`` or DuckDB read them as they are. Rows of
a process without a rank lie in ``rank=__HIVE_DEFAULT_PARTITION__``. Every Parquet file carries its format version.

Rows may come in any order, as in the captures that they are from. Files larger than memory are read row group by row
group, by the least and greatest ``start_ns`` and ``correlation_id`` that each group states: what lies near in time
should lie near in the file, since as many groups are held at once as overlap in time.

Format history (``FORMAT_VERSION``); all of them are read, columns that a file lacks as null
  1  first version; ``steps`` and ``unprofiled_steps`` came later: a reader that does not know them misses only them
  2  ``operators``, ``stacks``; ``return_value`` of API calls; ``arm`` and ``pair`` of the loop's steps; of processes
     ``group`` and ``role``, of captures ``file``, of runs ``arms``
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from dflash_bench.model import ProcessInfo

FORMAT_VERSION = 2
_NO_RANK = "__HIVE_DEFAULT_PARTITION__"
RUN_FILE = "run.json"
FIGURES = "figures"
"""The folder of what was measured, which can be made again."""

NAME = pa.dictionary(pa.int32(), pa.string())
"""Names repeat millions of times: stored once, referred to by index."""


class Events(StrEnum):
    """The event tables, one folder each."""

    RANGES = "ranges"
    API_CALLS = "api_calls"
    GPU_WORK = "gpu_work"
    MARKS = "marks"
    OVERHEAD = "overhead"
    OPERATORS = "operators"
    STACKS = "stacks"


class StepTable(StrEnum):
    """What the built-in loop counted itself, one row a step and one file a rank."""

    STEPS = "steps"
    """Of the recorded run."""
    UNPROFILED = "unprofiled_steps"
    """Of a run of the same arm without any tool: what tracing costs is read from the two."""


def _schema(*fields: tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields],
        metadata={b"dflash_bench.format_version": str(FORMAT_VERSION).encode()},
    )


SCHEMAS: dict[Events, pa.Schema] = {
    # end_ns is null for a range that was still open when the capture closed (censored, never zero long)
    Events.RANGES: _schema(
        ("thread", pa.int64(), False),
        ("domain", NAME, False),
        ("name", NAME, False),
        ("kind", NAME, False),  # push_pop | start_end
        ("start_ns", pa.int64(), False),
        ("end_ns", pa.int64(), True),
    ),
    # name is without the version suffix (`_v7000`); correlation_id is unique only inside a process
    Events.API_CALLS: _schema(
        ("thread", pa.int64(), False),
        ("correlation_id", pa.int64(), False),
        ("name", NAME, False),
        ("start_ns", pa.int64(), False),
        ("end_ns", pa.int64(), False),
        ("return_value", pa.int64(), True),  # 0: success, 600: not ready; null where the capture has none
    ),
    # one row per row of the capture: a graph traced node by node has many rows with one correlation_id
    Events.GPU_WORK: _schema(
        ("device", pa.int64(), False),
        ("stream", pa.int64(), False),
        ("correlation_id", pa.int64(), False),
        ("kind", NAME, False),  # kernel | memcpy | memset | graph
        ("name", NAME, False),
        ("start_ns", pa.int64(), False),
        ("end_ns", pa.int64(), False),
        ("graph_exec_id", pa.int64(), True),
        ("graph_node_id", pa.int64(), True),
        ("bytes", pa.int64(), True),
    ),
    Events.MARKS: _schema(
        ("thread", pa.int64(), False),
        ("domain", NAME, False),
        ("text", NAME, False),
        ("start_ns", pa.int64(), False),
    ),
    Events.OVERHEAD: _schema(
        ("thread", pa.int64(), False),
        ("name", NAME, False),
        ("start_ns", pa.int64(), False),
        ("end_ns", pa.int64(), False),
    ),
    Events.OPERATORS: _schema(
        ("thread", pa.int64(), False),
        ("kind", NAME, False),  # operator | python
        ("name", NAME, False),  # aten::copy_ | scheduler.py(123): run_batch
        ("start_ns", pa.int64(), False),
        ("end_ns", pa.int64(), False),
    ),
    # frames of the program, innermost first, " < " between them: prepare (batch.py) < run_batch (scheduler.py)
    Events.STACKS: _schema(
        ("thread", pa.int64(), False),
        ("correlation_id", pa.int64(), False),
        ("start_ns", pa.int64(), False),
        ("frames", NAME, False),
    ),
}
# null: not measured at this step. A step's committed tokens are those of the result processed in it, of the step before
STEPS = _schema(
    ("step", pa.int64(), False),
    ("start_ns", pa.int64(), False),  # the machine's monotonic clock, not the capture's
    ("period_ns", pa.int64(), False),  # until the next step starts; of the last step until it ends
    ("running", pa.int64(), False),
    ("committed_tokens", pa.int64(), False),
    ("processed", pa.int64(), False),
    ("allocated_tokens", pa.int64(), False),
    ("free_tokens", pa.int64(), False),
    ("swa_free_tokens", pa.int64(), True),
    ("topup_pages", pa.int64(), True),
    ("guard_ratio", pa.float64(), True),
    ("retracted", pa.int64(), False),
    ("arm", pa.string(), True),  # of a duet: null outside its blocks
    ("pair", pa.int64(), True),
)
PROCESSES = _schema(
    ("process", pa.int64(), False),
    ("pid", pa.int64(), False),
    ("capture", pa.int64(), False),
    ("rank", pa.int64(), True),
    ("rank_source", pa.string(), True),
    ("world", pa.int64(), True),
    ("arm", pa.string(), True),
    ("group", pa.string(), True),
    ("role", pa.string(), True),  # core | worker
    ("num_ranges", pa.int64(), False),
    ("num_api_calls", pa.int64(), False),
    ("num_gpu_work", pa.int64(), False),
)


def part_path(table: Events, rank: int | None, process: ProcessInfo) -> Path:
    """Where the rows of a process lie, relative to the profile. A process id can recur in another capture."""
    partition = _NO_RANK if rank is None else str(rank)
    return Path(table) / f"rank={partition}" / f"capture{process.capture}-process{process.process}.parquet"


def steps_path(table: StepTable, rank: int) -> Path:
    """Where the steps of a rank lie, relative to the profile."""
    return Path(table) / f"rank={rank}" / "steps.parquet"
