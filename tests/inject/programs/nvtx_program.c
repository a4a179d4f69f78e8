/* A program with NVTX ranges: `nvtx_program PART [COUNT]`. Prints what the calls returned. */
#define _GNU_SOURCE
#include "../../../gputui/inject/src/layout.h"
#include "nvtx_loader.h"
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef HALTING
/* As if the program were not let run for 10 ms before each look at the clock. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    static long looks;
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += ++looks / 100, now->tv_nsec = looks % 100 * 10000000;
    return result;
}
#endif

static Attributes ascii(const char *text)
{
    return (Attributes){.version = 3, .size = 48, .message_type = 1, .message = text};
}

static void show(long long value) { printf("%lld ", value); }

static void nesting(void)
{
    Attributes inner = ascii("inner");
    void *domain = domain_create_a("library");
    show(pop());
    show(push_a("outer"));
    show(domain_push(NULL, &inner));
    show(domain_push(domain, &inner));
    show(pop());
    show(domain_pop(NULL));
    show(pop());
    show(domain_pop(domain));
    show(domain_pop(domain));
    show(push_a("again"));
    show(pop());
}

static void strings(void)
{
    char longest[10000];
    Attributes wide = {.version = 3, .size = 48, .message_type = 2, .message = L"wide é 日本 😀"};
    Attributes registered = {.version = 2, .size = 48, .message_type = 3};
    Attributes none = {.version = 3, .size = 48};
    Attributes null_text = {.version = 3, .size = 48, .message_type = 1};
    Attributes cut = ascii("must not be read");
    push_w(L"wide é 日本 😀"), pop();
    push_ex(&wide), pop();
    registered.message = register_w(NULL, L"registered ü");
    push_ex(&registered), pop();
    push_ex(&none), pop();
    push_ex(&null_text), pop();
    push_a(NULL), pop();
    push_a(""), pop();
    cut.size = 40;
    push_ex(&cut), pop();
    push_ex(NULL), pop();
    memset(longest, 'x', 4095);
    strcpy(longest + 4095, "é and more");
    push_a(longest), pop();
    push_a("\x1b[31mred\n"), pop();
    show(domain_create_a("same") == domain_create_w(L"same"));
    show(domain_create_a("same") != domain_create_a("other"));
}

static void operators(void)
{
    push_a("aten::add, seq = 7, op_id = 12"), pop();
    push_a("aten::mul, op_id = 13"), pop();
    push_a("a, b"), pop();
    push_a(", seq = 1"), pop();
    push_a(NULL), pop();
    push_a("aten::linear, seq = 2");
    push_a("aten::t, op_id = 14"), push_a("aten::transpose"), pop();
    push_a("aten::addmm"), pop();
    pop(), push_a("profiler::_record_function_exit"), pop();
    push_a("detach"), pop(), push_a("aten::tanh"), pop();
    pop();
    for (int level = 0; level < 130; level++)
        push_a("aten::view");
    for (int level = 0; level < 131; level++)
        pop();
    push_a("aten::sum"), pop();
}

/* A module's operator in a forward pass, and its backward pass on another thread. */
static void *backward(void *unused)
{
    push_a("autograd::engine::evaluate_function: AddmmBackward0, op_id = 20");
    push_a("AddmmBackward0, seq = 7, op_id = 21, sizes = [[4, 8]]");
    push_a("aten::mm, op_id = 22, sizes = [[4, 8], [8, 2]], input_op_ids = [[21,0]]"), pop();
    pop(), pop();
    push_a("MeanBackward0, seq = 9, sizes = [[4]], input_op_ids = [[3,0]]"), pop();
    push_a("OldBackward0, seq = 8"), pop();
    push_a("OldBackward0, seq = 65543"), pop();
    push_a("aten::relu, seq = 8"), pop(); /* recomputed: number 8 is of two threads now */
    push_a("OldBackward0, seq = 8"), pop();
    return unused;
}

