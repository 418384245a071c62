"""Tables of an nsys export, and of those that the recorder writes the columns at schema 3.20.

Read from exports of nsys 2025.3; column order, types and NOT NULL as there.
"""

from __future__ import annotations

from enum import StrEnum

SCHEMA_VERSION = "3.20.3"


class ExportTable(StrEnum):
    """Table names, here and nowhere else. Schemas differ in which of them there are."""

    META_DATA_EXPORT = "META_DATA_EXPORT"
    OLD_META_DATA_EXPORT = "EXPORT_META_DATA"
    """Its name before schema 3.4."""
    META_DATA_CAPTURE = "META_DATA_CAPTURE"
    STRING_IDS = "StringIds"
    NVTX_EVENTS = "NVTX_EVENTS"
    RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
    SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
    MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
    MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
    GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    PROCESSES = "PROCESSES"
    THREAD_NAMES = "ThreadNames"
    SESSION_START = "TARGET_INFO_SESSION_START_TIME"
    ANALYSIS_DETAILS = "ANALYSIS_DETAILS"
    ENUM_EVENT_TYPE = "ENUM_NSYS_EVENT_TYPE"
    ENUM_EVENT_CLASS = "ENUM_NSYS_EVENT_CLASS"
    PROFILER_OVERHEAD = "PROFILER_OVERHEAD"
    CUPTI_OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
    CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
    CUDA_CALLCHAINS = "CUDA_CALLCHAINS"
    GRAPH_EVENTS = "CUDA_GRAPH_EVENTS"
    GRAPH_NODE_EVENTS = "CUDA_GRAPH_NODE_EVENTS"
    GPUS = "TARGET_INFO_GPU"
    CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
    CUDA_CONTEXTS = "TARGET_INFO_CUDA_CONTEXT_INFO"
    DIAGNOSTICS = "DIAGNOSTIC_EVENT"
    PROCESS_STREAMS = "ProcessStreams"
    OSRT_API = "OSRT_API"


def _columns(spec: str) -> dict[str, str]:
    """``name:TYPE! name:TYPE`` → {name: SQL type}; ``!`` is NOT NULL, without a type the column is an INTEGER."""
    columns = {}
    for item in spec.split():
        name, _, kind = item.rstrip("!").partition(":")
        columns[name] = (kind or "INTEGER") + (" NOT NULL" if item.endswith("!") else "")
    return columns


_WORK = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid"
_ENUM = "id! name:TEXT label:TEXT"
_META = "name:TEXT! value:TEXT"

EXPORT_COLUMNS: dict[ExportTable, dict[str, str]] = {
    ExportTable.META_DATA_EXPORT: _columns(_META),
    ExportTable.META_DATA_CAPTURE: _columns(_META),
    ExportTable.STRING_IDS: _columns("id! value:TEXT!"),
    ExportTable.NVTX_EVENTS: _columns(
        "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId domainId uint64Value"
        " int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId jsonText:TEXT binaryData:TEXT"
    ),
    ExportTable.RUNTIME: _columns("start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"),
    ExportTable.SYNCHRONIZATION: _columns(f"{_WORK} deprecatedSyncType syncType! eventId! eventSyncId"),
    ExportTable.KERNEL: _columns(
        f"{_WORK} demangledName! shortName! mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ!"
        " blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal!"
        " gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig"
    ),
    ExportTable.MEMCPY: _columns(
        f"{_WORK} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId"
        " migrationCause graphNodeId virtualAddress copyCount"
    ),
    ExportTable.MEMSET: _columns(f"{_WORK} value! bytes! graphNodeId memKind"),
    ExportTable.GRAPH_TRACE: _columns(f"{_WORK} graphId! graphExecId!"),
    ExportTable.PROCESSES: _columns("globalPid pid name:TEXT"),
    ExportTable.THREAD_NAMES: _columns("nameId! priority globalTid"),
    ExportTable.SESSION_START: _columns("utcEpochNs utcTime:TEXT localTime:TEXT"),
    ExportTable.ANALYSIS_DETAILS: _columns("globalVid! duration! startTime! stopTime!"),
    ExportTable.ENUM_EVENT_TYPE: _columns(_ENUM),
    ExportTable.ENUM_EVENT_CLASS: _columns(_ENUM),
}

EXPORT_ENUMS: dict[ExportTable, tuple[tuple[int, str, str], ...]] = {
    ExportTable.ENUM_EVENT_TYPE: (
        (34, "NvtxMark", "NvtxMark"),
        (59, "NvtxPushPopRange", "NvtxPushPopRange"),
        (75, "NvtxDomainCreate", "NvtxDomainCreate"),
    ),
    ExportTable.ENUM_EVENT_CLASS: (
        (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
    ),
}
"""The rows of the enumerations that can occur here."""
