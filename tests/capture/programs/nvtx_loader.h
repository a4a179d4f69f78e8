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

static Function core[16], core2[16];
static Function *core_table[16], *core2_table[16];

static int module_functions(int module, Function ***table, unsigned *size)
{
    if (module != 1 && module != 5)
        return 0;
    *table = module == 1 ? core_table : core2_table;
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
    }
    if (library == NULL)
        return 0;
    *(void **)&entry = dlsym(library, "InitializeInjectionNvtx2");
    return entry != NULL && entry(export_table);
}

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
#define register_a CORE2(10, void *, void *, const char *)
#define register_w CORE2(11, void *, void *, const wchar_t *)
#define domain_create_a CORE2(12, void *, const char *)
#define domain_create_w CORE2(13, void *, const wchar_t *)
#define domain_destroy CORE2(14, void, void *)