static void modules(void)
{
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
    void *(*name)(const char *) = (void *(*)(const char *))dlsym(library, "gputui_name");
    void (*begin)(void *) = (void (*)(void *))dlsym(library, "gputui_push");
    void (*leave)(void) = (void (*)(void))dlsym(library, "gputui_pop");
    pthread_t thread;
    begin(name("layers.0")), begin(name("layers.0.mlp"));
    push_a("aten::linear, seq = 7, op_id = 1, sizes = [[4, 2], [8, 2], [8]]");
    push_a("aten::addmm, seq = 7, op_id = 2, sizes = [[8], [4, 2], [2, 8], [], []]"), pop(), pop();
    leave();
    push_a("aten::relu, seq = 8, op_id = 3, sizes = [[4, 8]], input_op_ids = [[2,0]]"), pop();
    leave();
    push_a("aten::mean, seq = 9, op_id = 4, sizes = []"), pop();
    pthread_create(&thread, NULL, backward, NULL);
    pthread_join(thread, NULL);
}

static void attributes(void)
{
    void *domain = domain_create_a("library");
    Attributes a = ascii("a");
    category_a(5, "loading");
    domain_category_w(domain, 5, L"wïde");
    a.category = 5;
    a.color_type = 1;
    a.color = 0xFF00FF7F;
    a.payload_type = 1, a.payload.u64 = 1ull << 63;
    push_ex(&a), pop();
    a.payload_type = 2, a.payload.i64 = -5;
    domain_push(domain, &a), domain_pop(domain);
    a.payload_type = 3, a.payload.f64 = 0.5;
    mark_ex(&a);
    a.payload_type = 4, a.payload.u64 = ~0ull, a.payload.u32 = 7;
    mark_ex(&a);
    a.payload_type = 5, a.payload.i32 = -7;
    a.category = 6;
    mark_ex(&a);
    a.payload_type = 6, a.payload.f32 = 1.25f;
    a.color_type = 0;
    domain_mark(domain, &a);
    a.payload_type = 0x7fff;
    mark_ex(&a);
    struct { uint64_t schema; size_t size; const void *data; } data[3] = {
        {1 << 24, 2, "xy"}, {1 << 24, 3, "xyz"}, {77, SIZE_MAX, "ends in a NUL"},
    };
    a.payload_type = (int)0xDFBD0009, a.payload.u64 = (uint64_t)(uintptr_t)data;
    a.reserved = 3;
    mark_ex(&a);
}

/* Ranges whose messages lie in data of the program's own making. */
static void schemas(void)
{
    enum { POINTER = 1 << 1, ENDS_IN_NUL = 2 << 4, MESSAGE = 1 << 10 };
    struct { int32_t batch; const char *text; double loss; } pointed = {7, "pointed to", 0.5};
    struct { int16_t batch; char text[8]; } inlined = {7, "in here"};
    struct { int8_t batch; void *text; } registered = {7, register_a(NULL, "registered")};
    SchemaEntry pointer[] = {
        {.type = 15, .name = "batch"},
        {.flags = POINTER | ENDS_IN_NUL | MESSAGE, .type = 76},
        {.type = 20},
    };
    SchemaEntry fixed[] = {{.type = 13}, {.flags = MESSAGE, .type = 75, .detail = 8}};
    SchemaEntry handle[] = {{.type = 11}, {.flags = MESSAGE, .type = 80, .offset = 8}};
    SchemaEntry silent[] = {{.type = 15}};
    SchemaAttributes a = {.fields = 0x3fe, .name = "by its pointer", .type = 1, .entries = pointer,
                          .count = 3, .static_size = sizeof pointed, .id = 1 << 24};
    void *domain = domain_create_a("library");
    show(nvtx_load_payloads());
    show(schema_register(domain, &a) == 1 << 24);
    a.entries = fixed, a.count = 2, a.id = 0;
    uint64_t second = schema_register(domain, &a);
    a.entries = handle;
    uint64_t third = schema_register(domain, &a);
    a.entries = silent, a.count = 1, a.name = "no message";
    uint64_t fourth = schema_register(domain, &a);
    show(second >= 1ull << 32 && third > second && fourth > third);
    show(schema_register(domain, NULL));
    PayloadData data[] = {{1 << 24, sizeof pointed, &pointed}, {second, sizeof inlined, &inlined},
                          {third, sizeof registered, &registered}, {fourth, 4, &pointed},
                          {99, 3, "xyz"}, {second, 1, "x"}};
    show(payload_push(domain, &data[0], 1));
    show(payload_push(domain, &data[1], 1));
    payload_mark(domain, &data[2], 1);
    show(payload_pop(domain, NULL, 0));
    show(payload_pop(domain, &data[3], 1));
    uint64_t range = payload_start(domain, &data[3], 1);
    payload_end(domain, range, NULL, 0);
    payload_mark(domain, &data[4], 1);
    payload_mark(domain, &data[5], 1);
    payload_mark(domain, NULL, 5);
    payload_mark(NULL, data, 5);
    struct { uint16_t version, size; int type; void *id; int message_type; const void *message; }
    lock = {3, 32, 3 << 16 | 1, &range, 1, "a mutex"};
    show(resource_create(domain, &lock) != NULL);
    show(resource_create(domain, NULL) == NULL);
    resource_destroy(NULL);
}

