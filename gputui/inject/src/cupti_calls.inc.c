/* The CUDA calls that are recorded. */

#pragma once

#include "cupti_functions.inc.c"
#include "known_strings.inc.c"

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

/* Enable recording of the calls of a domain whose names begin with one of `wanted`; returns how
 * many there are. In a program that was there before (`late`) enabling calls one by one brings no
 * record (CUPTI 13.0, H100): their kind is enabled, and the other calls disabled. */
static int enable_calls(int driver, const char *const *wanted, int late)
{
    int (*enable)(uint32_t, uint8_t) = cupti_enable_call[driver];
    int enabled = 0;
    String **names = call_names[driver];
    if (late && enable != NULL && cupti.ActivityEnable(call_kinds[driver]) != CUPTI_SUCCESS)
        return 0;
    for (uint32_t call = 1; call < CALLS; call++) {
        const char *name = NULL;
        if (cupti.GetCallbackName(driver ? DOMAIN_DRIVER : DOMAIN_RUNTIME, call, &name) !=
                CUPTI_SUCCESS ||
            name == NULL)
            continue;
        if (!begins_with_any(name, wanted)) {
            if (late && enable != NULL)
                enable(call, 0);
            continue;
        }
        /* What a program compiled with CUDA 13 calls cudaLaunchKernel. */
        if (strncmp(name, "__cudaLaunchKernel", 18) == 0)
            name = strstr(name, "_ptsz") != NULL ? "cudaLaunchKernel_ptsz_v7000"
                                                 : "cudaLaunchKernel_v7000";
        names[call] = ASCII(name);
        enabled += enable == NULL || enable(call, 1) == CUPTI_SUCCESS;
    }
    if (enable == NULL && cupti.ActivityEnable(call_kinds[driver]) != CUPTI_SUCCESS)
        return 0;
    return enabled;
}

static void switch_calls(int driver, int on)
{
    int (*enable)(uint32_t, uint8_t) = cupti_enable_call[driver];
    if (enable == NULL) {
        (on ? cupti.ActivityEnable : cupti.ActivityDisable)(call_kinds[driver]);
        return;
    }
    for (uint32_t call = 1; call < CALLS; call++)
        if (on ? call_off[driver][call] : call_made[driver][call] && !call_off[driver][call]) {
            enable(call, (uint8_t)on);
            call_off[driver][call] = (uint8_t)!on;
        }
}
