/* CUPTI's activity records, and what of them goes to the ring. */

#pragma once

#include "cupti_buffers.inc.c"
#include "cupti_calls.inc.c"
#include "cupti_fields.h"
#include "launch_shapes.inc.c"
#include "process.inc.c"
#include "thread.inc.c"

#include <string.h>

/* Records on their way to the ring: one reservation for many. */
enum { BATCH = 64 };
typedef struct {
    int count;
    uint64_t after_ns; /* what began before is not of this ring */
    Slot records[BATCH];
} Batch;

static void write_batch(Batch *batch)
{
    uint64_t number;
    if (UNLIKELY(__atomic_load_n(&gap, __ATOMIC_RELAXED) != 0))
        write_gap();
    if (batch->count > 0 && reserve((uint64_t)batch->count, &number))
        for (int at = 0; at < batch->count; at++)
            put(number + (uint64_t)at, &batch->records[at]);
    else
        for (int at = 0; at < batch->count; at++)
            emit(&batch->records[at]);
    batch->count = 0;
}

/* Kernel names are long and come with the same pointer again and again: a guess by pointer,
 * checked by comparing the text, spares hashing them. */
enum { NAME_GUESSES = 1024 };
static String *name_guesses[NAME_GUESSES];

static String *kernel_name_string(const char *text)
{
    if (text == NULL)
        return &empty_storage.string;
    uint64_t at = ((uint64_t)(uintptr_t)text * 0x9E3779B97F4A7C15ull) >> 54;
    String *guess = name_guesses[at];
    if (guess == NULL || strcmp(guess->text, text) != 0)
        name_guesses[at] = guess = intern(text, STRING_BYTES_MAX);
    return guess;
}

static void decode_kernel(const uint8_t *r, Slot *out)
{
    out->kind = KIND_KERNEL;
    out->start = kernel_start(r);
    out->end = kernel_end(r);
    out->a = kernel_deviceId(r);
    out->c = kernel_contextId(r);
    out->b = kernel_streamId(r);
    out->correlation = kernel_correlationId(r);
    out->name = id_of(kernel_name_string(kernel_name(r)));
    out->value = kernel_graphNodeId(r);
    out->e = kernel_graphId(r);
    ShapeKey key = {
        .name = out->name, .registers = kernel_registersPerThread(r),
        .grid = {kernel_gridX(r), kernel_gridY(r), kernel_gridZ(r)},
        .block = {kernel_blockX(r), kernel_blockY(r), kernel_blockZ(r)},
        .static_shared = kernel_staticSharedMemory(r),
        .dynamic_shared = kernel_dynamicSharedMemory(r),
    };
    out->d = shape_id(&key);
}

static void decode_transfer(const uint8_t *r, Slot *out)
{
    out->value = transfer_bytes(r);
    out->start = transfer_start(r);
    out->end = transfer_end(r);
    out->a = transfer_deviceId(r);
    out->c = transfer_contextId(r);
    out->b = transfer_streamId(r);
}

/* `value` holds the bytes. */
static void set_node(Slot *out, uint64_t node)
{
    out->d = (uint32_t)node;
    out->thread = (uint32_t)(node >> 32);
}

static void decode_memcpy(const uint8_t *r, Slot *out)
{
    decode_transfer(r, out);
    out->kind = KIND_MEMCPY;
    out->sub = memcpy_copyKind(r);
    out->source_kind = memcpy_srcKind(r);
    out->destination_kind = memcpy_dstKind(r);
    out->correlation = memcpy_correlationId(r);
    out->e = memcpy_graphId(r);
    set_node(out, memcpy_graphNodeId(r));
}

static void decode_peer_copy(const uint8_t *r, Slot *out)
{
    uint32_t source = memcpy_peer_srcDeviceId(r);
    decode_transfer(r, out);
    out->kind = KIND_MEMCPY;
    out->sub = COPY_PEER;
    out->source_kind = memcpy_peer_srcKind(r);
    out->destination_kind = memcpy_peer_dstKind(r);
    out->c = out->a == source ? memcpy_peer_dstDeviceId(r) : source;
    out->correlation = memcpy_peer_correlationId(r);
    out->e = memcpy_peer_graphId(r);
    set_node(out, memcpy_peer_graphNodeId(r));
}

static void decode_memset(const uint8_t *r, Slot *out)
{
    decode_transfer(r, out);
    out->kind = KIND_MEMSET;
    out->destination_kind = (uint8_t)memset_memoryKind(r);
    out->correlation = memset_correlationId(r);
    out->e = memset_graphId(r);
    set_node(out, memset_graphNodeId(r));
}