/* As NCCL describes what it does, in several of its versions. */
static void collectives(void)
{
    struct { uint64_t comm; int ranks, rank, device; } made = {0xfeed5eed12345678, 8, 3, 1};
    struct { uint64_t comm; size_t bytes; int op; } reduced = {0xfeed5eed12345678, 1 << 20, 0};
    struct { uint64_t comm; size_t bytes; int peer; } sent = {0xfeed5eed12345678, 4096, 5};
    struct { size_t bytes; int op; } old = {2048, 0};
    SchemaEntry init[] = {{.type = 18, .name = "NCCL communicator ID"},
                          {.type = 5, .name = "No. of ranks"}, {.type = 5, .name = "Rank"},
                          {.type = 5, .name = "CUDA device"}};
    SchemaEntry all_reduce[] = {{.type = 18, .name = "NCCL communicator ID"},
                                {.type = 22, .name = "Message size [bytes]"},
                                {.type = 5, .name = "Reduction operation"}};
    SchemaEntry send[] = {{.type = 18, .name = "NCCL communicator ID"},
                          {.type = 22, .name = "Message size [bytes]"},
                          {.type = 5, .name = "Peer rank"}};
    void *domain = domain_create_a("NCCL");
    SchemaAttributes a = {.fields = 0x3fe, .type = 1, .entries = init, .count = 4,
                          .static_size = sizeof made};
    show(nvtx_load_payloads());
    uint64_t ids[4] = {schema_register(domain, &a)};
    a.entries = all_reduce, a.count = 3, ids[1] = schema_register(domain, &a);
    a.entries = send, ids[2] = schema_register(domain, &a);
    a.entries = all_reduce + 1, a.count = 2, ids[3] = schema_register(domain, &a);
    PayloadData data[] = {{ids[0], sizeof made, &made}, {ids[1], sizeof reduced, &reduced},
                          {ids[2], sizeof sent, &sent}, {ids[3], sizeof old, &old},
                          {ids[1], 7, &reduced}};
    Attributes b = ascii("ncclAllReduce");
    b.payload_type = (int)0xDFBD0009, b.payload.u64 = (uint64_t)(uintptr_t)&data[1];
    b.reserved = 1;
    payload_push(domain, NULL, 0), payload_pop(domain, &data[0], 1);
    domain_push(domain, &b), domain_pop(domain);
    for (int at = 2; at < 5; at++)
        payload_push(domain, &data[at], 1), domain_pop(domain);
}

/* Events that are handed over later than they were: three, and of unknown size once more. */
static void deferred(void)
{
    struct { uint64_t time; double value; } events[3] = {{0}};
    SchemaEntry entries[] = {{.type = 18}, {.type = 20}};
    SchemaAttributes a = {.fields = 0x37e, .name = "sample", .type = 1, .entries = entries,
                          .count = 2, .static_size = sizeof events[0], .id = 1 << 24};
    void *domain = domain_create_a("library");
    struct { uint64_t schema; size_t size; const void *events; uint64_t rest[5]; }
    batch = {1 << 24, sizeof events, events}, unknown = {77, sizeof events, events};
    PayloadData data = {1 << 24, sizeof events[0], events};
    show(nvtx_load_payloads());
    schema_register(domain, &a);
    event_batch_submit(domain, &batch);
    event_batch_submit(domain, &unknown);
    event_batch_submit(domain, NULL);
    event_submit(domain, &data, 1);
}

