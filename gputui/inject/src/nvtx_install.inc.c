/* How NVTX is given our functions. */

#pragma once

#include "nvtx_core.inc.c"
#include "nvtx_domains.inc.c"
#include "nvtx_payloads.inc.c"
#include "nvtx_resources.inc.c"
#include "start.inc.c"

#include <stddef.h>

typedef void (*Function)(void);
typedef const void *(*GetExportTable)(uint32_t);
typedef struct {
    size_t struct_size;
    int (*get_module_functions)(int module, Function ***table, unsigned *size);
} Callbacks;

enum {
    NVTX_CALLBACKS = 1,
    MODULE_CORE = 1,
    MODULE_CUDA = 2,
    MODULE_CUDART = 4,
    MODULE_CORE2 = 5,
    MODULE_FUNCTIONS = 16,
};

static const Function core_functions[MODULE_FUNCTIONS] = {
    NULL, (Function)mark_ex, (Function)mark_a, (Function)mark_w, (Function)start_ex,
    (Function)start_a, (Function)start_w, (Function)end, (Function)push_ex, (Function)push_a,
    (Function)push_w, (Function)pop_core, (Function)category_a, (Function)category_w,
    (Function)name_thread_a, (Function)name_thread_w,
};

static const Function core2_functions[MODULE_FUNCTIONS] = {
    NULL, (Function)domain_mark, (Function)domain_start, (Function)domain_end,
    (Function)domain_push, (Function)pop, (Function)resource_create,
    (Function)resource_destroy, (Function)domain_category_a,
    (Function)domain_category_w, (Function)register_a, (Function)register_w,
    (Function)domain_create_a, (Function)domain_create_w, (Function)domain_destroy,
    (Function)initialize,
};

/* Names of events are of no use: no event is shown. */
static const Function cuda_functions[MODULE_FUNCTIONS] = {
    NULL, (Function)device_named_a, (Function)device_named_w, (Function)context_named_a,
    (Function)context_named_w, (Function)stream_named_a, (Function)stream_named_w,
};
static const Function cudart_functions[MODULE_FUNCTIONS] = {
    NULL, (Function)device_named_a, (Function)device_named_w, (Function)stream_named_a,
    (Function)stream_named_w,
};

static const struct {
    int module;
    const Function *functions;
    uint32_t frequent; /* a bit each: ranges and marks, which a sleeping library leaves to NVTX */
} modules[] = {
    {MODULE_CORE, core_functions, 0xFFE},
    {MODULE_CORE2, core2_functions, 0x3E},
    {MODULE_CUDA, cuda_functions, 0},
    {MODULE_CUDART, cudart_functions, 0},
};
enum { MODULES_SERVED = sizeof modules / sizeof *modules };

/* NVTX calls a function if its pointer is not NULL: without those of ranges, they cost nothing. */
static int install(const Callbacks *callbacks, int awake)
{
    int installed = 0;
    for (int which = 0; which < MODULES_SERVED; which++) {
        const Function *functions = modules[which].functions;
        Function **table = NULL;
        unsigned size = 0;
        if (!callbacks->get_module_functions(modules[which].module, &table, &size) ||
            table == NULL)
            continue;
        for (unsigned at = 1; at < size && at < MODULE_FUNCTIONS; at++)
            if (table[at] != NULL && functions[at] != NULL)
                __atomic_store_n(
                    table[at],
                    awake || !(modules[which].frequent >> at & 1) ? functions[at] : NULL,
                    __ATOMIC_RELEASE);
        installed = 1;
    }
    return installed;
}

static void remember_instance(const Callbacks *callbacks);

/* NVTX calls this once for each library of the process that holds its headers. */
EXPORT int InitializeInjectionNvtx2(GetExportTable get_export_table)
{
    if (get_export_table == NULL || !start_capture())
        return 0;
    const Callbacks *callbacks = get_export_table(NVTX_CALLBACKS);
    if (callbacks == NULL ||
        callbacks->struct_size < offsetof(Callbacks, get_module_functions) + sizeof(Function) ||
        callbacks->get_module_functions == NULL)
        return 0;
    if (sleeps)
        remember_instance(callbacks);
    return install(callbacks, is_armed());
}

typedef struct {
    size_t id, slot_count;
    Function *slots;
} ExtensionSegment;
typedef struct {
    uint16_t version, size, module, compatibility;
    size_t segment_count;
    ExtensionSegment *segments;
} Extension;

enum { EXTENSION_PAYLOAD = 2, PAYLOAD_FUNCTIONS = 18 };

/* nvtxDomainIsEnabled, 7, is left to NVTX, which then says yes. */
static const Function payload_functions[PAYLOAD_FUNCTIONS] = {
    (Function)schema_register, (Function)any_register, (Function)payload_mark,
    (Function)payload_push, (Function)payload_pop, (Function)payload_start,
    (Function)payload_end, [12] = (Function)any_register, [16] = (Function)event_submit,
    [17] = (Function)event_batch_submit,
};

/* Accepts every extension and implements one: a refusal would make nvtxDomainIsEnabled say no, and
 * the Python package would then make no ranges at all. */
EXPORT int InitializeInjectionNvtxExtension(const Extension *extension)
{
    if (extension == NULL || extension->module != EXTENSION_PAYLOAD || !start_capture() ||
        extension->segment_count == 0 || extension->segments == NULL)
        return 1;
    const ExtensionSegment *segment = &extension->segments[0];
    for (size_t at = 0; at < PAYLOAD_FUNCTIONS && at < segment->slot_count; at++)
        if (payload_functions[at] != NULL)
            segment->slots[at] = payload_functions[at];
    return 1;
}
