/* Where the fields stand that are read of CUPTI's records: the record, NVIDIA's name of
 * the field, its type, its offset. Records only ever grow at their end: the offsets are the same in
 * every version since CUDA 12.1, as tests/inject/test_cupti_fields.py checks against NVIDIA's
 * headers. */

#pragma once

#include <stdint.h>
#include <string.h>

#define CUPTI_FIELDS(FIELD)                          \
    FIELD(activity, kind, uint32_t, 0)               \
    FIELD(kernel, registersPerThread, uint16_t, 6)   \
    FIELD(kernel, start, uint64_t, 16)               \
    FIELD(kernel, end, uint64_t, 24)                 \
    FIELD(kernel, deviceId, uint32_t, 40)            \
    FIELD(kernel, contextId, uint32_t, 44)           \
    FIELD(kernel, streamId, uint32_t, 48)            \
    FIELD(kernel, gridX, uint32_t, 52)               \
    FIELD(kernel, gridY, uint32_t, 56)               \
    FIELD(kernel, gridZ, uint32_t, 60)               \
    FIELD(kernel, blockX, uint32_t, 64)              \
    FIELD(kernel, blockY, uint32_t, 68)              \
    FIELD(kernel, blockZ, uint32_t, 72)              \
    FIELD(kernel, staticSharedMemory, uint32_t, 76)  \
    FIELD(kernel, dynamicSharedMemory, uint32_t, 80) \
    FIELD(kernel, correlationId, uint32_t, 92)       \
    FIELD(kernel, name, const char *, 104)           \
    FIELD(kernel, graphNodeId, uint64_t, 144)        \
    FIELD(kernel, graphId, uint32_t, 156)            \
    /* Of memcpy, memcpy_peer and memset alike. */   \
    FIELD(transfer, bytes, uint64_t, 8)              \
    FIELD(transfer, start, uint64_t, 16)             \
    FIELD(transfer, end, uint64_t, 24)               \
    FIELD(transfer, deviceId, uint32_t, 32)          \
    FIELD(transfer, contextId, uint32_t, 36)         \
    FIELD(transfer, streamId, uint32_t, 40)          \
    FIELD(memcpy, copyKind, uint8_t, 4)              \
    FIELD(memcpy, srcKind, uint8_t, 5)               \
    FIELD(memcpy, dstKind, uint8_t, 6)               \
    FIELD(memcpy, correlationId, uint32_t, 44)       \
    FIELD(memcpy, graphNodeId, uint64_t, 64)         \
    FIELD(memcpy, graphId, uint32_t, 72)             \
    FIELD(memcpy_peer, srcKind, uint8_t, 5)          \
    FIELD(memcpy_peer, dstKind, uint8_t, 6)          \
    FIELD(memcpy_peer, srcDeviceId, uint32_t, 44)    \
    FIELD(memcpy_peer, dstDeviceId, uint32_t, 52)    \
    FIELD(memcpy_peer, correlationId, uint32_t, 60)  \
    FIELD(memcpy_peer, graphNodeId, uint64_t, 72)    \
    FIELD(memcpy_peer, graphId, uint32_t, 80)        \
    FIELD(memset, correlationId, uint32_t, 44)       \
    FIELD(memset, memoryKind, uint16_t, 50)          \
    FIELD(memset, graphNodeId, uint64_t, 64)         \
    FIELD(memset, graphId, uint32_t, 72)             \
    FIELD(api, cbid, uint32_t, 4)                    \
    FIELD(api, start, uint64_t, 8)                   \
    FIELD(api, end, uint64_t, 16)                    \
    FIELD(api, threadId, uint32_t, 28)               \
    FIELD(api, correlationId, uint32_t, 32)          \
    FIELD(api, returnValue, uint32_t, 36)            \
    FIELD(graph, correlationId, uint32_t, 4)         \
    FIELD(graph, start, uint64_t, 8)                 \
    FIELD(graph, end, uint64_t, 16)                  \
    FIELD(graph, deviceId, uint32_t, 24)             \
    FIELD(graph, graphId, uint32_t, 28)              \
    FIELD(graph, contextId, uint32_t, 32)            \
    FIELD(graph, streamId, uint32_t, 36)             \
    /* What callbacks are given. */                  \
    FIELD(callback, callbackSite, uint32_t, 0)       \
    FIELD(callback, functionReturnValue, void *, 24) \
    FIELD(callback, correlationId, uint32_t, 64)     \
    FIELD(resource, resourceDescriptor, void *, 16)  \
    FIELD(graph_data, graph, void *, 0)              \
    FIELD(graph_data, node, void *, 16)              \
    FIELD(graph_data, originalNode, void *, 24)      \
    FIELD(graph_data, graphExec, void *, 48)

/* kernel_start(record), and so on. */
#define CUPTI_READER(record, field, type, offset)                    \
    static inline type record##_##field(const uint8_t *bytes)        \
    {                                                                \
        type value;                                                  \
        memcpy(&value, bytes + (offset), sizeof value);              \
        return value;                                                \
    }
CUPTI_FIELDS(CUPTI_READER)
