/* A libcupti.so.13 whose GPU runs two kernels for ever, by CLOCK_REALTIME: in each period of 97 µs
 * A from its beginning on, B from 52 µs on, each for a time that depends on the period's number as
 * in tests/counters/schedule.py. Functions have the signatures of NVIDIA's headers, as
 * cupti_sampling.h declares them and test_cupti_structs.py checks.
 *
 * FAKE_CUPTI: a version; "rights", "busy", "mig", "unknown": what enabling returns; "two": two
 * counters a pass; "overflow": the hardware's buffer runs over in every third burst; "sysclk": no trigger
 * by time; "stuck": decoding never returns; "crash": it ends the process; "garbage": values that are
 * none; "offset N": its clock is N ns ahead. FAKE_CUPTI_LOG: a file that gets a line for each Enable and Disable. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cupti_sampling.h"

#define EXPORT __attribute__((visibility("default")))
#define CHECK(parameters, type, last)                                               \
    if ((parameters)->size != offsetof(type, last) + sizeof((parameters)->last) ||  \
        (parameters)->unused != NULL) return 1

enum { PERIOD = 97000, B_START = 52000, COUNTERS = 16, NAME = 96 };
static struct { char names[COUNTERS][NAME]; size_t count; } added;
static int enabled, started, starts;
static uint64_t interval, next_ns, stopped_ns;
typedef struct { uint64_t magic, capacity, count, starts[]; } Image;
enum { MAGIC = 0x66616b65 };

static int is(const char *word) {
    const char *text = getenv("FAKE_CUPTI");
    return text != NULL && strncmp(text, word, strlen(word)) == 0;
}
static int64_t offset_ns(void) { return is("offset ") ? atoll(getenv("FAKE_CUPTI") + 7) : 0; }
static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static void note(const char *line) {
    const char *path = getenv("FAKE_CUPTI_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file < 0) return;
    if (write(file, line, strlen(line)) < 0) abort();
    close(file);
}

/* How long A and B ran between two moments. */
static void ran(uint64_t start, uint64_t end, double *a, double *b) {
    *a = *b = 0;
    for (uint64_t period = start / PERIOD; period * PERIOD < end; period++) {
        uint64_t hash = period * 2654435761ull >> 7, at = period * PERIOD;
        uint64_t ends[2][2] = {{at, at + 10000 + hash % 31 * 1000},
                               {at + B_START, at + B_START + 5000 + (hash >> 8) % 41 * 1000}};
        for (int k = 0; k < 2; k++) {
            uint64_t from = ends[k][0] > start ? ends[k][0] : start;
            uint64_t to = ends[k][1] < end ? ends[k][1] : end;
            if (to > from) *(k ? b : a) += (double)(to - from);
        }
    }
}

static double value(const char *name, uint64_t start, uint64_t end) {
    double a, b, length = (double)(end - start);
    ran(start, end, &a, &b);
    if (is("garbage")) return start % 3 == 0 ? NAN : -1e300;
    if (strstr(name, "sm__cycles_elapsed")) return length * 1.5;
    if (strstr(name, "sm__cycles_active")) return (a * 99 + b * 25) / length;
    if (strstr(name, "pipe_tensor")) return a * 80 / length;
    if (strstr(name, "dram__bytes_read")) return a * 900 + b * 60;
    if (strstr(name, "dram__bytes_write")) return a * 100 + b * 40;
    if (strstr(name, "warps_active")) return (a * 50 + b * 3) / length;
    return 0;
}

