/* What the sampler uses of CUPTI 13 and of CUDA's driver, declared anew: NVIDIA's headers need not be
 * there to build it. tests/counters/test_cupti_structs.py compares sizes and places with NVIDIA's
 * headers. All structures begin with their size and a pointer that stays NULL. */

#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int CuptiResult;

enum {
    CUPTI_OK = 0,
    CUPTI_INVALID_OPERATION = 7,
    CUPTI_OUT_OF_MEMORY = 8,
    CUPTI_HARDWARE_BUSY = 26,
    CUPTI_INSUFFICIENT_PRIVILEGES = 35,
    CUPTI_MIG_NOT_SUPPORTED = 43,
};
enum { PROFILER_PM_SAMPLING = 1 };
enum { TRIGGER_SYSCLK_CYCLES = 0, TRIGGER_TIME_NS = 1 };
enum { APPEND_KEEP_OLDEST = 0 };

/* A structure of parameters as CUPTI wants it: its size is up to the end of its last field. */
#define PARAMETERS(type, name, last, ...) \
    type name = {.size = offsetof(type, last) + sizeof(((type *)0)->last), __VA_ARGS__}

typedef struct {
    size_t size;
    void *unused;
} ProfilerInitialize;

typedef struct {
    size_t size;
    void *unused;
    size_t device;
    const char *chip;
} ChipName;

typedef struct {
    size_t size;
    void *unused;
    int profiler;
    const char *chip;
    const uint8_t *availability;
    void *host;
} HostInitialize;

typedef struct {
    size_t size;
    void *unused;
    void *host;
} HostDeinitialize;

typedef struct {
    size_t size;
    void *unused;
    void *host;
    const char **names;
    size_t count;
} HostAddMetrics;

typedef struct {
    size_t size;
    void *unused;
    void *host;
    size_t bytes;
} HostConfigSize;

typedef struct {
    size_t size;
    void *unused;
    void *host;
    size_t bytes;
    uint8_t *image;
} HostConfigImage;

typedef struct {
    size_t size;
    void *unused;
    size_t bytes;
    uint8_t *image;
    size_t passes;
} HostPasses;

typedef struct {
    size_t size;
    void *unused;
    void *host;
    const uint8_t *image;
    size_t bytes;
    size_t index;
    const char **names;
    size_t count;
    double *values;
} HostEvaluate;

typedef struct {
    size_t size;
    void *unused;
    size_t device;
    size_t bytes;
    uint8_t *image;
} SamplingAvailability;

typedef struct {
    size_t size;
    void *unused;
    size_t device;
    void *sampling;
} SamplingEnable;

typedef struct {
    size_t size;
    void *unused;
    void *sampling;
} SamplingObject; /* of Start, Stop and Disable */

typedef struct {
    size_t size;
    void *unused;
    void *sampling;
    size_t config_bytes;
    const uint8_t *config;
    size_t buffer_bytes;
    uint64_t interval;
    int trigger;
    int append;
} SamplingConfig;

typedef struct {
    size_t size;
    void *unused;
    void *sampling;
    const char **names;
    size_t count;
    uint32_t samples;
    size_t bytes;
} SamplingImageSize;

typedef struct {
    size_t size;
    void *unused;
    void *sampling;
    size_t bytes;
    uint8_t *image;
} SamplingImageInitialize;

typedef struct {
    size_t size;
    void *unused;
    void *sampling;
    uint8_t *image;
    size_t bytes;
    int stop_reason;
    uint8_t overflow;
} SamplingDecode;

typedef struct {
    size_t size;
    void *unused;
    const uint8_t *image;
    size_t bytes;
    size_t total, populated, completed;
} SamplingImageInfo;

typedef struct {
    size_t size;
    void *unused;
    void *sampling;
    const uint8_t *image;
    size_t bytes;
    size_t index;
    uint64_t start_ns, end_ns;
} SamplingSampleInfo;