/* Names of CUDA's resources, before CUDA is there and after. */
static void resources(void)
{
    int (*cuda_comes)(void);
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
    *(void **)&cuda_comes = dlsym(library, "InitializeInjection");
    CUDART(3)((void *)113, "too early");
    CUDART(3)(NULL, "early, for every context");
    cuda_comes();
    CUDART(1)((void *)1, "trainer");
    CUDART(3)((void *)113, "copies");
    CUDART_W(4)((void *)114, L"cömpute");
    CUDART(3)(NULL, "default");
    CUDART(3)((void *)1, "default as well");
    CUDART(3)((void *)2, "this thread's");
    CUDART(3)((void *)99, "no such stream");
    CUDA(3)((void *)1002, "context of 2");
    CUDA(5)((void *)115, "of the driver");
    struct { uint16_t version, size; int type; void *id; int message_type; const void *message; }
    stream = {3, 32, 5 << 16 | 1, (void *)116, 3, register_a(NULL, "registered")};
    show(resource_create(NULL, &stream) != NULL);
    stream.size = 24;
    show(resource_create(NULL, &stream) == NULL);
}

/* The same with a driver, which knows contexts. */
static void resources_with_driver(void)
{
    show(dlopen(getenv("GPUTUI_TEST_DRIVER"), RTLD_NOW) != NULL);
    resources();
}

static void *named_wide(void *unused)
{
    thread_w((uint32_t)syscall(SYS_gettid), L"loader ö");
    push_a("in a thread"), pop();
    return unused;
}

static void named_threads(void)
{
    pthread_t thread;
    thread_a((uint32_t)syscall(SYS_gettid), "scheduler");
    push_a("in main"), pop();
    pthread_create(&thread, NULL, named_wide, NULL);
    pthread_join(thread, NULL);
}

static void *finish(void *id)
{
    end_range((uint64_t)(uintptr_t)id);
    return NULL;
}

static void start_end(void)
{
    pthread_t thread;
    Attributes a = ascii("in a domain");
    void *domain = domain_create_a("library");
    uint64_t one = start_a("one"), two = domain_start(domain, &a), three = start_w(L"three");
    show(one != 0 && two != 0 && one != two && two != three);
    end_range(one);
    pthread_create(&thread, NULL, finish, (void *)(uintptr_t)two);
    pthread_join(thread, NULL);
    domain_end(domain, three);
    end_range(0);
    thread_a((uint32_t)syscall(SYS_gettid), "the main thread");
    thread_w(12345, L"änother");
    mark_a("done");
}

static long count;

static void *worker(void *name)
{
    for (long at = 0; at < count; at++) {
        Attributes a = ascii(name);
        a.payload_type = 2;
        a.payload.i64 = at;
        push_ex(&a);
        pop();
    }
    return NULL;
}

static void threads(void)
{
    pthread_t threads[8];
    static char names[8][16];
    for (int at = 0; at < 8; at++) {
        snprintf(names[at], sizeof names[at], "worker %d", at);
        pthread_create(&threads[at], NULL, worker, names[at]);
    }
    for (int at = 0; at < 8; at++)
        pthread_join(threads[at], NULL);
}

static volatile int leaving;

static void *push_for_ever(void *name)
{
    while (leaving >= 0)
        push_a(name), pop();
    return NULL;
}

/* main returns, and its handlers run, while other threads are in the middle of their ranges. */
static void leave(void)
{
    pthread_t thread;
    for (int at = 0; at < 4; at++)
        pthread_create(&thread, NULL, push_for_ever, "for ever");
    usleep(2000);
}

static const char *name_in_signals = "in a signal";

static void in_a_signal(int number)
{
    (void)number;
    push_a(name_in_signals), pop();
}

