/* Loads an NVTX tool the way NVTX 3's headers do, with tables of its own: a stand-in for them. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <wchar.h>

typedef void (*Function)(void);
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union { uint64_t u64; int64_t i64; double f64; uint32_t u32; int32_t i32; float f32; } payload;
    int32_t message_type;
    const void *message;
} Attributes;

static Function core[16], core2[16], cuda[16], cudart[16];
static Function *core_table[16], *core2_table[16], *cuda_table[16], *cudart_table[16];

/* The payload extension's: the state of the module, then its functions. */
typedef struct {
    uint64_t schema;
    size_t size;
    const void *data;
} PayloadData;
typedef struct {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t detail, offset;
    const void *semantics, *reserved;
} SchemaEntry;
typedef struct {
    uint64_t fields;
    const char *name;
    uint64_t type, flags;
    const SchemaEntry *entries;
    size_t count, static_size, pack;
    uint64_t id;
    void *extension;
} SchemaAttributes;
static intptr_t payload_slots[64];

static int module_functions(int module, Function ***table, unsigned *size)
{
    Function **tables[] = {NULL, core_table, cuda_table, NULL, cudart_table, core2_table};
    if (module < 1 || module > 5 || tables[module] == NULL)
        return 0;
    *table = tables[module];
    *size = 16;
    return 1;
}

static const void *export_table(uint32_t id)
{
    static const struct {
        size_t size;
        int (*functions)(int, Function ***, unsigned *);
    } callbacks = {sizeof callbacks, module_functions};
    return id == 1 ? &callbacks : NULL;
}

static int nvtx_load(void)
{
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path != NULL ? dlopen(path, RTLD_LAZY) : NULL;
    int (*entry)(const void *(*)(uint32_t));
    for (int at = 1; at < 16; at++) {
        core_table[at] = &core[at];
        core2_table[at] = &core2[at];
        cuda_table[at] = &cuda[at];
        cudart_table[at] = &cudart[at];
    }
    if (library == NULL)
        return 0;
    *(void **)&entry = dlsym(library, "InitializeInjectionNvtx2");
    return entry != NULL && entry(export_table);
}

/* As NVTX's payload extension does at its first call. */
static int nvtx_load_payloads(void)
{
    struct { size_t id, count; intptr_t *slots; } segment = {0, 63, payload_slots + 1};
    struct {
        uint16_t version, size, module, compatibility;
        size_t segments;
        void *segment, *export, *info;
    } module = {3, sizeof module, 2, 0x0104, 1, &segment};
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
    int (*entry)(void *);
    *(void **)&entry = dlsym(library, "InitializeInjectionNvtxExtension");
    return entry != NULL && entry(&module);
}

#define PAYLOAD(id, result, ...) ((result(*)(__VA_ARGS__))payload_slots[1 + id])
#define schema_register PAYLOAD(0, uint64_t, void *, const SchemaAttributes *)
#define payload_mark PAYLOAD(2, void, void *, const PayloadData *, size_t)
#define payload_push PAYLOAD(3, int, void *, const PayloadData *, size_t)
#define payload_pop PAYLOAD(4, int, void *, const PayloadData *, size_t)
#define payload_start PAYLOAD(5, uint64_t, void *, const PayloadData *, size_t)
#define payload_end PAYLOAD(6, void, void *, uint64_t, const PayloadData *, size_t)
#define event_submit PAYLOAD(16, void, void *, const PayloadData *, size_t)
#define event_batch_submit PAYLOAD(17, void, void *, const void *)
#define CORE(id, result, ...) ((result(*)(__VA_ARGS__))core[id])
#define CORE2(id, result, ...) ((result(*)(__VA_ARGS__))core2[id])
#define mark_ex CORE(1, void, const Attributes *)
#define mark_a CORE(2, void, const char *)
#define mark_w CORE(3, void, const wchar_t *)
#define start_ex CORE(4, uint64_t, const Attributes *)
#define start_a CORE(5, uint64_t, const char *)
#define start_w CORE(6, uint64_t, const wchar_t *)
#define end_range CORE(7, void, uint64_t)
#define push_ex CORE(8, int, const Attributes *)
#define push_a CORE(9, int, const char *)
#define push_w CORE(10, int, const wchar_t *)
#define pop CORE(11, int, void)
#define category_a CORE(12, void, uint32_t, const char *)
#define thread_a CORE(14, void, uint32_t, const char *)
#define thread_w CORE(15, void, uint32_t, const wchar_t *)
#define domain_mark CORE2(1, void, void *, const Attributes *)
#define domain_start CORE2(2, uint64_t, void *, const Attributes *)
#define domain_end CORE2(3, void, void *, uint64_t)
#define domain_push CORE2(4, int, void *, const Attributes *)
#define domain_pop CORE2(5, int, void *)
#define domain_category_w CORE2(9, void, void *, uint32_t, const wchar_t *)
#define CUDA(id) ((void(*)(void *, const char *))cuda[id])
#define CUDART(id) ((void(*)(void *, const char *))cudart[id])
#define CUDART_W(id) ((void(*)(void *, const wchar_t *))cudart[id])
#define resource_create CORE2(6, void *, void *, const void *)
#define resource_destroy CORE2(7, void, void *)
#define register_a CORE2(10, void *, void *, const char *)
#define register_w CORE2(11, void *, void *, const wchar_t *)
#define domain_create_a CORE2(12, void *, const char *)
#define domain_create_w CORE2(13, void *, const wchar_t *)
#define domain_destroy CORE2(14, void, void *)
