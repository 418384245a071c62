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
    V3_7 = "3.7"
    V3_13 = "3.13"
    V3_16 = "3.16"
    V3_17 = "3.17"
    V3_20 = "3.20"
    V3_24 = "3.24"
    V3_25 = "3.25"

    def __lt__(self, other: str) -> bool:
        order = list(Schema)
        return order.index(self) < order.index(Schema(other))

    def __ge__(self, other: str) -> bool:
        return not self < other


class Mode(StrEnum):
    """How CUDA graphs were traced: each replay as one row, kernel by kernel, or one graph so and the other so."""

    GRAPH = "graph"
    NODE = "node"
    MIXED = "mixed"


class Fault(StrEnum):
    """What can be wrong with, or odd about, an export."""

    CORRELATION_ZERO = "correlation-zero"
    CORRELATION_ZERO_DRAFT = "correlation-zero-draft"
    KERNELS_UNCORRELATED = "kernels-uncorrelated"
    GRAPH_IDS_REUSED = "graph-ids-reused"
    HOST_FIRST_NODE = "host-first-node"
    SHARED_IDS = "shared-ids"
    BACKTRACES = "backtraces"
    DUPLICATE_CALLS = "duplicate-calls"
    LAUNCHES_CUT = "launches-cut"
    WORK_CUT = "work-cut"
    STEPS_IDLE = "steps-idle"
    ONE_RANK_TRACED = "one-rank-traced"
    CUDA_ELSEWHERE = "cuda-elsewhere"
    DRIVER_CALLS_ONLY = "driver-calls-only"
    NO_AGREEMENT = "no-agreement"
    OWN_CLOCKS = "own-clocks"
    NO_SESSION_START = "no-session-start"
    OPEN_RANGES = "open-ranges"
    NEGATIVE_TIMES = "negative-times"
    NO_TIMES = "no-times"
    BACKWARDS = "backwards"
    STEPS_DOUBLED = "steps-doubled"
    STEP_NAMES_COUNT = "step-names-count"
    START_END = "start-end"
    TOOL_RANGES = "tool-ranges"
    RANGES_LOST = "ranges-lost"
    NOT_UTF8 = "not-utf8"
    NO_MARKS = "no-marks"
    NO_NVTX = "no-nvtx"
    NO_RUNTIME = "no-runtime"
    NO_KERNEL = "no-kernel"
    NO_GPU_WORK = "no-gpu-work"
    NO_GRAPH_WORK = "no-graph-work"
    NO_PROCESSES = "no-processes"
    NO_STRINGS = "no-strings"
    STRINGS_CUT = "strings-cut"
    NO_GLOBAL_PID = "no-global-pid"
    GPU_ORDER = "gpu-order"
    EXTRA_COLUMNS = "extra-columns"
    EMPTY_TABLES = "empty-tables"
    UNKNOWN_SCHEMA = "unknown-schema"
    PARTIAL_EXPORT = "partial-export"
    CLIPPED = "clipped"
    OLD_DRIVER = "old-driver"
    DIAGNOSTICS = "diagnostics"
    WAL = "wal"


FAULT_MEANING: dict[Fault, str] = {
    Fault.CORRELATION_ZERO: "work of CUDA graphs has correlationId 0: they were instantiated before the capture opened",
    Fault.CORRELATION_ZERO_DRAFT: "work of the draft graph alone has correlationId 0",
    Fault.KERNELS_UNCORRELATED: "every tenth kernel outside graphs has correlationId 0",
    Fault.GRAPH_IDS_REUSED: "half way the graphs are made anew, and each gets the id that the other one had",
    Fault.HOST_FIRST_NODE: "device and context of the draft graph are INT_MAX, as CUPTI writes for a host node",
    Fault.SHARED_IDS: "all processes count their correlation ids from the same number",
    Fault.BACKTRACES: "every API call has a second row with its id, of event class 67",
    Fault.DUPLICATE_CALLS: "every tenth API call is there twice",
    Fault.LAUNCHES_CUT: "the API rows of the first half are missing",
    Fault.WORK_CUT: "every third piece of GPU work is missing",
    Fault.STEPS_IDLE: "every fourth step launches nothing",
    Fault.ONE_RANK_TRACED: "only rank 0 has API calls and GPU work",
    Fault.CUDA_ELSEWHERE: "API calls and GPU work belong to another process than the ranges",
    Fault.DRIVER_CALLS_ONLY: "API calls are driver calls without a launch, and there is no GPU work",
    Fault.NO_AGREEMENT: "no ranges of an agreement",
    Fault.OWN_CLOCKS: "where each rank has its file, that has a time 0 of its own, stated with an error of 3 ms a rank",
    Fault.NO_SESSION_START: "nothing says when time 0 was",
    Fault.OPEN_RANGES: "the last step's ranges have no end",
    Fault.NEGATIVE_TIMES: "everything begins 20 s before the session",
    Fault.NO_TIMES: "some GPU rows have start = end = 0",
    Fault.BACKWARDS: "some GPU rows end before they start",
    Fault.STEPS_DOUBLED: "every step has a second scope of the same name around its middle",
    Fault.STEP_NAMES_COUNT: "step names hold a count and differ every time",
    Fault.START_END: "steps are start/end ranges, not push/pop",
    Fault.TOOL_RANGES: "a tool's ranges, in its own domain, outnumber the program's",
    Fault.RANGES_LOST: "every range and mark is lost, only the creation of their domain is there",
    Fault.NOT_UTF8: "metadata and one kernel name are not UTF-8",
    Fault.NO_MARKS: "no process says its rank",
    Fault.NO_NVTX: "no NVTX table",
    Fault.NO_RUNTIME: "no API table",
    Fault.NO_KERNEL: "no kernel table",
    Fault.NO_GPU_WORK: "no table of GPU work at all",
    Fault.NO_GRAPH_WORK: "graph launches leave no GPU row, as before nsys 2024",
    Fault.NO_PROCESSES: "no table of processes",
    Fault.NO_STRINGS: "no table of strings",
    Fault.STRINGS_CUT: "the string behind the name of the sample range is missing",
    Fault.NO_GLOBAL_PID: "the kernel table lacks the column globalPid, as made by hand",
    Fault.GPU_ORDER: "nsys numbers the GPUs the other way round than CUDA",
    Fault.EXTRA_COLUMNS: "columns and an index were added after the export",
    Fault.EMPTY_TABLES: "many tables without rows, as a non-lazy export has",
    Fault.UNKNOWN_SCHEMA: "metadata names a schema of the future",
    Fault.PARTIAL_EXPORT: "metadata says that tables were left out",
    Fault.CLIPPED: "metadata says that this is a slice of a longer capture",
    Fault.OLD_DRIVER: "a diagnostic says that the driver is newer than nsys",
    Fault.DIAGNOSTICS: "nsys says that NVTX ranges may be missing",
    Fault.WAL: "the file is in write-ahead-log mode",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """An export to be generated. ``rows`` is about how many event rows all ranks have together.

    ``is_sync``: the host waits for the GPU in every step, as before the removal of host syncs. ``alloc_share``: the
    share of steps that allocate.
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