/* Ranges of a handler that interrupts the ranges of the program, anywhere in them. */
static void signals(void)
{
    struct itimerval often = {.it_interval.tv_usec = 200, .it_value.tv_usec = 200};
    signal(SIGALRM, in_a_signal);
    setitimer(ITIMER_REAL, &often, NULL);
    for (long at = 0; at < count; at++) {
        char name[32];
        snprintf(name, sizeof name, "name %ld", at % 1000);
        push_a("outer"), push_a(name), pop(), pop();
    }
    often = (struct itimerval){0};
    setitimer(ITIMER_REAL, &often, NULL);
}

/* KiB of the process's own memory: without its ring, which is shared. */
static long own_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        sscanf(line, "RssAnon: %ld", &kib);
    if (file != NULL)
        fclose(file);
    return kib;
}

static double since(const struct timespec *began)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began->tv_sec) * 1e9 + (double)(now.tv_nsec - began->tv_nsec);
}

/* `count` pairs with payloads that number them; prints nanoseconds a pair. */
static void many(void)
{
    struct timespec began;
    Attributes a = {.version = 3, .size = 48, .message_type = 3, .payload_type = 2};
    a.message = register_a(NULL, "many");
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long at = 0; at < count; at++) {
        a.payload.i64 = at;
        domain_push(NULL, &a);
        domain_pop(NULL);
    }
    printf("registered %.1f ", since(&began) / (double)count);
}

static void many_ascii(void)
{
    struct timespec began;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long at = 0; at < count; at++) {
        push_a("a name of ordinary length");
        pop();
    }
    printf("ascii %.1f ", since(&began) / (double)count);
}

/* Distinct names, twice each: more than fit in a small ring. */
static void names(void)
{
    char name[32];
    for (long at = 0; at < count; at++) {
        snprintf(name, sizeof name, "name %ld", at % (count / 2));
        push_a(name);
        pop();
    }
}

/* The child tries everything, also what would take a lock or make a string. */
static void forks(void)
{
    int status;
    push_a("parent");
    pid_t child = fork();
    if (child == 0) {
        show(push_a("never seen"));
        show(start_a("never seen either"));
        show((long long)(uintptr_t)domain_create_a("nor this"));
        mark_w(L"nor this");
        pop();
        fflush(stdout);
        exit(0);
    }
    waitpid(child, &status, 0);
    pop();
}

static int cuda_starts(void)
{
    void *driver = dlopen(getenv("GPUTUI_TEST_DRIVER"), RTLD_NOW);
    int (*start)(unsigned);
    *(void **)&start = dlsym(driver, "cuInit");
    return start(0) == 0;
}

/* Children, one after the other, that start CUDA themselves, forked while threads push steps; prints
 * how many came to their end. One that hangs is ended by the alarm. */
static void forks_into_cuda(void)
{
    pthread_t thread;
    int ended = 0, status;
    for (int at = 0; at < 4; at++)
        pthread_create(&thread, NULL, push_for_ever, "step");
    for (long at = 0; at < count; at++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(120);
            if (!cuda_starts())
                _exit(1);
            push_a("step"), pop();
            exit(0);
        }
        waitpid(child, &status, 0);
        if (status != 0)
            break;
        ended++;
    }
    printf("%d", ended);
}

static void *once(void *name)
{
    push_a(name), pop();
    return NULL;
}

/* A stack's worth of domains open at once in one thread; the surplus is counted, not mixed up. */
static void domains(void)
{
    char name[32];
    Attributes a = ascii("a");
    void *handles[40];
    for (int at = 0; at < 40; at++) {
        snprintf(name, sizeof name, "domain %d", at);
        handles[at] = domain_create_a(name);
        show(domain_push(handles[at], &a));
    }
    for (int at = 39; at >= 0; at--)
        show(domain_pop(handles[at]));
    show(domain_push(handles[39], &a));
    show(domain_pop(handles[39]));
    domain_destroy(handles[0]);
}

/* Prints how much the process grew after the first tenth of its threads. */
static void short_threads(void)
{
    pthread_t thread;
    long early = 0;
    for (long at = 0; at < count; at++) {
        if (at == count / 10)
            early = own_kib();
        pthread_create(&thread, NULL, once, "short");
        pthread_join(thread, NULL);
    }
    printf("grew %ld KiB\n", own_kib() - early);
}

