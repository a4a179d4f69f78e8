/* The layout in words: tests/ring/test_layout.py compares it with gputui/ring. */

#pragma once

#include "layout.h"

#include <stdio.h>

#define FIELD(type, field) \
    #type "." #field "=%zu,%zu\n", offsetof(type, field), sizeof(((type *)0)->field)
EXPORT int gputui_layout(char *out, uint64_t size)
{
    int used = 0;
#define PUT(...) used += snprintf(out + used, (uint64_t)used < size ? size - used : 0, __VA_ARGS__)
#define PUT_SLOT(field) PUT(FIELD(Slot, field))
#define PUT_HEADER(field) PUT(FIELD(Header, field))
#define PUT_NUMBER(name) PUT(#name "=%llu\n", (unsigned long long)(name))
    if (out == NULL || size < 4096)
        return -1;
    PUT_SLOT(kind); PUT_SLOT(sub); PUT_SLOT(source_kind); PUT_SLOT(destination_kind);
    PUT_SLOT(thread); PUT_SLOT(start); PUT_SLOT(end); PUT_SLOT(correlation); PUT_SLOT(name);
    PUT_SLOT(value); PUT_SLOT(a); PUT_SLOT(b); PUT_SLOT(c); PUT_SLOT(d); PUT_SLOT(e);
    PUT_SLOT(published);
    PUT_HEADER(magic); PUT_HEADER(layout_version); PUT_HEADER(header_bytes);
    PUT_HEADER(slot_bytes); PUT_HEADER(pid); PUT_HEADER(parent_pid); PUT_HEADER(rank);
    PUT_HEADER(local_rank); PUT_HEADER(cupti_version); PUT_HEADER(capacity);
    PUT_HEADER(start_ns); PUT_HEADER(start_ticks); PUT_HEADER(cuda_state); PUT_HEADER(exited);
    PUT_HEADER(heartbeat_ns); PUT_HEADER(dropped); PUT_HEADER(callback_ns);
    PUT_HEADER(cupti_dropped); PUT_HEADER(pid_namespace);
    PUT_HEADER(traced_ns); PUT_HEADER(paused_ns); PUT_HEADER(head); PUT_HEADER(tail);
    PUT_HEADER(visible_devices); PUT_HEADER(period_ns); PUT_HEADER(step_name);
    PUT_HEADER(launch_blocking);
    PUT_HEADER(unseen_forks);
    PUT_HEADER(cuda_text);
    PUT_HEADER(command);
    PUT_NUMBER(RING_MAGIC); PUT_NUMBER(LAYOUT_VERSION); PUT_NUMBER(HEADER_BYTES);
    PUT_NUMBER(SLOT_BYTES); PUT_NUMBER(STRING_BYTES_PER_SLOT); PUT_NUMBER(STRING_BYTES_MAX);
    PUT_NUMBER(SAMPLE_EVERY); PUT_NUMBER(SAMPLE_NS_MAX);
    PUT_NUMBER(KIND_STRING); PUT_NUMBER(KIND_RANGE_PUSH); PUT_NUMBER(KIND_RANGE_POP);
    PUT_NUMBER(KIND_RANGE_START); PUT_NUMBER(KIND_RANGE_END); PUT_NUMBER(KIND_MARK);
    PUT_NUMBER(KIND_THREAD_NAME); PUT_NUMBER(KIND_KERNEL); PUT_NUMBER(KIND_MEMCPY);
    PUT_NUMBER(KIND_MEMSET); PUT_NUMBER(KIND_API);
    PUT_NUMBER(KIND_DEVICE); PUT_NUMBER(KIND_GRAPH); PUT_NUMBER(KIND_LAUNCH_SHAPE);
    PUT_NUMBER(KIND_FLUSH); PUT_NUMBER(KIND_EXIT); PUT_NUMBER(KIND_GRAPH_PART);
    PUT_NUMBER(KIND_WINDOW); PUT_NUMBER(KIND_LOST);
    PUT_NUMBER(WINDOW_OPENING); PUT_NUMBER(WINDOW_ON); PUT_NUMBER(WINDOW_OFF);
    PUT_NUMBER(WINDOW_CLOSED);
    PUT_NUMBER(FLAG_COLORED); PUT_NUMBER(FLAG_PAYLOAD);
    PUT_NUMBER(FLAG_COMMUNICATOR);
    PUT_NUMBER(NAMED_BY_SYSTEM); PUT_NUMBER(REFUSED_DEFERRED);
    PUT_NUMBER(PAYLOAD_UINT64); PUT_NUMBER(PAYLOAD_INT64); PUT_NUMBER(PAYLOAD_DOUBLE);
    PUT_NUMBER(PAYLOAD_UINT32); PUT_NUMBER(PAYLOAD_INT32); PUT_NUMBER(PAYLOAD_FLOAT);
    PUT_NUMBER(PAYLOAD_BYTES); PUT_NUMBER(KIND_RESOURCE_NAME); PUT_NUMBER(KIND_REFUSED);
    PUT_NUMBER(KIND_STEP);
    PUT_NUMBER(RESOURCE_DEVICE); PUT_NUMBER(RESOURCE_CONTEXT); PUT_NUMBER(RESOURCE_STREAM);
    PUT_NUMBER(PART_GRAPH); PUT_NUMBER(PART_NODE); PUT_NUMBER(PART_CLONE); PUT_NUMBER(PART_GONE);
    PUT_NUMBER(UNKNOWN_DEVICE);
    PUT_NUMBER(CUDA_NONE); PUT_NUMBER(CUDA_TRACING); PUT_NUMBER(CUDA_OFF);
    PUT_NUMBER(CUDA_FAILED); PUT_NUMBER(CUDA_STARTING);
    return used;
}