EXPORT int cuptiGetVersion(uint32_t *version) {
    const char *text = getenv("FAKE_CUPTI");
    *version = text != NULL && *text >= '0' && *text <= '9' ? (uint32_t)atoi(text) : 130001;
    return 0;
}
EXPORT int cuptiGetResultString(CuptiResult result, const char **text) {
    *text = result == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_OF_A_TEST";
    return 0;
}
EXPORT int cuptiProfilerInitialize(ProfilerInitialize *p) { CHECK(p, ProfilerInitialize, unused); return 0; }
EXPORT int cuptiDeviceGetChipName(ChipName *p) {
    CHECK(p, ChipName, chip);
    p->chip = "GH100";
    return p->device != 0;
}
EXPORT int cuptiProfilerHostInitialize(HostInitialize *p) {
    CHECK(p, HostInitialize, host);
    if (p->profiler != PROFILER_PM_SAMPLING || p->availability == NULL) return 1;
    added.count = 0;
    p->host = &added;
    return strcmp(p->chip, "GH100") == 0 ? 0 : 46;
}
EXPORT int cuptiProfilerHostDeinitialize(HostDeinitialize *p) { CHECK(p, HostDeinitialize, host); return p->host != &added; }
EXPORT int cuptiProfilerHostConfigAddMetrics(HostAddMetrics *p) {
    CHECK(p, HostAddMetrics, count);
    for (size_t at = 0; at < p->count; at++) {
        if (strncmp(p->names[at], "nvl", 3) == 0) return 17; /* this card has no NVLink */
        snprintf(added.names[at], NAME, "%s", p->names[at]);
    }
    added.count = p->count;
    return 0;
}
EXPORT int cuptiProfilerHostGetConfigImageSize(HostConfigSize *p) {
    CHECK(p, HostConfigSize, bytes);
    p->bytes = sizeof added;
    return 0;
}
EXPORT int cuptiProfilerHostGetConfigImage(HostConfigImage *p) {
    CHECK(p, HostConfigImage, image);
    memcpy(p->image, &added, sizeof added);
    return p->bytes != sizeof added;
}
EXPORT int cuptiProfilerHostGetNumOfPasses(HostPasses *p) {
    CHECK(p, HostPasses, passes);
    p->passes = is("two") ? (added.count + 1) / 2 : 1;
    return 0;
}
EXPORT int cuptiPmSamplingGetCounterAvailability(SamplingAvailability *p) {
    CHECK(p, SamplingAvailability, image);
    p->bytes = 64;
    if (p->image != NULL) memset(p->image, 0, 64);
    return is("rights") ? 35 : 0;
}
EXPORT int cuptiPmSamplingEnable(SamplingEnable *p) {
    CHECK(p, SamplingEnable, sampling);
    p->sampling = &enabled;
    if (is("busy") || enabled) return 7;
    if (is("mig")) return 43;
    if (is("unknown")) return 999;
    enabled = 1;
    note("enable\n");
    return 0;
}
EXPORT int cuptiPmSamplingDisable(SamplingObject *p) {
    CHECK(p, SamplingObject, sampling);
    if (!enabled) return 1;
    enabled = 0;
    note("disable\n");
    return 0;
}
EXPORT int cuptiPmSamplingSetConfig(SamplingConfig *p) {
    CHECK(p, SamplingConfig, append);
    if (is("sysclk") && p->trigger == TRIGGER_TIME_NS) return 27;
    interval = p->trigger == TRIGGER_TIME_NS ? p->interval : p->interval * 2 / 3;
    return p->config_bytes != sizeof added || p->buffer_bytes == 0;
}
EXPORT int cuptiPmSamplingStart(SamplingObject *p) {
    CHECK(p, SamplingObject, sampling);
    if (!enabled || started) return 7;
    started = 1;
    starts++;
    next_ns = now();
    return 0;
}
EXPORT int cuptiPmSamplingStop(SamplingObject *p) {
    CHECK(p, SamplingObject, sampling);
    if (!started) return 7;
    started = 0;
    stopped_ns = now();
    return 0;
}
EXPORT int cuptiPmSamplingGetCounterDataSize(SamplingImageSize *p) {
    CHECK(p, SamplingImageSize, bytes);
    p->bytes = sizeof(Image) + p->samples * sizeof(uint64_t);
    return p->count != added.count;
}
EXPORT int cuptiPmSamplingCounterDataImageInitialize(SamplingImageInitialize *p) {
    CHECK(p, SamplingImageInitialize, image);
    Image *image = (Image *)p->image;
    *image = (Image){MAGIC, (p->bytes - sizeof(Image)) / sizeof(uint64_t), 0};
    return 0;
}
EXPORT int cuptiPmSamplingDecodeData(SamplingDecode *p) {
    CHECK(p, SamplingDecode, overflow);
    Image *image = (Image *)p->image;
    if (is("stuck")) for (;;) pause();
    if (is("crash")) raise(SIGSEGV);
    if (is("overflow") && starts % 3 == 0) { p->overflow = 1; return 8; }
    uint64_t until = started ? now() : stopped_ns;
    while (next_ns + interval <= until && image->count < image->capacity) {
        image->starts[image->count++] = next_ns;
        next_ns += interval;
    }
    p->overflow = 0;
    return image->magic != MAGIC;
}
EXPORT int cuptiPmSamplingGetCounterDataInfo(SamplingImageInfo *p) {
    CHECK(p, SamplingImageInfo, completed);
    const Image *image = (const Image *)p->image;
    p->total = image->capacity;
    p->populated = p->completed = image->count;
    return 0;
}
EXPORT int cuptiPmSamplingCounterDataGetSampleInfo(SamplingSampleInfo *p) {
    CHECK(p, SamplingSampleInfo, end_ns);
    const Image *image = (const Image *)p->image;
    p->start_ns = image->starts[p->index] + (uint64_t)offset_ns();
    p->end_ns = p->start_ns + interval;
    return p->index >= image->count;
}
EXPORT int cuptiProfilerHostEvaluateToGpuValues(HostEvaluate *p) {
    CHECK(p, HostEvaluate, values);
    const Image *image = (const Image *)p->image;
    for (size_t at = 0; at < p->count; at++) {
        uint64_t start = image->starts[p->index];
        p->values[at] = value(p->names[at], start, start + interval);
    }
    return p->host != &added || p->count != added.count;
}
