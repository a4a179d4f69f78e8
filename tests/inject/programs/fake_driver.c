/* A stand-in for libcuda, of whose contexts one is current, of device 2; streams are of device 1. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

int cuCtxGetCurrent(void **context) { return *context = (void *)1002, 0; }
int cuStreamGetCtx(void *stream, void **context) { return *context = (void *)1001, stream == 0; }
int cuDeviceGetCount(int *count) { return *count = 2, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return *value = attribute == 38 ? (50 + device) << 20 : 7, 0;
}
int cuInit(unsigned flags)
{
    void *tool = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
    int (*entry)(void);
    *(void **)&entry = dlsym(tool, "InitializeInjection");
    return flags + !entry();
}

static uintptr_t graphs;
int cuGraphCreate(void **graph, unsigned flags)
{
    *graph = (void *)++graphs;
    return flags != 0;
}
int cuGraphDestroy(void *graph) { return graph == 0; }
