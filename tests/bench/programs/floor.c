/* CUPTI alone: what it costs to have it deliver records that nobody looks at.
 *
 * Named to a program by CUDA_INJECTION64_PATH. Uses the libcupti that is loaded, else the one that
 * GPUTUI_CUPTI_PATH names, else the system's. FLOOR is a list of words, separated by spaces:
 *
 *     kernel copies calls graph   kinds of activity: kernels; copies and memsets; the calls that
 *                                 launch and copy; CUDA graphs as a whole
 *     nodes                       says when graphs and their nodes are made, cloned and destroyed
 *     off unsubscribe             switches what is on off again at once; leaves CUPTI
 *     after=MS                    does that only so long after the first records came
 *     flush=MS buffer=BYTES       asks for what is ready every so often (0: never); buffers' size
 *     forced                      asks for what is not ready too
 *     walk                        goes from record to record, as who wants to read them must, and
 *                                 counts kernels, and those without valid times
 *     zeroed                      hands over buffers that are zero already
 *     attribute=ID:VALUE:BYTES    sets an attribute of CUPTI's, a number of so many bytes
 *
 * Writes to FLOOR_OUT, if set, how many buffers and bytes of records it dropped, and what it counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t buffer_bytes = 512 << 10, delivered, buffers;
static uint64_t kernels, untimed;
static long flush_ms = 100;
static long after_ms;
static int zeroed, walks, forced;
static int (*next_record)(uint8_t *, size_t, uint8_t **);
static int (*flush_all)(uint32_t);

/* What is to be switched off, and how. */
static struct {
    int kinds[64], kind_count, off, leave, calls;
    void *cupti, *subscriber;
    int (*disable)(int), (*unsubscribe)(void *);
} asked;

static void switch_off(void);

static void nothing(void *data, int domain, uint32_t call, const void *details)
{
    (void)data, (void)domain, (void)call, (void)details;
}

