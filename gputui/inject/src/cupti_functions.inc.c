/* What is used of libcupti, which is looked up at run time. */

#pragma once

#include "armed.inc.c"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    ACTIVITY_MEMCPY = 1,
    ACTIVITY_MEMSET = 2,
    ACTIVITY_DRIVER = 4,
    ACTIVITY_RUNTIME = 5,
    ACTIVITY_CONCURRENT_KERNEL = 10,
    ACTIVITY_MEMCPY2 = 22,
    ACTIVITY_GRAPH_TRACE = 51,
};
enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2, DOMAIN_RESOURCE = 3 };
enum { THREAD_ID_SYSTEM = 1, FLUSH_FORCED = 1, COPY_PEER = 10 };
enum { CUPTI_SUCCESS = 0, CUPTI_MULTIPLE_SUBSCRIBERS = 39 };

typedef void (*SubscriberFunction)(void *, int, uint32_t, const void *);
typedef void (*BufferRequested)(uint8_t **, size_t *, size_t *);
typedef void (*BufferCompleted)(void *, uint32_t, uint8_t *, size_t, size_t);

static struct {
    int (*GetVersion)(uint32_t *);
    int (*GetResultString)(int, const char **);
    int (*Subscribe)(void **, SubscriberFunction, void *);
    int (*Unsubscribe)(void *);
    int (*GetCallbackName)(int, uint32_t, const char **);
    int (*EnableCallback)(uint32_t, void *, int, uint32_t);
    int (*SetThreadIdType)(int);
    int (*ActivityRegisterCallbacks)(BufferRequested, BufferCompleted);
    int (*ActivityEnable)(int);
    int (*ActivityDisable)(int);
    int (*ActivityFlushAll)(uint32_t);
    int (*ActivityGetNextRecord)(uint8_t *, size_t, uint8_t **);
    int (*ActivityGetNumDroppedRecords)(void *, uint32_t, size_t *);
} cupti;

static void *subscriber; /* NULL while we are none */

static const char *const cupti_symbols[] = {
    "cuptiGetVersion", "cuptiGetResultString", "cuptiSubscribe", "cuptiUnsubscribe",
    "cuptiGetCallbackName", "cuptiEnableCallback", "cuptiSetThreadIdType",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords",
};
_Static_assert(sizeof cupti == sizeof cupti_symbols, "one name for each function");

/* Which CUDA calls are recorded, one by one, by domain: the runtime's, the driver's. The libcupti
 * of 12.4 and before lacks it: all calls of a domain are recorded then, and most are left out
 * here. */
static int (*cupti_enable_call[2])(uint32_t, uint8_t);

static const char *const cupti_call_symbols[] = {
    "cuptiActivityEnableRuntimeApi", "cuptiActivityEnableDriverApi",
};

/* Numbers of handles. Where a libcupti lacks one of these, such resources have no names. */
static struct {
    int (*GetDeviceId)(void *, uint32_t *);
    int (*GetContextId)(void *, uint32_t *);
    int (*GetStreamId)(void *, void *, uint8_t, uint32_t *);
} cupti_ids;

static const char *const cupti_id_symbols[] = {
    "cuptiGetDeviceId", "cuptiGetContextId", "cuptiGetStreamIdEx",
};
_Static_assert(sizeof cupti_ids == sizeof cupti_id_symbols, "one name for each function");

/* What tells how graphs are made. Without the first two, kernels of a graph are only known to
 * belong to its launch; without the last, what is known of a graph is kept after its end. */
static struct {
    int (*GetGraphNodeId)(void *, uint64_t *);
    int (*GetGraphId)(void *, uint32_t *);
    int (*GetGraphExecId)(void *, uint32_t *);
} cupti_graphs;

static const char *const cupti_graph_symbols[] = {
    "cuptiGetGraphNodeId", "cuptiGetGraphId", "cuptiGetGraphExecId",
};
_Static_assert(sizeof cupti_graphs == sizeof cupti_graph_symbols, "one name for each function");

/* Has CUPTI hand over full buffers so often, in ms, of its own accord. */
static int (*cupti_flush_period)(uint32_t);

static void set_cuda_state(uint32_t state, const char *format, ...)
{
    char text[sizeof header->cuda_text] = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(header->cuda_text, text, sizeof text);
    __atomic_store_n(&header->cuda_state, state, __ATOMIC_RELEASE);
}
