"""nsys's tables, and its numbers of kinds of events and of memory."""

from __future__ import annotations

import numpy as np

SCHEMA = "3.28.1"

OPERATION = "start end deviceId contextId greenContextId streamId correlationId globalPid"
TABLES = {
    "StringIds": "id value:TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_GPU": "vmId id name:TEXT busLocation:TEXT totalMemory memoryBandwidth clockRate "
    "smCount uuid:TEXT chipName:TEXT cuDevice computeMajor computeMinor l2CacheSize",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT name:TEXT nameEnum value:TEXT",
    "META_DATA_CAPTURE": "name:TEXT value:TEXT",
    "META_DATA_EXPORT": "name:TEXT value:TEXT",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId priority globalTid",
    "ENUM_NSYS_EVENT_TYPE": "id name:TEXT label:TEXT",
    "ENUM_CUDA_MEMCPY_OPER": "id name:TEXT label:TEXT",
    "ENUM_CUDA_MEM_KIND": "id name:TEXT label:TEXT",
    "NVTX_EVENTS": "start end eventType rangeId category color text:TEXT globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue:REAL uint32Value int32Value "
    "floatValue:REAL jsonTextId jsonText:TEXT binaryData:TEXT eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId "
    "returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{OPERATION} demangledName shortName mangledName launchType "
    "cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
    "dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId "
    "clusterX clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{OPERATION} bytes copyKind deprecatedSrcId srcKind dstKind "
    "srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress "
    "copyCount",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{OPERATION} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{OPERATION} graphId graphExecId",
}
"""Columns by table, INTEGER unless stated otherwise."""

CATEGORY, MARK, THREAD, PUSH_POP, START_END, DOMAIN = 33, 34, 39, 59, 60, 75
RESOURCES = {"device": 97, "context": 98, "stream": 99}
EVENT_TYPES = {
    CATEGORY: "NvtxCategory",
    MARK: "NvtxMark",
    THREAD: "NvtxThread",
    PUSH_POP: "NvtxPushPopRange",
    START_END: "NvtxStartEndRange",
    DOMAIN: "NvtxDomainCreate",
    97: "NvtxNameCudaDevice",
    98: "NvtxNameCudaContext",
    99: "NvtxNameCudaStream",
}
"""ENUM_NSYS_EVENT_TYPE."""

MEMORY_KIND_NUMBERS = np.array([7, 0, 1, 2, 3, 4, 5, 6])
"""CUpti_ActivityMemoryKind → ENUM_CUDA_MEM_KIND."""


def create_statements() -> list[str]:
    """The statements that create the tables."""
    return [
        f"CREATE TABLE {table} ({', '.join(map(_column, columns.split()))})"
        for table, columns in TABLES.items()
    ]


def _column(word: str) -> str:
    name, _, kind = word.partition(":")
    return f'"{name}" {kind or "INTEGER"}{" PRIMARY KEY" if name == "id" and not kind else ""}'