/* Threads of CUDA calls whose names were written, or not found. Guarded by DECODE_LOCK. */
enum { CALLERS = 8192, CALLERS_MAX = CALLERS / 2 };
static uint32_t callers[CALLERS], caller_count;

static __attribute__((noinline)) void name_caller(uint32_t tid)
{
    char path[64], text[16];
    int saved_errno = errno;
    snprintf(path, sizeof path, "/proc/self/task/%u/comm", tid);
    uint64_t length = read_small_file(path, text, sizeof text - 1);
    if (length > 0 && text[length - 1] == '\n')
        length--;
    text[length] = '\0';
    if (length > 0) {
        Slot record = {.kind = KIND_THREAD_NAME, .sub = NAMED_BY_SYSTEM, .thread = tid};
        record.name = id_of(intern(text, length));
        emit(&record);
    }
    errno = saved_errno;
}

/* Threads without ranges get their names here, at the latest a flush after their first call: the
 * monitor, which looks once a second, would miss one that ends before. */
static void meet_caller(uint32_t tid)
{
    uint32_t at = tid * 2654435761u % CALLERS;
    while (callers[at] != 0 && callers[at] != tid)
        at = (at + 1) % CALLERS;
    if (LIKELY(callers[at] == tid) || caller_count >= CALLERS_MAX)
        return;
    callers[at] = tid;
    caller_count++;
    name_caller(tid);
}

/* Whether the call is one that was asked for. */
static int decode_call(const uint8_t *r, int driver, Slot *out)
{
    uint32_t call = api_cbid(r);
    if (call >= CALLS || call_names[driver][call] == NULL)
        return 0;
    call_made[driver][call] = 1;
    out->kind = KIND_API;
    out->sub = (uint8_t)driver;
    out->start = api_start(r);
    out->end = api_end(r);
    out->thread = api_threadId(r);
    meet_caller(out->thread);
    out->correlation = api_correlationId(r);
    out->a = api_returnValue(r);
    out->name = id_of(call_names[driver][call]);
    return 1;
}

static void decode_graph(const uint8_t *r, Slot *out)
{
    out->kind = KIND_GRAPH;
    out->correlation = graph_correlationId(r);
    out->start = graph_start(r);
    out->end = graph_end(r);
    out->a = graph_deviceId(r);
    out->e = graph_graphId(r);
    out->c = graph_contextId(r);
    out->b = graph_streamId(r);
}

static void decode(const uint8_t *r, Batch *batch)
{
    if (batch->count == BATCH)
        write_batch(batch);
    Slot *out = &batch->records[batch->count];
    memset(out, 0, sizeof *out);
    switch (activity_kind(r)) {
    case ACTIVITY_CONCURRENT_KERNEL: decode_kernel(r, out); break;
    case ACTIVITY_MEMCPY: decode_memcpy(r, out); break;
    case ACTIVITY_MEMCPY2: decode_peer_copy(r, out); break;
    case ACTIVITY_MEMSET: decode_memset(r, out); break;
    case ACTIVITY_RUNTIME:
        if (!decode_call(r, 0, out))
            return;
        break;
    case ACTIVITY_DRIVER:
        if (!decode_call(r, 1, out))
            return;
        break;
    case ACTIVITY_GRAPH_TRACE: decode_graph(r, out); break;
    default: return;
    }
    batch->count += out->start >= batch->after_ns;
}

static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                             size_t valid)
{
    (void)size;
    if (buffer == NULL)
        return;
    if (is_armed()) {
        uint64_t began = thread_cpu_ns();
        Batch batch;
        uint8_t *record = NULL;
        size_t dropped = 0;
        batch.count = 0;
        batch.after_ns = is_of_earlier_ring(buffer) ? header->start_ns : 0;
        int ours = lock(DECODE_LOCK);
        while (valid > 0 && cupti.ActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
            if (LIKELY(ours))
                decode(record, &batch);
            else
                count_dropped(1);
        if (LIKELY(ours)) {
            write_batch(&batch);
            unlock(DECODE_LOCK);
        }
        /* Without the lock: CUPTI takes one of its own in here. */
        if (cupti.ActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
            __atomic_fetch_add(&header->cupti_dropped, dropped, __ATOMIC_RELAXED);
        __atomic_fetch_add(&header->callback_ns, thread_cpu_ns() - began, __ATOMIC_RELAXED);
    }
    return_buffer(buffer);
}
