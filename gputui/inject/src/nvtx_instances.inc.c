/* Each library that holds NVTX's headers has an instance of NVTX of its own: its pointers to our
 * functions are set as this process wakes and cleared as it falls asleep. Those that asked for a
 * tool before we came are found in their library's data.
 *
 * Nothing is written to an instance whose library was unloaded: pointers are set in
 * dl_iterate_phdr, which keeps libraries from being unloaded meanwhile. */

#pragma once

#include "libraries.inc.c"
#include "locks.inc.c"
#include "nvtx_install.inc.c"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

enum { INSTANCES = 256 };
static struct {
    const Callbacks *callbacks;
    int (*functions)(int, Function ***, unsigned *); /* so that another in its place shows */
} instances[INSTANCES];
static uint32_t instance_count; /* guarded by INSTANCES_LOCK, as is the table */
static uint32_t held_instances; /* by another tool, as last seen */

/* nvtxGlobals_v3 begins like this, in every version from 3.0.1 to that of CUDA 13. */
typedef struct {
    uint32_t state, padding;
    Callbacks callbacks;
    size_t version_size;
    uint32_t version, reserved;
    void (*set_version)(uint32_t);
    Function pointers[];
} Globals;
enum { STATE_FRESH = 0, STATE_STARTED = 1, STATE_COMPLETE = 2 };
enum { VERSION_INFO_BYTES = 24, VERSIONS_LEAST = 2, VERSIONS_MOST = 9, MODULES_MOST = 6 };

static void remember_instance(const Callbacks *callbacks)
{
    if (!lock(INSTANCES_LOCK))
        return;
    uint32_t at = 0;
    while (at < instance_count && instances[at].callbacks != callbacks)
        at++;
    if (at < INSTANCES) {
        instances[at].callbacks = callbacks;
        instances[at].functions = callbacks->get_module_functions;
        instance_count += at == instance_count;
    }
    unlock(INSTANCES_LOCK);
}

static int lies_in(const struct dl_phdr_info *library, uint32_t flag, const void *address)
{
    uintptr_t at = (uintptr_t)address - library->dlpi_addr;
    for (int each = 0; each < library->dlpi_phnum; each++) {
        const ElfW(Phdr) *segment = &library->dlpi_phdr[each];
        if (segment->p_type == PT_LOAD && segment->p_flags & flag && at >= segment->p_vaddr &&
            at < segment->p_vaddr + segment->p_memsz)
            return 1;
    }
    return 0;
}

/* Whether what these callbacks lead to lies in the library's own data and code. */
static int is_whole(const struct dl_phdr_info *library, const Callbacks *callbacks)
{
    Function **table = NULL;
    unsigned size = 0;
    if (!lies_in(library, PF_R, callbacks) ||
        callbacks->struct_size < offsetof(Callbacks, get_module_functions) + sizeof(Function) ||
        !lies_in(library, PF_X, (const void *)(uintptr_t)callbacks->get_module_functions) ||
        !callbacks->get_module_functions(MODULE_CORE, &table, &size) || table == NULL)
        return 0;
    for (unsigned at = 1; at < size && at < MODULE_FUNCTIONS; at++)
        if (table[at] != NULL && !lies_in(library, PF_W, table[at]))
            return 0;
    return 1;
}

typedef struct {
    int awake, pagemap, unfinished; /* instances in the making */
    uint8_t alive[INSTANCES];
} Search;

static int give_known(struct dl_phdr_info *library, size_t size, void *data)
{
    Search *search = data;
    (void)size;
    for (uint32_t at = 0; at < instance_count; at++) {
        const Callbacks *callbacks = instances[at].callbacks;
        if (!lies_in(library, PF_R, callbacks))
            continue;
        if (callbacks->get_module_functions == instances[at].functions &&
            is_whole(library, callbacks)) {
            install(callbacks, search->awake);
            search->alive[at] = 1;
        }
    }
    return 0;
}

/* Sets or clears the pointers of every known instance, and forgets those that are gone. */
static void give_functions(int awake)
{
    Search search = {.awake = awake};
    wait_for_loader();
    if (!lock(INSTANCES_LOCK))
        return;
    look_at_libraries(give_known, &search);
    uint32_t kept = 0;
    for (uint32_t at = 0; at < instance_count; at++)
        if (search.alive[at])
            instances[kept++] = instances[at];
    instance_count = kept;
    unlock(INSTANCES_LOCK);
}

/* Whether these words are an instance: then its own table leads back into it. */
static int is_instance(const struct dl_phdr_info *library, const Globals *globals)
{
    Function **table = NULL;
    unsigned size = 0;
    if (globals->callbacks.struct_size != sizeof(Callbacks) || globals->state > STATE_COMPLETE ||
        globals->padding != 0 || globals->version_size != VERSION_INFO_BYTES ||
        globals->version < VERSIONS_LEAST || globals->version > VERSIONS_MOST ||
        !lies_in(library, PF_X, (const void *)(uintptr_t)globals->set_version) ||
        !is_whole(library, &globals->callbacks))
        return 0;
    return globals->callbacks.get_module_functions(MODULE_CORE, &table, &size) && size > 1 &&
           table[1] == &globals->pointers[0];
}

/* Of an instance that has had its chance: whether another tool has its functions in there. */
static int is_held(const Callbacks *callbacks)
{
    for (int which = 0; which < MODULES_SERVED; which++) {
        Function **table = NULL;
        unsigned size = 0;
        if (!callbacks->get_module_functions(modules[which].module, &table, &size))
            continue;
        for (unsigned at = 1; at < size && at < MODULE_FUNCTIONS; at++)
            if (table[at] != NULL && *table[at] != NULL &&
                *table[at] != modules[which].functions[at])
                return 1;
    }
    return 0;
}

