/* The CUDA calls that are recorded. */

#pragma once

#include "cupti_fields.h"
#include "cupti_functions.inc.c"
#include "known_strings.inc.c"
#include "thread.inc.c"
#include "trace_sampling.inc.c"

#include <string.h>

/* Names of the calls that were enabled, by domain and callback id. */
enum { CALLS = 2048 };
static String *call_names[2][CALLS];

static const int call_kinds[2] = {ACTIVITY_RUNTIME, ACTIVITY_DRIVER};

/* Calls that were made: only those are worth switching off. */
static uint8_t call_made[2][CALLS], call_off[2][CALLS];

/* Calls worth a record, by the beginning of CUPTI's name for them. Of the driver's, only those
 * that programs without the runtime launch and copy with: the runtime calls the others itself. */
static const char *const runtime_calls[] = {
    "cudaLaunch", "__cudaLaunchKernel", "cudaGraphLaunch", "cudaGraphInstantiate", "cudaMemcpy",
    "cudaMemset", "cudaMemPrefetch", "cudaMalloc", "cudaFree", "cudaHostAlloc",
    "cudaHostRegister", "cudaHostUnregister", "cudaDeviceSynchronize",
    "cudaThreadSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", NULL,
};
static const char *const driver_calls[] = {
    "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuLaunchHostFunc", "cuLaunchGrid",
    "cuGraphLaunch", "cuMemcpy", "cuMemset", NULL,
};

static int begins_with_any(const char *name, const char *const *beginnings)
{
    for (; *beginnings != NULL; beginnings++)
        if (strncmp(name, *beginnings, strlen(*beginnings)) == 0)
            return 1;
    return 0;
}

/* Whether calls are seen by callbacks, in a program that was there before and in windows, instead of
 * by CUPTI's records. One by one these bring none there (CUPTI 13.0, H100). Their kinds do, but on an
 * eager decode they cost 1.3 times bare with every call off, and 1.1 to 1.2 once off. */
static int by_callback;

static int enable_call(int driver, uint32_t call, int on)
{
    int (*enable)(uint32_t, uint8_t) = cupti_enable_call[driver];
    if (by_callback)
        return cupti.EnableCallback((uint32_t)on, subscriber,
                                    driver ? DOMAIN_DRIVER : DOMAIN_RUNTIME, call);
    return enable == NULL ? CUPTI_SUCCESS : enable(call, (uint8_t)on);
}

/* Enable recording of the calls of a domain whose names begin with one of `wanted`; returns how
 * many there are. */
static int enable_calls(int driver, const char *const *wanted)
{
    int enabled = 0;
    String **names = call_names[driver];
    for (uint32_t call = 1; call < CALLS; call++) {
        const char *name = NULL;
        if (cupti.GetCallbackName(driver ? DOMAIN_DRIVER : DOMAIN_RUNTIME, call, &name) !=
                CUPTI_SUCCESS ||
            name == NULL || !begins_with_any(name, wanted))
            continue;
        /* What a program compiled with CUDA 13 calls cudaLaunchKernel. */
        if (strncmp(name, "__cudaLaunchKernel", 18) == 0)
            name = strstr(name, "_ptsz") != NULL ? "cudaLaunchKernel_ptsz_v7000"
                                                 : "cudaLaunchKernel_v7000";
        names[call] = ASCII(name);
        call_off[driver][call] = (uint8_t)trace_sampling.budget; /* until its first window */
        /* Maybe in one of the runtime's, unseen; of a captured part before it begins. */
        call_made[driver][call] |= (uint8_t)by_callback;
        enabled += trace_sampling.budget || enable_call(driver, call, 1) == CUPTI_SUCCESS;
    }
    if (!by_callback && cupti_enable_call[driver] == NULL &&
        cupti.ActivityEnable(call_kinds[driver]) != CUPTI_SUCCESS)
        return 0;
    return enabled;
}

static void switch_calls(int driver, int on)
{
    if (!by_callback && cupti_enable_call[driver] == NULL) {
        (on ? cupti.ActivityEnable : cupti.ActivityDisable)(call_kinds[driver]);
        return;
    }
    for (uint32_t call = 1; call < CALLS; call++)
        if (on ? call_off[driver][call] : call_made[driver][call] && !call_off[driver][call]) {
            enable_call(driver, call, on);
            call_off[driver][call] = (uint8_t)!on;
        }
}

/* The calls that a thread is in, of the runtime and of the driver, if they are seen by callbacks. */
enum { SITE_ENTER = 0 };
typedef struct {
    uint64_t began_ns; /* 0 in none */
    uint32_t call, correlation;
} Calling;
static STATIC_THREAD Calling callings[2];

/* On the program's thread, at both ends of a call. One of the driver's that a call of the runtime
 * makes has its id, and is none of the program's. */
static void see_call(int driver, uint32_t call, const uint8_t *details)
{
    uint32_t correlation = callback_correlationId(details);
    Calling *calling = &callings[driver];
    if (call >= CALLS || call_names[driver][call] == NULL)
        return;
    if (callback_callbackSite(details) == SITE_ENTER) {
        if (driver && callings[0].began_ns != 0 && callings[0].correlation == correlation)
            return;
        if (calling->began_ns == 0)
            __atomic_fetch_add(&calls_open, 1, __ATOMIC_RELAXED);
        *calling = (Calling){now_ns(), call, correlation};
        return;
    }
    /* Its beginning may not have been seen. */
    if (calling->began_ns == 0 || calling->call != call || calling->correlation != correlation)
        return;
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    uint32_t *result = callback_functionReturnValue(details);
    Slot record = {.kind = KIND_API, .sub = (uint8_t)driver, .start = calling->began_ns,
                   .end = now_ns(), .thread = thread->tid, .correlation = correlation,
                   .a = result != NULL ? *result : 0, .name = id_of(call_names[driver][call])};
    calling->began_ns = 0;
    __atomic_fetch_sub(&calls_open, 1, __ATOMIC_RELAXED);
    emit(&record);
    sample_end(began);
}
