/* A libcuda.so.1 with one GPU, for the sampler of counters. FAKE_DRIVER is the CUDA version that it
 * claims, or the error that cuInit returns where it is less than 1000. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int setting(void) {
    const char *text = getenv("FAKE_DRIVER");
    return text ? atoi(text) : 13000;
}
EXPORT int cuInit(unsigned flags) { return flags == 0 && setting() >= 1000 ? 0 : setting(); }
EXPORT int cuDriverGetVersion(int *version) { *version = setting(); return 0; }
EXPORT int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = visible != NULL && strncmp(visible, "GPU-none", 8) != 0;
    return 0;
}
EXPORT int cuDeviceGet(int *device, int index) { *device = index; return index ? 101 : 0; }
EXPORT int cuDeviceGetUuid(uint8_t *uuid, int device) {
    for (int at = 0; at < 16; at++) uuid[at] = (uint8_t)(0xa0 + at + device);
    return 0;
}
