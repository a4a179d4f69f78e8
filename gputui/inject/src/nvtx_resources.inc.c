/* Names that NVTX gives CUDA's devices, contexts and streams. The program knows streams by handles
 * and CUPTI by numbers: CUPTI is asked which is which. */

#pragma once

#include "cupti_functions.inc.c"
#include "known_strings.inc.c"
#include "ring_write.inc.c"
#include "wide_strings.inc.c"

#include <dlfcn.h>
#include <wchar.h>

typedef struct {
    uint16_t version, size;
    int32_t type;
    uint64_t identifier;
    int32_t message_type;
    const void *message;
} Resource;
_Static_assert(sizeof(Resource) == 32, "nvtxResourceAttributes_v0");

enum {
    CUDA_DEVICE_RESOURCE = 4 << 16 | 1,
    CUDA_CONTEXT_RESOURCE = 4 << 16 | 2,
    CUDA_STREAM_RESOURCE = 4 << 16 | 3,
    CUDART_DEVICE_RESOURCE = 5 << 16 | 0,
    CUDART_STREAM_RESOURCE = 5 << 16 | 1,
};

static void emit_resource(uint8_t resource, uint32_t number, uint32_t device, String *name)
{
    Slot record = {.kind = KIND_RESOURCE_NAME, .sub = resource, .name = id_of(name), .a = number,
                   .b = device, .start = now_ns()};
    emit(&record);
}

static uint32_t device_of(void *context)
{
    uint32_t device = UNKNOWN_DEVICE;
    if (cupti_ids.GetDeviceId == NULL || cupti_ids.GetDeviceId(context, &device) != CUPTI_SUCCESS)
        return UNKNOWN_DEVICE;
    return device;
}

static void name_device(int device, String *name)
{
    emit_resource(RESOURCE_DEVICE, (uint32_t)device, (uint32_t)device, name);
}

static void name_context(void *context, String *name)
{
    uint32_t number = 0;
    if (cupti_ids.GetContextId != NULL &&
        cupti_ids.GetContextId(context, &number) == CUPTI_SUCCESS)
        emit_resource(RESOURCE_CONTEXT, number, device_of(context), name);
}

/* The context that a stream is of, for those without a handle the thread's own: numbers of streams
 * are unique only within it. */
static void *context_of(void *stream)
{
    void *context = NULL, *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver != NULL) {
        int (*of_stream)(void *, void **), (*current)(void **);
        *(void **)&of_stream = dlsym(driver, "cuStreamGetCtx");
        *(void **)&current = dlsym(driver, "cuCtxGetCurrent");
        if ((stream == NULL || of_stream == NULL || of_stream(stream, &context) != 0) &&
            (current == NULL || current(&context) != 0))
            context = NULL;
        dlclose(driver);
    }
    return context;
}

/* CUDA's handles of the default stream, which every context has, and of each thread's own. */
enum { LEGACY_STREAM = 1, THREADS_STREAM = 2 };

/* CUPTI's number of the default stream of every context: always this one, though undocumented. */
enum { DEFAULT_STREAM = 7 };

static int number_of(void *context, void *stream, int of_thread, uint32_t *number)
{
    return cupti_ids.GetStreamId != NULL &&
           cupti_ids.GetStreamId(context, stream, (uint8_t)of_thread, number) == CUPTI_SUCCESS;
}

static void name_stream(void *stream, String *name)
{
    int of_thread = (uintptr_t)stream == THREADS_STREAM;
    if (of_thread || (uintptr_t)stream == LEGACY_STREAM)
        stream = NULL;
    void *context = context_of(stream);
    uint32_t number = 0;
    /* A handle belongs to one context. */
    if (!number_of(stream == NULL ? context : NULL, stream, of_thread, &number)) {
        if (stream != NULL || of_thread)
            return;
        number = DEFAULT_STREAM; /* also where there is no context yet */
    }
    emit_resource(RESOURCE_STREAM, number, context != NULL ? device_of(context) : UNKNOWN_DEVICE,
                  name);
}

#define NAMES_A_RESOURCE(function, type, call)                                     \
    static void function##_a(type resource, const char *text)                      \
    {                                                                              \
        if (is_armed())                                                            \
            call(resource, ASCII(text));                                           \
    }                                                                              \
    static void function##_w(type resource, const wchar_t *text)                   \
    {                                                                              \
        if (is_armed())                                                            \
            call(resource, intern_wide(text));                                     \
    }
NAMES_A_RESOURCE(device_named, int, name_device)
NAMES_A_RESOURCE(context_named, void *, name_context)
NAMES_A_RESOURCE(stream_named, void *, name_stream)

static void *resource_create(void *domain, const Resource *resource)
{
    String *name = &empty_storage.string;
    (void)domain;
    if (!is_armed() || resource == NULL || resource->size < sizeof(Resource))
        return NULL;
    if (resource->message != NULL && resource->message_type == MESSAGE_REGISTERED)
        name = (String *)resource->message;
    else if (resource->message_type == MESSAGE_ASCII)
        name = ASCII(resource->message);
    else if (resource->message_type == MESSAGE_UNICODE)
        name = intern_wide(resource->message);
    switch (resource->type) {
    case CUDA_DEVICE_RESOURCE:
    case CUDART_DEVICE_RESOURCE: name_device((int)resource->identifier, name); break;
    case CUDA_CONTEXT_RESOURCE: name_context((void *)(uintptr_t)resource->identifier, name); break;
    case CUDA_STREAM_RESOURCE:
    case CUDART_STREAM_RESOURCE: name_stream((void *)(uintptr_t)resource->identifier, name); break;
    default: break; /* locks and the like: nothing of theirs is shown */
    }
    return name;
}
static void resource_destroy(void *resource) { (void)resource; }
