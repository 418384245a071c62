"""What an export to be generated looks like."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Schema(StrEnum):
    """The layout families of nsys exports, by the schema version that stands for each."""

    OLDEST = "oldest"
    V2_9 = "2.9"
    V3_0 = "3.0"
    V3_4 = "3.4"
    V3_13 = "3.13"
    V3_20 = "3.20"
    V3_24 = "3.24"
    V3_25 = "3.25"

    def __lt__(self, other: str) -> bool:
        order = list(Schema)
        return order.index(self) < order.index(Schema(other))

    def __ge__(self, other: str) -> bool:
        return not self < other


class Mode(StrEnum):
    """How CUDA graphs were traced."""

    GRAPH = "graph"
    NODE = "node"


class Fault(StrEnum):
    """What can be wrong with, or odd about, an export."""

    CORRELATION_ZERO = "correlation-zero"
    SHARED_IDS = "shared-ids"
    BACKTRACES = "backtraces"
    LAUNCHES_CUT = "launches-cut"
    OPEN_RANGES = "open-ranges"
    NEGATIVE_TIMES = "negative-times"
    NO_TIMES = "no-times"
    BACKWARDS = "backwards"
    STEPS_DOUBLED = "steps-doubled"
    STEP_NAMES_COUNT = "step-names-count"
    START_END = "start-end"
    TOOL_RANGES = "tool-ranges"
    NOT_UTF8 = "not-utf8"
    NO_MARKS = "no-marks"
    NO_NVTX = "no-nvtx"
    NO_RUNTIME = "no-runtime"
    NO_KERNEL = "no-kernel"
    NO_GPU_WORK = "no-gpu-work"
    NO_GRAPH_WORK = "no-graph-work"
    NO_PROCESSES = "no-processes"
    NO_STRINGS = "no-strings"
    GPU_ORDER = "gpu-order"
    EXTRA_COLUMNS = "extra-columns"
    EMPTY_TABLES = "empty-tables"
    PARTIAL_EXPORT = "partial-export"
    CLIPPED = "clipped"
    OLD_DRIVER = "old-driver"
    WAL = "wal"


FAULT_MEANING: dict[Fault, str] = {
    Fault.CORRELATION_ZERO: "work of CUDA graphs has correlationId 0: they were instantiated before the capture opened",
    Fault.SHARED_IDS: "all processes count their correlation ids from the same number",
    Fault.BACKTRACES: "every API call has a second row with its id, of event class 67",
    Fault.LAUNCHES_CUT: "the API rows of the first half are missing",
    Fault.OPEN_RANGES: "the last step's ranges have no end",
    Fault.NEGATIVE_TIMES: "everything begins 20 s before the session",
    Fault.NO_TIMES: "some GPU rows have start = end = 0",
    Fault.BACKWARDS: "some GPU rows end before they start",
    Fault.STEPS_DOUBLED: "every step has a second scope of the same name around its middle",
    Fault.STEP_NAMES_COUNT: "step names hold a count and differ every time",
    Fault.START_END: "steps are start/end ranges, not push/pop",
    Fault.TOOL_RANGES: "a tool's ranges, in its own domain, outnumber the program's",
    Fault.NOT_UTF8: "metadata and one kernel name are not UTF-8",
    Fault.NO_MARKS: "no process says its rank",
    Fault.NO_NVTX: "no NVTX table",
    Fault.NO_RUNTIME: "no API table",
    Fault.NO_KERNEL: "no kernel table",
    Fault.NO_GPU_WORK: "no table of GPU work at all",
    Fault.NO_GRAPH_WORK: "graph launches leave no GPU row, as before nsys 2024",
    Fault.NO_PROCESSES: "no table of processes",
    Fault.NO_STRINGS: "no table of strings",
    Fault.GPU_ORDER: "nsys numbers the GPUs the other way round than CUDA",
    Fault.EXTRA_COLUMNS: "columns and an index were added after the export",
    Fault.EMPTY_TABLES: "many tables without rows, as a non-lazy export has",
    Fault.PARTIAL_EXPORT: "metadata says that tables were left out",
    Fault.CLIPPED: "metadata says that this is a slice of a longer capture",
    Fault.OLD_DRIVER: "a diagnostic says that the driver is newer than nsys",
    Fault.WAL: "the file is in write-ahead-log mode",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """An export to be generated. ``rows`` is about how many event rows all ranks have together.

    ``is_sync``: the host waits for the GPU in every step, as before the removal of host syncs. ``alloc_share``: the
    share of steps that allocate. ``other_threads``: threads beside the main one that wait and emit ranges.
    """

    rows: int = 20_000
    ranks: int = 2
    schema: Schema = Schema.V3_20
    mode: Mode = Mode.GRAPH
    faults: frozenset[Fault] = frozenset()
    seed: int = 0
    is_sync: bool = False
    alloc_share: float = 0.35
    arm: str = "generated"

    def has(self, fault: Fault) -> bool:
        return fault in self.faults

    @property
    def has_graph_trace(self) -> bool:
        """Whether this exporter knows the graph-trace table."""
        return self.schema >= Schema.V3_13

    @property
    def steps(self) -> int:
        """Steps of each rank."""
        from generator.events import rows_per_step

        return max(3, round(self.rows / self.ranks / rows_per_step(self)))
