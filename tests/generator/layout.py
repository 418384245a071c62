"""Tables and columns of each schema family, derived from those of 3.20 that the built-in recorder writes.

After the columns seen in real exports: what came when, and what was called otherwise.
"""

from __future__ import annotations

from dflash_bench.capture.tables import EXPORT_COLUMNS, ExportTable
from generator.spec import Schema

Columns = dict[str, str]

CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
OVERHEAD = "PROFILER_OVERHEAD"
CUPTI_OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
DIAGNOSTIC = "DIAGNOSTIC_EVENT"
GPU = "TARGET_INFO_GPU"
CUDA_DEVICE = "TARGET_INFO_CUDA_DEVICE"
SYSTEM_ENV = "TARGET_INFO_SYSTEM_ENV"
STREAMS = "ProcessStreams"
OLD_META = "EXPORT_META_DATA"
GRAPH_EVENTS = "CUDA_GRAPH_EVENTS"
GRAPH_NODE_EVENTS = "CUDA_GRAPH_NODE_EVENTS"

PRODUCT_VERSIONS = {
    Schema.V2_9: ("2022.1.3", "2.9.1"),
    Schema.V3_0: ("2022.4.2", "3.0.0"),
    Schema.V3_4: ("2023.3.1", "3.4.0"),
    Schema.V3_7: ("2023.4.4", "3.7.2"),
    Schema.V3_13: ("2024.5.1", "3.13.2"),
    Schema.V3_16: ("2024.6.2", "3.16.1"),
    Schema.V3_17: ("2025.1.1", "3.17.1"),
    Schema.V3_20: ("2025.3.2", "3.20.3"),
    Schema.V3_24: ("2026.1.3", "3.24.18"),
    Schema.V3_25: ("2026.2.1", "3.25.0"),
}

SYNC_CODES = {
    Schema.OLDEST: {"StreamSynchronize": 3, "EventSynchronize": 2, "DeviceSynchronize": 1},
    Schema.V3_13: {"StreamSynchronize": 2, "EventSynchronize": 1, "DeviceSynchronize": 0},
    Schema.V3_17: {"StreamSynchronize": 2, "EventSynchronize": 1, "DeviceSynchronize": 4},
    Schema.V3_25: {"StreamSynchronize": 3, "EventSynchronize": 1, "DeviceSynchronize": 4},
}
"""SYNCHRONIZATION.syncType as the exporters stored it, from each family on."""

_GRAPH_COLUMNS = (
    "graphId", "clusterX", "clusterY", "clusterZ", "clusterSchedulingPolicy", "maxPotentialClusterSize",
    "maxActiveClusters", "qmdBulkReleaseDone", "qmdPreexitDone", "qmdLastCtaDone", "sharedMemoryRequestedPercentage",
)  # fmt: skip


def sync_codes(schema: Schema) -> dict[str, int]:
    """How this family codes the kinds of synchronization."""
    return SYNC_CODES[max((s for s in SYNC_CODES if schema >= s), key=list(Schema).index)]


def columns_of(schema: Schema) -> dict[str, Columns]:
    """Every table that the family knows, with its columns and their SQL types."""
    tables: dict[str, Columns] = {str(table): dict(columns) for table, columns in EXPORT_COLUMNS.items()}
    tables[CUDA_EVENT] = _integers("deviceId! contextId! greenContextId streamId! correlationId globalPid eventId!")
    tables[OVERHEAD] = _integers("start! end! globalTid nameId! returnValue!")
    tables[DIAGNOSTIC] = _integers("timestamp! timestampType! source! severity! globalPid") | {"text": "TEXT NOT NULL"}
    tables[GPU] = _integers("vmId! id! smCount cuDevice") | {"name": "TEXT", "busLocation": "TEXT", "uuid": "TEXT"}
    tables[CUDA_DEVICE] = _integers("gpuId cudaId! pid!")
    tables[SYSTEM_ENV] = _integers("globalVid nameEnum!") | dict.fromkeys(
        ("devStateName", "name", "value"), "TEXT NOT NULL"
    )
    tables[STREAMS] = _integers("globalPid! filenameId! contentId!")
    tables[GRAPH_EVENTS] = _integers(
        "start! end! eventClass! globalTid nameId graphId originalGraphId graphExecId graphNodeId originalGraphNodeId"
    )
    tables[GRAPH_NODE_EVENTS] = _integers("start! end! eventClass! globalTid graphNodeId originalGraphNodeId")
    _take_back(tables, schema)
    _carry_on(tables, schema)
    return tables


def _take_back(tables: dict[str, Columns], schema: Schema) -> None:
    """Remove what came between this family and 3.20."""
    if schema < Schema.V3_17:
        _without(tables, ExportTable.MEMCPY, "copyCount")
        _without(tables, ExportTable.SYNCHRONIZATION, "deprecatedSyncType", "eventSyncId")
        del tables[CUDA_DEVICE]
    if schema < Schema.V3_16:
        _without(tables, ExportTable.NVTX_EVENTS, "binaryData")
    if schema < Schema.V3_13:
        # until then graph events were those of nodes, and nothing was written of replays
        _without(tables, GRAPH_EVENTS, "graphId", "originalGraphId", "graphExecId")
        del tables[ExportTable.GRAPH_TRACE], tables[GRAPH_NODE_EVENTS], tables[DIAGNOSTIC]
    else:
        _without(tables, GRAPH_EVENTS, "graphNodeId", "originalGraphNodeId")
    if schema < Schema.V3_7:
        for columns in tables.values():
            columns.pop("greenContextId", None)
    if schema < Schema.V3_4:
        del tables[ExportTable.META_DATA_CAPTURE]
        tables[OLD_META] = tables.pop(ExportTable.META_DATA_EXPORT)
    if schema < Schema.V3_0:
        del tables[ExportTable.ENUM_EVENT_TYPE], tables[ExportTable.ENUM_EVENT_CLASS]
    if schema < Schema.V2_9:
        for table in (OLD_META, ExportTable.PROCESSES, SYSTEM_ENV):
            del tables[table]
        _without(tables, ExportTable.KERNEL, "mangledName")
        _without(tables, ExportTable.RUNTIME, "callchainId")
        _without(tables, ExportTable.MEMCPY, "virtualAddress")
        tables[OVERHEAD] |= {"correlationId": "INTEGER"}


def _carry_on(tables: dict[str, Columns], schema: Schema) -> None:
    """Add what came after 3.20."""
    if schema < Schema.V3_24:
        return
    tables[ExportTable.KERNEL] |= dict.fromkeys(_GRAPH_COLUMNS, "INTEGER")
    tables[ExportTable.KERNEL] |= {"tensorSizeMinusOneElements": "TEXT NOT NULL"}
    tables[OVERHEAD] = _integers("start! end! globalTid nameId! overheadType!")
    tables[CUPTI_OVERHEAD] = _integers("start! end! eventClass! globalTid correlationId nameId overheadType!")
    tables[CUDA_EVENT] = {"timestamp": "INTEGER", **tables[CUDA_EVENT], "eventSyncId": "INTEGER"}
    if schema >= Schema.V3_25:
        tables["NVTX_PAYLOAD_SCHEMAS"] = _integers("domainId schemaId type flags") | {"name": "TEXT"}


def _without(tables: dict[str, Columns], table: str, *columns: str) -> None:
    for column in columns:
        del tables[table][column]


def _integers(names: str) -> Columns:
    return {n.rstrip("!"): "INTEGER" + (" NOT NULL" if n.endswith("!") else "") for n in names.split()}