/* A few kept buffers, so that the cost of new memory is no part of the floor. */
enum { KEPT = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *kept[KEPT];
static int kept_count;

static void request(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = NULL;
    pthread_mutex_lock(&lock);
    if (kept_count > 0)
        *buffer = kept[--kept_count];
    pthread_mutex_unlock(&lock);
    if (*buffer == NULL)
        *buffer = calloc(1, buffer_bytes);
    *size = *buffer != NULL ? buffer_bytes : 0;
    *records = 0;
}

/* The record's kind, and where a kernel's start and end stand in it. */
static void count_kernel(const uint8_t *record)
{
    uint32_t kind;
    uint64_t times[2];
    memcpy(&kind, record, sizeof kind);
    if (kind != 10)
        return;
    memcpy(times, record + 16, sizeof times);
    kernels++;
    untimed += times[0] == 0 || times[1] < times[0];
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    if (buffer == NULL)
        return;
    uint8_t *record = NULL;
    while (walks && valid > 0 && next_record(buffer, valid, &record) == 0)
        count_kernel(record);
    if (zeroed)
        memset(buffer, 0, valid);
    pthread_mutex_lock(&lock);
    delivered += valid;
    buffers++;
    if (kept_count < KEPT)
        kept[kept_count++] = buffer, buffer = NULL;
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static void *flush_loop(void *unused)
{
    struct timespec pause = {flush_ms / 1000, flush_ms % 1000 * 1000000};
    for (long left_ms = after_ms;;) {
        nanosleep(&pause, NULL);
        flush_all((uint32_t)forced);
        if (left_ms > 0 && delivered > 0 && (left_ms -= flush_ms) <= 0)
            switch_off();
    }
    return unused;
}

static void say(void)
{
    const char *path = getenv("FLOOR_OUT");
    FILE *out = path != NULL ? fopen(path, "w") : NULL;
    flush_all(1);
    if (out == NULL)
        return;
    fprintf(out, "%llu buffers %llu bytes %llu kernels %llu without valid times\n",
            (unsigned long long)buffers, (unsigned long long)delivered,
            (unsigned long long)kernels, (unsigned long long)untimed);
    fclose(out);
}

static void die(const char *what, int status)
{
    fprintf(stderr, "floor: %s: %d\n", what, status);
    _exit(1);
}

static void *find_cupti(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    const char *named = getenv("GPUTUI_CUPTI_PATH");
    void *found = NULL;
    for (int at = 0; at < 2 && found == NULL; at++)
        found = dlopen(names[at], RTLD_NOW | RTLD_NOLOAD);
    if (found == NULL && named != NULL)
        found = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    for (int at = 0; at < 2 && found == NULL; at++)
        found = dlopen(names[at], RTLD_NOW | RTLD_LOCAL);
    return found;
}

static void switch_calls(void *cupti, int domain, const char *function, const char *const *wanted,
                         int on)
{
    int (*name_of)(int, uint32_t, const char **) = dlsym(cupti, "cuptiGetCallbackName");
    int (*enable)(uint32_t, uint8_t) = dlsym(cupti, function);
    for (uint32_t call = 1; call < 2048; call++) {
        const char *name = NULL;
        if (name_of(domain, call, &name) != 0 || name == NULL)
            continue;
        for (int at = 0; wanted[at] != NULL; at++)
            if (strncmp(name, wanted[at], strlen(wanted[at])) == 0)
                enable(call, (uint8_t)on);
    }
}

/* gputui's own choice, so that what is left between the two is gputui's. */
static const char *const runtime[] = {
    "cudaLaunch", "__cudaLaunchKernel", "cudaGraphLaunch", "cudaGraphInstantiate",
    "cudaMemcpy", "cudaMemset", "cudaMemPrefetch", "cudaMalloc", "cudaFree", "cudaHostAlloc",
    "cudaHostRegister", "cudaHostUnregister", "cudaDeviceSynchronize",
    "cudaThreadSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", NULL,
};
static const char *const driver[] = {
    "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuLaunchHostFunc", "cuLaunchGrid",
    "cuGraphLaunch", "cuMemcpy", "cuMemset", NULL,
};

static void switch_all_calls(int on)
{
    switch_calls(asked.cupti, 2, "cuptiActivityEnableRuntimeApi", runtime, on);
    switch_calls(asked.cupti, 1, "cuptiActivityEnableDriverApi", driver, on);
}

static void switch_off(void)
{
    for (int at = 0; asked.off && at < asked.kind_count; at++)
        asked.disable(asked.kinds[at]);
    if (asked.off && asked.calls)
        switch_all_calls(0);
    if (asked.leave)
        asked.unsubscribe(asked.subscriber);
}

__attribute__((visibility("default"))) int InitializeInjection(void)
{
    const char *given = getenv("FLOOR");
    void *cupti = find_cupti();
    char words[1024], *rest = words;
    static const int copies[] = {1, 2, 22};
    static const uint32_t nodes[] = {9, 13, 19, 20};
    int status;
    pthread_t thread;
    if (cupti == NULL)
        die("no libcupti", 0);
    int (*subscribe)(void **, void *, void *) = dlsym(cupti, "cuptiSubscribe");
    int (*thread_ids)(int) = dlsym(cupti, "cuptiSetThreadIdType");
    int (*callbacks)(void *, void *) = dlsym(cupti, "cuptiActivityRegisterCallbacks");
    int (*enable)(int) = dlsym(cupti, "cuptiActivityEnable");
    int (*enable_callback)(uint32_t, void *, int, uint32_t) = dlsym(cupti, "cuptiEnableCallback");
    int (*attribute)(int, size_t *, void *) = dlsym(cupti, "cuptiActivitySetAttribute");
    flush_all = dlsym(cupti, "cuptiActivityFlushAll");
    next_record = dlsym(cupti, "cuptiActivityGetNextRecord");
    asked.cupti = cupti;
    asked.disable = dlsym(cupti, "cuptiActivityDisable");
    asked.unsubscribe = dlsym(cupti, "cuptiUnsubscribe");
    if ((status = subscribe(&asked.subscriber, nothing, NULL)) != 0)
        die("cuptiSubscribe", status);
    thread_ids(1);
    snprintf(words, sizeof words, "%s", given != NULL ? given : "");
    for (char *word; (word = strsep(&rest, " ")) != NULL && asked.kind_count < 60;) {
        int id;
        unsigned long long value;
        size_t bytes;
        if (strcmp(word, "kernel") == 0)
            asked.kinds[asked.kind_count++] = 10;
        else if (strcmp(word, "copies") == 0)
            for (size_t at = 0; at < sizeof copies / sizeof *copies; at++)
                asked.kinds[asked.kind_count++] = copies[at];
        else if (strcmp(word, "graph") == 0)
            asked.kinds[asked.kind_count++] = 51;
        else if (strcmp(word, "nodes") == 0)
            for (size_t at = 0; at < sizeof nodes / sizeof *nodes; at++)
                enable_callback(1, asked.subscriber, 3, nodes[at]);
        else if (strcmp(word, "calls") == 0)
            asked.calls = 1;
        else if (strcmp(word, "off") == 0)
            asked.off = 1;
        else if (strcmp(word, "unsubscribe") == 0)
            asked.leave = 1;
        else if (strcmp(word, "forced") == 0)
            forced = 1;
        else if (strcmp(word, "walk") == 0)
            walks = 1;
        else if (strcmp(word, "zeroed") == 0) {
            uint8_t one = 1;
            bytes = sizeof one;
            zeroed = 1;
            if ((status = attribute(5, &bytes, &one)) != 0)
                die(word, status);
        } else if (sscanf(word, "attribute=%d:%llu:%zu", &id, &value, &bytes) == 3) {
            if ((status = attribute(id, &bytes, &value)) != 0)
                die(word, status);
        } else if (sscanf(word, "flush=%ld", &flush_ms) != 1 &&
                   sscanf(word, "after=%ld", &after_ms) != 1 &&
                   sscanf(word, "buffer=%llu", (unsigned long long *)&buffer_bytes) != 1)
            die(word, 0);
    }
    callbacks(request, complete);
    if (asked.calls)
        switch_all_calls(1);
    for (int at = 0; at < asked.kind_count; at++)
        if ((status = enable(asked.kinds[at])) != 0)
            die("cuptiActivityEnable", status);
    if (after_ms == 0)
        switch_off();
    if (flush_ms > 0)
        pthread_create(&thread, NULL, flush_loop, NULL);
    atexit(say);
    return 1;
}
