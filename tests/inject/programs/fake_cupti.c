/* A stand-in for libcupti: hands over the activity records that a test queued, as CUPTI would.
 * FAKE_CUPTI_FAILS="function=status" makes one function fail. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_BYTES = 1 << 22 };
static uint8_t queue[QUEUE_BYTES];
static size_t queued;
static char calls[1 << 16];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*requested)(uint8_t **, size_t *, size_t *);
static void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);
static size_t dropped;

/* For the test: queue a record, say how many were lost, and ask what was called. */
void fake_queue(const void *record, uint64_t size)
{
    pthread_mutex_lock(&lock);
    memcpy(queue + queued, &size, 8);
    memcpy(queue + queued + 8, record, size);
    queued += 8 + (size + 7) / 8 * 8;
    pthread_mutex_unlock(&lock);
}
/* Records with their sizes before them, each a multiple of 8. */
void fake_queue_all(const void *records, uint64_t size)
{
    pthread_mutex_lock(&lock);
    if (queued + size <= QUEUE_BYTES) {
        memcpy(queue + queued, records, size);
        queued += size;
    }
    pthread_mutex_unlock(&lock);
}
void fake_drop(size_t count) { dropped = count; }
const char *fake_calls(void) { return calls; }

static int answer(const char *name, long argument)
{
    const char *fails = getenv("FAKE_CUPTI_FAILS");
    size_t used = strlen(calls), length = strlen(name);
    if (argument < 0)
        snprintf(calls + used, sizeof calls - used, "%s(off) ", name);
    else
        snprintf(calls + used, sizeof calls - used, "%s(%ld) ", name, argument);
    if (fails != NULL && strncmp(fails, name, length) == 0 && fails[length] == '=')
        return atoi(fails + length + 1);
    return 0;
}