/* Does for an instance that nobody has called what its first call would do, under the lock that it
 * would take: so the handles that its library makes are ours. */
static int begin_fresh(Globals *globals)
{
    uint32_t fresh = STATE_FRESH;
    if (!__atomic_compare_exchange_n(&globals->state, &fresh, STATE_STARTED, 0, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return 0;
    for (int module = 1; module <= MODULES_MOST; module++) {
        Function **table = NULL;
        unsigned size = 0;
        if (globals->callbacks.get_module_functions(module, &table, &size) && table != NULL)
            for (unsigned at = 1; at < size; at++)
                if (table[at] != NULL)
                    __atomic_store_n(table[at], NULL, __ATOMIC_RELEASE);
    }
    install(&globals->callbacks, is_armed());
    __atomic_store_n(&globals->state, STATE_COMPLETE, __ATOMIC_SEQ_CST);
    return 1;
}

static void meet_instance(Search *search, Globals *globals)
{
    for (uint32_t at = 0; at < instance_count; at++)
        if (instances[at].callbacks == &globals->callbacks)
            return;
    if (instance_count == INSTANCES)
        return;
    switch (__atomic_load_n(&globals->state, __ATOMIC_ACQUIRE)) {
    case STATE_FRESH:
        if (!begin_fresh(globals)) {
            search->unfinished = 1; /* its first call has just come */
            return;
        }
        break;
    case STATE_COMPLETE:
        if (is_held(&globals->callbacks)) {
            held_instances++;
            return;
        }
        install(&globals->callbacks, is_armed());
        break;
    default: search->unfinished = 1; return;
    }
    instances[instance_count].callbacks = &globals->callbacks;
    instances[instance_count++].functions = globals->callbacks.get_module_functions;
}

/* NVTX's structure holds 170 addresses, which the loader relocated: it lies in a page that is this
 * process's own. To read all the others would bring hundreds of megabytes into memory. */
enum { PAGES_AT_ONCE = 512 };
#define PAGE_PRESENT (1ull << 63)
#define PAGE_SWAPPED (1ull << 62)
#define PAGE_OF_FILE (1ull << 61)

static void search_page(const struct dl_phdr_info *library, Search *search, uintptr_t from,
                        uintptr_t to)
{
    for (uintptr_t at = (from + 7) & ~(uintptr_t)7; at < to; at += 8)
        if (((const Globals *)at)->callbacks.struct_size == sizeof(Callbacks) &&
            is_instance(library, (const Globals *)at))
            meet_instance(search, (Globals *)at);
}

static int search_library(struct dl_phdr_info *library, size_t size, void *data)
{
    Search *search = data;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), fixed = 0, fixed_end = 0;
    const char *name = strrchr(library->dlpi_name, '/');
    (void)size;
    if (strncmp(name != NULL ? name + 1 : library->dlpi_name, "libcupti", 8) == 0)
        return 0; /* CUPTI's own is its way to listen, not to speak */
    for (int each = 0; each < library->dlpi_phnum; each++)
        if (library->dlpi_phdr[each].p_type == PT_GNU_RELRO) {
            fixed = library->dlpi_addr + library->dlpi_phdr[each].p_vaddr;
            fixed_end = fixed + library->dlpi_phdr[each].p_memsz;
        }
    for (int each = 0; each < library->dlpi_phnum; each++) {
        const ElfW(Phdr) *segment = &library->dlpi_phdr[each];
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_W))
            continue;
        uintptr_t begin = library->dlpi_addr + segment->p_vaddr;
        uintptr_t end = begin + segment->p_filesz;
        if (segment->p_filesz < sizeof(Globals) + MODULE_FUNCTIONS * sizeof(Function))
            continue;
        uintptr_t last = end - sizeof(Globals) - MODULE_FUNCTIONS * sizeof(Function);
        for (uintptr_t at = begin & ~(page - 1); at < end; at += page * PAGES_AT_ONCE) {
            uint64_t states[PAGES_AT_ONCE];
            ssize_t got = pread(search->pagemap, states, sizeof states,
                                (off_t)(at / page * sizeof *states));
            for (ssize_t which = 0; which < got / (ssize_t)sizeof *states; which++) {
                uintptr_t from = at + (uintptr_t)which * page, to = from + page;
                if (from > last || !(states[which] & (PAGE_PRESENT | PAGE_SWAPPED)) ||
                    states[which] & PAGE_OF_FILE || (from >= fixed && to <= fixed_end))
                    continue;
                search_page(library, search, from < begin ? begin : from,
                            to < last + 1 ? to : last + 1);
            }
        }
    }
    return 0;
}

/* Meets the instances of libraries that were loaded since the last search, some 3 ms; returns
 * whether it could look. A library whose instance was just in the making is looked at again. */
static int search_instances(int again)
{
    static uint64_t seen_kib = UINT64_MAX; /* of code, all of which was searched */
    uint64_t code_kib = library_code_kib();
    Search search = {0};
    if (code_kib == seen_kib && !again)
        return 1;
    search.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (search.pagemap < 0)
        return 0;
    wait_for_loader();
    if (lock(INSTANCES_LOCK)) {
        held_instances = 0;
        look_at_libraries(search_library, &search);
        seen_kib = search.unfinished ? UINT64_MAX : code_kib;
        unlock(INSTANCES_LOCK);
    }
    close(search.pagemap);
    return 1;
}
