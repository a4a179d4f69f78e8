/* Starting to capture in this process, and ending. */

#pragma once

#include "known_strings.inc.c"
#include "locks.inc.c"
#include "operators.inc.c"
#include "ring_create.inc.c"
#include "thread.inc.c"
#include "trace_sampling.inc.c"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_exit(void)
{
    uint64_t number;
    Slot record = {.kind = KIND_EXIT, .start = now_ns()};
    if (reserve(1, &number))
        put(number, &record);
    disarm();
    __atomic_store_n(&header->exited, 1, __ATOMIC_RELEASE);
}

static void forked(void)
{
    disarm();
    make_locks();
    __atomic_store_n(&fork_counted, 0, __ATOMIC_RELAXED);
}

static int create_flag(void)
{
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
    long page = sysconf(_SC_PAGESIZE);
    uint32_t *flag = map_pages((uint64_t)page);
    if (flag == NULL)
        return 0;
    /* Kernels before 4.14 lack it; the handler below still sees every ordinary fork. */
    (void)madvise(flag, (size_t)page, MADV_WIPEONFORK);
    armed = flag;
    return pthread_atfork(NULL, NULL, forked) == 0;
}

static void stop_cuda(void);

static void at_exit(void)
{
    if (!is_armed())
        return;
    stop_cuda();
    write_exit();
}

static void pin_library(void)
{
    /* NVTX unloads a library that refuses one of its units; handlers and threads must outlive
     * that. */
    Dl_info info;
    if (dladdr((void *)&header, &info) != 0 && info.dli_fname != NULL)
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE | RTLD_NOLOAD);
}

static void open_ring(void)
{
    static const char overflow[] = "(too many names)";
    int saved_errno = errno;
    const char *folder = getenv("GPUTUI_CAPTURE_DIR");
    if (folder != NULL && folder[0] == '/') {
        pin_library();
        make_locks();
        strings = new_table(4096);
        if (strings != NULL)
            too_many = insert_string(hash_bytes(overflow, sizeof overflow - 1), overflow,
                                     sizeof overflow - 1);
        if (too_many != NULL && create_flag()) {
            const char *annotate = getenv("GPUTUI_ANNOTATE");
            annotates_operators = annotate != NULL && strcmp(annotate, "autograd") == 0;
            ends_are_seen = pthread_key_create(&thread_end, thread_ended) == 0;
            read_trace_sampling();
            header = create_ring(folder, wanted_slots(), now_ns());
            if (header != NULL && atexit(at_exit) == 0)
                __atomic_store_n(armed, 1, __ATOMIC_RELEASE);
        }
    }
    errno = saved_errno;
}

/* In a forked child that goes on to initialise CUDA itself (servers fork their workers before any
 * CUDA call): from here on it is a process of its own, with a ring of its own. Only the forking
 * thread is left, so nothing else runs in here; its locks and its notes are the parent's. */
static void open_ring_after_fork(void)
{
    const char *folder = getenv("GPUTUI_CAPTURE_DIR");
    if (header == NULL || header->pid == (uint32_t)getpid() || folder == NULL)
        return;
    make_locks(); /* a raw clone calls no handler */
    trace_sampling.ready = 0;
    trace_sampling.tracing = 1;
    memset(&thread_state, 0, sizeof thread_state);
    for (uint64_t at = 0; at <= strings->mask; at++)
        if (strings->entries[at] != NULL)
            strings->entries[at]->published = 0;
    tail_seen = 0;
    Header *own = create_ring(folder, wanted_slots(), now_ns());
    if (own != NULL) {
        header = own;
        __atomic_store_n(armed, 1, __ATOMIC_RELEASE);
    }
}

static int start_capture(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, open_ring) == 0 && is_armed();
}