int cuptiGetVersion(uint32_t *version)
{
    *version = 130001;
    return 0;
}
int cuptiGetResultString(int result, const char **text)
{
    *text = result == 39   ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
            : result == 15 ? "CUPTI_ERROR_NOT_INITIALIZED"
                           : NULL;
    return *text == NULL;
}
static void (*subscribed)(void *, int, uint32_t, const void *);
int cuptiSubscribe(void **subscriber, void *callback, void *data)
{
    (void)data;
    *(void **)&subscribed = callback;
    *subscriber = &lock;
    return answer("Subscribe", 0);
}
int cuptiUnsubscribe(void *subscriber) { return answer("Unsubscribe", subscriber == &lock); }
int cuptiGetCallbackName(int domain, uint32_t call, const char **name)
{
    static const struct { int domain; uint32_t call; const char *name; } known[] = {
        {2, 1, "cudaDriverGetVersion_v3020"}, {2, 20, "cudaMalloc_v3020"},
        {2, 41, "cudaMemcpyAsync_v3020"}, {2, 131, "cudaStreamSynchronize_v3020"},
        {2, 211, "cudaLaunchKernel_v7000"}, {2, 214, "cudaLaunchKernel_ptsz_v7000"},
        {2, 311, "cudaGraphLaunch_v10000"}, {2, 505, "__cudaLaunchKernel_v13000"},
        {2, 506, "__cudaLaunchKernel_ptsz_v13000"}, {1, 307, "cuLaunchKernel"},
        {1, 2, "cuDriverGetVersion"}, {1, 276, "cuMemcpyHtoD_v2"},
        {2, 244, "cudaProfilerStart_v4000"}, {2, 245, "cudaProfilerStop_v4000"},
        {1, 302, "cuProfilerStart"}, {1, 303, "cuProfilerStop"},
    };
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (known[at].domain == domain && known[at].call == call) {
            *name = known[at].name;
            return 0;
        }
    return 1;
}
int cuptiSetThreadIdType(int type) { return answer("SetThreadIdType", type); }
int cuptiActivityRegisterCallbacks(void *request, void *complete)
{
    *(void **)&requested = request;
    *(void **)&completed = complete;
    return answer("ActivityRegisterCallbacks", 0);
}
static char callback_is_on[4][2048];
int cuptiEnableCallback(uint32_t on, void *subscriber, int domain, uint32_t call)
{
    if (subscriber != &lock || domain < 1 || domain > 3 || call >= 2048)
        return 1;
    callback_is_on[domain][call] = (char)on;
    return 0;
}
/* An end of a CUDA call, told to whoever asked for it: at 0 its beginning, at 1 its return of 7. */
void fake_call(uint32_t domain, uint32_t call, uint32_t site, uint32_t correlation)
{
    static uint32_t seven = 7;
    uint64_t data[9] = {site, 0xEE, 0xEE, (uintptr_t)&seven, 0xEE, 0xEE, 0xEE, 0xEE, correlation};
    if (callback_is_on[domain][call])
        subscribed(NULL, (int)domain, call, data);
}
/* Handles of graphs and their nodes are their numbers; a node's has its graph in its upper half. */
int cuptiGetGraphNodeId(void *node, uint64_t *id) { return *id = (uintptr_t)node, node == NULL; }
int cuptiGetGraphId(void *graph, uint32_t *id)
{
    return *id = (uint32_t)(uintptr_t)graph, graph == NULL;
}
int cuptiGetGraphExecId(void *graph, uint32_t *id) { return cuptiGetGraphId(graph, id); }
/* What CUPTI says of a graph that is made or destroyed, if it was asked to. */
void fake_graph(uint32_t call, uint64_t graph, uint64_t node, uint64_t original)
{
    uint64_t data[7] = {graph, 0xEE, node, original, 0xEE, 0xEE, graph};
    void *resource[3] = {(void *)0xEE, (void *)0xEE, data};
    if (callback_is_on[3][call])
        subscribed(NULL, 3, call, resource);
}
static char enabled[64];
int fake_is_enabled(int kind) { return enabled[kind]; }
int cuptiActivityEnable(int kind)
{
    enabled[kind % 64] = 1;
    return answer("ActivityEnable", kind);
}
int cuptiActivityDisable(int kind)
{
    enabled[kind % 64] = 0;
    return answer("ActivityDisable", kind);
}
static char call_is_on[2][2048];
#ifndef ALL_CALLS
int cuptiActivityEnableRuntimeApi(uint32_t call, uint8_t on)
{
    call_is_on[0][call % 2048] = (char)on;
    return answer("ActivityEnableRuntimeApi", on ? (long)call : -1);
}
int cuptiActivityEnableDriverApi(uint32_t call, uint8_t on)
{
    call_is_on[1][call % 2048] = (char)on;
    return answer("ActivityEnableDriverApi", on ? (long)call : -1);
}
#endif
/* How many kinds, calls and callbacks are on. */
int fake_on(void)
{
    int count = 0;
    for (int at = 0; at < 64; at++)
        count += enabled[at];
    for (int at = 0; at < 2048; at++) {
        count += call_is_on[0][at] + call_is_on[1][at];
        for (int domain = 1; domain < 4; domain++)
            count += callback_is_on[domain][at];
    }
    return count;
}
/* Records stand in a buffer with their sizes before them. */
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record)
{
    uint64_t size = 0;
    uint8_t *at = *record;
    if (at != NULL) {
        memcpy(&size, at - 8, 8);
        at += (size + 7) / 8 * 8;
    } else {
        at = buffer;
    }
    if (at + 8 > buffer + valid)
        return 12;
    *record = at + 8;
    return 0;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count)
{
    (void)context, (void)stream;
    *count = dropped;
    dropped = 0;
    return 0;
}
/* What a thread's records go to until it is full. */
static uint8_t *lent;
static size_t lent_bytes;
uint64_t fake_lend(void)
{
    size_t records;
    requested(&lent, &lent_bytes, &records);
    return lent_bytes;
}
static int flushes;
int fake_flushes(void) { return flushes; }
int cuptiActivityFlushPeriod(uint32_t milliseconds)
{
    return answer("ActivityFlushPeriod", milliseconds);
}
int cuptiActivityFlushAll(uint32_t how)
{
    (void)how;
    flushes++;
    pthread_mutex_lock(&lock);
    size_t at = 0;
    while (at < queued) {
        uint8_t *buffer = lent;
        size_t size = lent_bytes, records = 0, used = 0;
        lent = NULL;
        if (buffer == NULL) {
            records = 1;
            requested(&buffer, &size, &records);
        }
        if (buffer == NULL || (uintptr_t)buffer % 8 != 0 || records != 0)
            abort();
        while (at < queued) {
            uint64_t length;
            memcpy(&length, queue + at, 8);
            length = 8 + (length + 7) / 8 * 8;
            if (used + length > size)
                break;
            memcpy(buffer + used, queue + at, length);
            used += length;
            at += length;
        }
        completed(NULL, 0, buffer, size, used);
    }
    queued = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}
/* Handles of streams are their numbers, a hundred more; contexts are of devices, a thousand more.
 * Streams without a handle are those of a context, or nobody's. */
int cuptiGetStreamIdEx(void *context, void *stream, uint8_t per_thread, uint32_t *id)
{
    if (stream == NULL) {
        *id = per_thread ? 31 : 30;
        return context == NULL ? 21 : 0;
    }
    *id = (uint32_t)(uintptr_t)stream - 100;
    return context != NULL || per_thread || (uintptr_t)stream < 100;
}
int cuptiGetContextId(void *context, uint32_t *id) { return *id = 5, context == NULL; }
int cuptiGetDeviceId(void *context, uint32_t *device)
{
    *device = (uint32_t)(uintptr_t)context - 1000;
    return context == NULL;
}
