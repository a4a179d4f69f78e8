/* What CUPTI does not say of devices: the driver is asked, by the flusher's thread, for inside cuInit
 * it does not answer yet. The questions need no context and make none. */

#pragma once

#include "ring_write.inc.c"

#include <dlfcn.h>

enum { ATTRIBUTE_L2_CACHE_SIZE = 38 };

/* Whether they are written, or never will be. */
static int write_devices(void)
{
    int (*count)(int *), (*attribute)(int *, int, int), devices = 0, done = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL)
        return 1;
    *(void **)&count = dlsym(driver, "cuDeviceGetCount");
    *(void **)&attribute = dlsym(driver, "cuDeviceGetAttribute");
    if (count == NULL || attribute == NULL)
        done = 1;
    else if (count(&devices) == 0) {
        for (int device = 0; device < devices; device++) {
            int bytes = 0;
            if (attribute(&bytes, ATTRIBUTE_L2_CACHE_SIZE, device) == 0 && bytes > 0) {
                Slot record = {.kind = KIND_DEVICE, .a = (uint32_t)device, .start = now_ns(),
                               .value = (uint64_t)bytes};
                emit(&record);
            }
        }
        done = 1;
    }
    dlclose(driver);
    return done;
}
