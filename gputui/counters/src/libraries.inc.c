/* The driver's library and CUPTI's, loaded by name at run time: the first of the places given that
 * holds a CUPTI that serves. */

#pragma once

#include "cupti_sampling.h"
#include "messages.inc.c"

#include <dlfcn.h>

enum { OLDEST_CUPTI = 130000, FIRST_UNTRIED_CUPTI = 140000 };

#define DRIVER_CALLS(CALL)                                  \
    CALL(cuInit, (unsigned flags))                          \
    CALL(cuDriverGetVersion, (int *version))                \
    CALL(cuDeviceGetCount, (int *count))                    \
    CALL(cuDeviceGet, (int *device, int index))             \
    CALL(cuDeviceGetUuid, (uint8_t *uuid, int device))
#define CUPTI_CALLS(CALL)                                                          \
    CALL(cuptiGetVersion, (uint32_t *version))                                     \
    CALL(cuptiGetResultString, (CuptiResult result, const char **text))            \
    CALL(cuptiProfilerInitialize, (ProfilerInitialize *))                          \
    CALL(cuptiDeviceGetChipName, (ChipName *))                                     \
    CALL(cuptiProfilerHostInitialize, (HostInitialize *))                          \
    CALL(cuptiProfilerHostDeinitialize, (HostDeinitialize *))                      \
    CALL(cuptiProfilerHostConfigAddMetrics, (HostAddMetrics *))                    \
    CALL(cuptiProfilerHostGetConfigImageSize, (HostConfigSize *))                  \
    CALL(cuptiProfilerHostGetConfigImage, (HostConfigImage *))                     \
    CALL(cuptiProfilerHostGetNumOfPasses, (HostPasses *))                          \
    CALL(cuptiProfilerHostEvaluateToGpuValues, (HostEvaluate *))                   \
    CALL(cuptiPmSamplingGetCounterAvailability, (SamplingAvailability *))          \
    CALL(cuptiPmSamplingEnable, (SamplingEnable *))                                \
    CALL(cuptiPmSamplingDisable, (SamplingObject *))                               \
    CALL(cuptiPmSamplingSetConfig, (SamplingConfig *))                             \
    CALL(cuptiPmSamplingStart, (SamplingObject *))                                 \
    CALL(cuptiPmSamplingStop, (SamplingObject *))                                  \
    CALL(cuptiPmSamplingGetCounterDataSize, (SamplingImageSize *))                 \
    CALL(cuptiPmSamplingCounterDataImageInitialize, (SamplingImageInitialize *))   \
    CALL(cuptiPmSamplingDecodeData, (SamplingDecode *))                            \
    CALL(cuptiPmSamplingGetCounterDataInfo, (SamplingImageInfo *))                 \
    CALL(cuptiPmSamplingCounterDataGetSampleInfo, (SamplingSampleInfo *))

#define POINTER(name, arguments) static int(*name) arguments;
DRIVER_CALLS(POINTER)
CUPTI_CALLS(POINTER)

/* NULL, or the first function that the library lacks. */
#define LOOK_UP(name, arguments)                                            \
    if (missing == NULL && (name = (int(*) arguments)dlsym(library, #name)) == NULL) \
        missing = #name;

static const char *cupti_path;
static uint32_t cupti_version;

static void load_driver(void)
{
    const char *missing = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        refuse("driver", 0, "no driver: %s", dlerror());
    DRIVER_CALLS(LOOK_UP)
    if (missing != NULL)
        refuse("driver", 0, "the driver lacks %s", missing);
}

/* Takes the first that serves; if none does, the reason of the last is reported. */
static void load_cupti(int count, char **places)
{
    char reason[512] = "none was found";
    for (int at = 0; at < count; at++) {
        const char *missing = NULL;
        void *library = dlopen(places[at], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            snprintf(reason, sizeof reason, "%s", dlerror());
            continue;
        }
        CUPTI_CALLS(LOOK_UP)
        if (missing != NULL) {
            snprintf(reason, sizeof reason, "%s lacks %s", places[at], missing);
        } else if (cuptiGetVersion(&cupti_version) != CUPTI_OK || cupti_version < OLDEST_CUPTI ||
                   cupti_version >= FIRST_UNTRIED_CUPTI) {
            snprintf(reason, sizeof reason, "%s is version %u, CUPTI 13 is needed", places[at],
                     cupti_version);
        } else {
            cupti_path = places[at];
            return;
        }
        dlclose(library);
    }
    refuse("library", 0, "%s", reason);
}

static const char *result_text(CuptiResult result)
{
    const char *text = NULL;
    return cuptiGetResultString(result, &text) == CUPTI_OK && text != NULL ? text : "unknown";
}