static void step_of_three(long at)
{
    push_a("step"), push_a(at % 2 ? "odd" : "even"), pop();
    push_a("copy back"), pop(), pop();
}

/* `count` steps of three ranges each, as many a second as GPUTUI_TEST_RATE says; prints how much
 * the process grew after the first tenth of them. */
static void paced(void)
{
    const double rate = atof(getenv("GPUTUI_TEST_RATE"));
    struct timespec began;
    long early = 0;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long at = 0; at < count; at++) {
        if (at == count / 10)
            early = own_kib();
        if (at % 100 == 0)
            while (since(&began) * rate < (double)at * 1e9)
                usleep(100);
        step_of_three(at);
    }
    printf("grew %ld KiB\n", own_kib() - early);
}

/* The header of the ring of this process, which the monitor has unlinked. */
static const Header *own_ring(void)
{
    char line[PATH_MAX + 128];
    void *ring = NULL;
    FILE *mappings = fopen("/proc/self/maps", "r");
    while (ring == NULL && fgets(line, sizeof line, mappings) != NULL)
        if (strstr(line, ".ring") != NULL)
            sscanf(line, "%p", &ring);
    fclose(mappings);
    return ring;
}

/* The same steps, after the first of them only once the file of GPUTUI_TEST_GO exists, and as fast
 * as the ring is emptied: it is never more than half full, however slow the monitor is. */
static void as_room_is_made(void)
{
    const char *go = getenv("GPUTUI_TEST_GO");
    step_of_three(0);
    while (access(go, F_OK) != 0)
        usleep(1000);
    const Header *ring = own_ring();
    for (long at = 1; at < count; at++) {
        while (ring->head - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) > ring->capacity / 2)
            usleep(100);
        step_of_three(at);
    }
}

int main(int arguments, char **words)
{
    const char *part = words[1];
    count = arguments > 2 ? atol(words[2]) : 0;
    if (!nvtx_load()) {
        puts("no tool");
        return 0;
    }
    if (strcmp(part, "nesting") == 0) nesting();
    if (strcmp(part, "strings") == 0) strings();
    if (strcmp(part, "attributes") == 0) attributes();
    if (strcmp(part, "named-threads") == 0) named_threads();
    if (strcmp(part, "schemas") == 0) schemas();
    if (strcmp(part, "collectives") == 0) collectives();
    if (strcmp(part, "deferred") == 0) deferred();
    if (strcmp(part, "resources") == 0) resources();
    if (strcmp(part, "resources-with-driver") == 0) resources_with_driver();
    if (strcmp(part, "operators") == 0) operators();
    if (strcmp(part, "modules") == 0) modules();
    if (strcmp(part, "start-end") == 0) start_end();
    if (strcmp(part, "threads") == 0) threads();
    if (strcmp(part, "many") == 0) many();
    if (strcmp(part, "many-ascii") == 0) many_ascii();
    if (strcmp(part, "names") == 0) names();
    if (strcmp(part, "forks") == 0) forks();
    if (strcmp(part, "domains") == 0) domains();
    if (strcmp(part, "two-units") == 0) {
        show(nvtx_load());
        once("both");
    }
    if (strcmp(part, "short-threads") == 0)
        short_threads();
    if (strcmp(part, "paced") == 0) paced();
    if (strcmp(part, "as-room-is-made") == 0) as_room_is_made();
    if (strcmp(part, "leave") == 0) leave();
    if (strcmp(part, "signals") == 0) signals();
    if (strcmp(part, "forks-into-cuda") == 0) forks_into_cuda();
    if (strcmp(part, "steps-in-signals") == 0) {
        show(cuda_starts());
        name_in_signals = "outer";
        signals();
    }
    if (strcmp(part, "_exit") == 0 || strcmp(part, "kill") == 0) {
        push_a("unfinished");
        if (part[0] == '_')
            _exit(3);
        raise(SIGKILL);
    }
    if (strcmp(part, "wait") == 0) {
        push_a("waiting");
        puts("ready");
        fflush(stdout);
        getchar();
        pop();
    }
    if (strcmp(part, "exec") == 0) {
        push_a("before exec");
        execl(words[0], words[0], "nesting", (char *)NULL);
    }
    return 0;
}
