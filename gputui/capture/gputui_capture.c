/* What gputui puts inside a traced process: NVTX ranges and CUDA activity, written to a ring in
 * shared memory. `layout.py` is the other half of the contract.
 *
 * Builds with `cc -O2 -shared -fPIC gputui_capture.c -o libgputui_capture.so`: no CUDA, CUPTI or
 * NVTX headers. The few types of theirs that are needed are declared here; activity records are
 * read by the offsets that have been the same in CUPTI 12.1 to 13.5 (they only ever grow).
 *
 * Rules that hold everywhere: never print, never exit, never block the traced program, never
 * allocate when the string is known; what does not fit is dropped and counted; whatever fails,
 * the traced program goes on as if this library were not there.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* --- the ring: mirrors layout.py ----------------------------------------------------------- */

#define RING_MAGIC 0x47555052494E4731ull
#define LAYOUT_VERSION 1
#define HEADER_BYTES 4096
#define SLOT_BYTES 64
#define STRING_BYTES_PER_SLOT 60
#define STRING_BYTES_MAX 32768
#define NAME_BYTES_MAX 4096
#define SAMPLE_EVERY 61 /* odd: of calls that alternate, push and pop, each comes as often */

enum {
    KIND_STRING = 1,
    KIND_RANGE_PUSH = 2,
    KIND_RANGE_POP = 3,
    KIND_RANGE_START = 4,
    KIND_RANGE_END = 5,
    KIND_MARK = 6,
    KIND_THREAD_NAME = 7,
    KIND_KERNEL = 16,
    KIND_MEMCPY = 17,
    KIND_MEMSET = 18,
    KIND_API = 19,
    KIND_GRAPH = 21,
    KIND_LAUNCH_SHAPE = 22,
    KIND_FLUSH = 32,
    KIND_EXIT = 33,
};

enum { FLAG_COLORED = 1, FLAG_PAYLOAD = 2 };
enum { PAYLOAD_UINT64 = 1, PAYLOAD_INT64 = 2, PAYLOAD_DOUBLE = 3 };
enum { CUDA_NONE = 0, CUDA_TRACING = 1, CUDA_OFF = 2, CUDA_FAILED = 3, CUDA_STARTING = 4 };

typedef struct {
    uint8_t kind, sub, source_kind, destination_kind;
    uint32_t thread;
    uint64_t start, end;
    uint32_t correlation, name;
    uint64_t value;
    uint32_t a, b, c, d, e, published;
} Slot;

typedef struct {
    uint64_t magic;
    uint32_t layout_version, header_bytes, slot_bytes, pid, parent_pid;
    int32_t rank, local_rank;
    uint32_t cupti_version;
    uint64_t capacity, start_ns, start_ticks;
    uint32_t cuda_state, exited;
    uint64_t heartbeat_ns, dropped, callback_ns, cupti_dropped, pid_namespace;
    uint64_t traced_ns, paused_ns;
    /* Producers and the reader each write a cache line of their own (and its prefetched twin). */
    uint64_t head __attribute__((aligned(128)));
    uint64_t tail __attribute__((aligned(128)));
    char visible_devices[240]; /* "=" and CUDA_VISIBLE_DEVICES; empty where it is not set */
    uint64_t unseen_forks;     /* processes forked from this one that wanted to write, and may not */
    char cuda_text[512] __attribute__((aligned(512)));
    char command[3072] __attribute__((aligned(1024)));
} Header;

_Static_assert(sizeof(Slot) == SLOT_BYTES, "a slot is one cache line");
_Static_assert(offsetof(Slot, published) == STRING_BYTES_PER_SLOT, "the last word publishes");
_Static_assert(sizeof(Header) == HEADER_BYTES, "the header is one page");

/* The layout in words, so that a test can hold it against layout.py. */
#define FIELD(type, field) \
    #type "." #field "=%zu,%zu\n", offsetof(type, field), sizeof(((type *)0)->field)
EXPORT int gputui_layout(char *out, uint64_t size)
{
    int used = 0;
#define PUT(...) used += snprintf(out + used, (uint64_t)used < size ? size - used : 0, __VA_ARGS__)
#define PUT_SLOT(field) PUT(FIELD(Slot, field))
#define PUT_HEADER(field) PUT(FIELD(Header, field))
#define PUT_NUMBER(name) PUT(#name "=%llu\n", (unsigned long long)(name))
    if (out == NULL || size < 4096)
        return -1;
    PUT_SLOT(kind); PUT_SLOT(sub); PUT_SLOT(source_kind); PUT_SLOT(destination_kind);
    PUT_SLOT(thread); PUT_SLOT(start); PUT_SLOT(end); PUT_SLOT(correlation); PUT_SLOT(name);
    PUT_SLOT(value); PUT_SLOT(a); PUT_SLOT(b); PUT_SLOT(c); PUT_SLOT(d); PUT_SLOT(e);
    PUT_SLOT(published);
    PUT_HEADER(magic); PUT_HEADER(layout_version); PUT_HEADER(header_bytes);
    PUT_HEADER(slot_bytes); PUT_HEADER(pid); PUT_HEADER(parent_pid); PUT_HEADER(rank);
    PUT_HEADER(local_rank); PUT_HEADER(cupti_version); PUT_HEADER(capacity);
    PUT_HEADER(start_ns); PUT_HEADER(start_ticks); PUT_HEADER(cuda_state); PUT_HEADER(exited);
    PUT_HEADER(heartbeat_ns); PUT_HEADER(dropped); PUT_HEADER(callback_ns);
    PUT_HEADER(cupti_dropped); PUT_HEADER(pid_namespace);
    PUT_HEADER(traced_ns); PUT_HEADER(paused_ns); PUT_HEADER(head); PUT_HEADER(tail); PUT_HEADER(visible_devices);
    PUT_HEADER(unseen_forks);
    PUT_HEADER(cuda_text);
    PUT_HEADER(command);
    PUT_NUMBER(RING_MAGIC); PUT_NUMBER(LAYOUT_VERSION); PUT_NUMBER(HEADER_BYTES);
    PUT_NUMBER(SLOT_BYTES); PUT_NUMBER(STRING_BYTES_PER_SLOT); PUT_NUMBER(STRING_BYTES_MAX);
    PUT_NUMBER(SAMPLE_EVERY);
    PUT_NUMBER(KIND_STRING); PUT_NUMBER(KIND_RANGE_PUSH); PUT_NUMBER(KIND_RANGE_POP);
    PUT_NUMBER(KIND_RANGE_START); PUT_NUMBER(KIND_RANGE_END); PUT_NUMBER(KIND_MARK);
    PUT_NUMBER(KIND_THREAD_NAME); PUT_NUMBER(KIND_KERNEL); PUT_NUMBER(KIND_MEMCPY);
    PUT_NUMBER(KIND_MEMSET); PUT_NUMBER(KIND_API);
    PUT_NUMBER(KIND_GRAPH); PUT_NUMBER(KIND_LAUNCH_SHAPE); PUT_NUMBER(KIND_FLUSH);
    PUT_NUMBER(KIND_EXIT); PUT_NUMBER(FLAG_COLORED); PUT_NUMBER(FLAG_PAYLOAD);
    PUT_NUMBER(PAYLOAD_UINT64); PUT_NUMBER(PAYLOAD_INT64); PUT_NUMBER(PAYLOAD_DOUBLE);
    PUT_NUMBER(CUDA_NONE); PUT_NUMBER(CUDA_TRACING); PUT_NUMBER(CUDA_OFF);
    PUT_NUMBER(CUDA_FAILED); PUT_NUMBER(CUDA_STARTING);
    return used;
}

/* The monitor's side: copies published slots from `*cursor` on to `out`, moves `*cursor` and the
 * ring's tail, returns how many. `process_gone` also passes over slots that were reserved but
 * never published, which only a killed thread leaves behind. `capacity` and `cursor` are the
 * reader's own: nothing that the traced process scribbles in the header leads out of the map. */
EXPORT uint64_t gputui_ring_read(void *map, uint64_t capacity, uint64_t *cursor, void *out,
                                 uint64_t max, int process_gone)
{
    Header *header = map;
    const Slot *slots = (const Slot *)((const char *)map + HEADER_BYTES);
    Slot *target = out;
    uint64_t at = *cursor, count = 0, end = at + capacity;

    if (process_gone) {
        uint64_t head = __atomic_load_n(&header->head, __ATOMIC_ACQUIRE);
        end = head - at <= capacity ? head : at;
    }
    for (; count < max && at != end; at++) {
        const Slot *slot = &slots[at & (capacity - 1)];
        if (__atomic_load_n(&slot->published, __ATOMIC_ACQUIRE) == (uint32_t)(at + 1)) {
            target[count] = *slot;
            /* As it was checked: what the process does to the word afterwards cannot show. */
            target[count++].published = (uint32_t)(at + 1);
        } else if (!process_gone) {
            break;
        }
    }
    *cursor = at;
    __atomic_store_n(&header->tail, at, __ATOMIC_RELEASE);
    return count;
}

/* --- state of this process ----------------------------------------------------------------- */

static Header *header;
static Slot *slots;
static uint64_t capacity;
static uint64_t tail_seen; /* the reader's tail, looked up again only when the ring seems full */

/* 1 while this process writes. It lives in a page that the kernel zeroes in a forked child, so
 * that no fork, not even a raw clone, ever has two processes writing one ring. */
static uint32_t never_armed;
static uint32_t *armed = &never_armed;

static inline int is_armed(void)
{
    return __atomic_load_n(armed, __ATOMIC_ACQUIRE) != 0;
}

/* A forked child keeps out of its parent's ring; that its ranges are not seen is counted there, at
 * the first of them: a child that goes on to exec has none. */
static uint32_t fork_counted;

static __attribute__((noinline)) void count_fork(void)
{
    if (header != NULL && header->pid != (uint32_t)getpid() &&
        __atomic_exchange_n(&fork_counted, 1, __ATOMIC_RELAXED) == 0)
        __atomic_fetch_add(&header->unseen_forks, 1, __ATOMIC_RELAXED);
}

/* Asked for each range and mark. */
static inline int may_write(void)
{
    if (LIKELY(is_armed()))
        return 1;
    if (__atomic_load_n(&fork_counted, __ATOMIC_RELAXED) == 0)
        count_fork();
    return 0;
}

static inline uint64_t now_ns(void)
{
    /* CLOCK_REALTIME is the clock that CUPTI normalises its timestamps to. */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* A known string: NVTX domain and registered-string handles are pointers to these too. */
typedef struct {
    uint64_t hash;
    uint32_t id, length;
    uint32_t published; /* its STRING record is in the ring */
    char text[];        /* with a NUL after it */
} String;

enum { OPEN_DOMAINS = 32 };
typedef struct {
    uint32_t domain, depth;
} Open;
typedef struct {
    uint32_t tid, calls, domains;
    Open open[OPEN_DOMAINS]; /* the first `domains` are in use, or were */
} Thread;
static __thread Thread thread_state;

static inline Thread *this_thread(void)
{
    Thread *thread = &thread_state;
    if (UNLIKELY(thread->tid == 0))
        thread->tid = (uint32_t)syscall(SYS_gettid);
    return thread;
}

/* The cost of one call in SAMPLE_EVERY stands for all of them: timing each would double it. */
static inline uint64_t sample_begin(Thread *thread)
{
    return UNLIKELY(++thread->calls % SAMPLE_EVERY == 0) ? now_ns() : 0;
}

static inline void sample_end(uint64_t began)
{
    if (UNLIKELY(began != 0))
        __atomic_fetch_add(&header->callback_ns, (now_ns() - began) * SAMPLE_EVERY,
                           __ATOMIC_RELAXED);
}

/* --- writing to the ring ------------------------------------------------------------------- */

static inline int reserve(uint64_t count, uint64_t *first)
{
    uint64_t head = __atomic_load_n(&header->head, __ATOMIC_RELAXED);
    do {
        if (UNLIKELY(head + count - __atomic_load_n(&tail_seen, __ATOMIC_ACQUIRE) > capacity)) {
            uint64_t tail = __atomic_load_n(&header->tail, __ATOMIC_ACQUIRE);
            __atomic_store_n(&tail_seen, tail, __ATOMIC_RELEASE);
            if (head + count - tail > capacity) {
                /* Another thread may have moved on since `head` was read. */
                uint64_t again = __atomic_load_n(&header->head, __ATOMIC_RELAXED);
                if (again == head)
                    return 0;
                head = again;
                continue;
            }
        }
        if (LIKELY(__atomic_compare_exchange_n(&header->head, &head, head + count, 0,
                                               __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))) {
            *first = head;
            return 1;
        }
    } while (1);
}

static inline void put(uint64_t number, const void *bytes)
{
    Slot *slot = &slots[number & (capacity - 1)];
    memcpy(slot, bytes, STRING_BYTES_PER_SLOT);
    __atomic_store_n(&slot->published, (uint32_t)(number + 1), __ATOMIC_RELEASE);
}

static inline void count_dropped(uint64_t count)
{
    __atomic_fetch_add(&header->dropped, count, __ATOMIC_RELAXED);
}

enum { PREFETCH_SLOTS = 8 };
static inline void emit(const Slot *record)
{
    uint64_t number;
    if (LIKELY(reserve(1, &number))) {
        /* The next reservation waits for this record's stores, and those for their cache line:
         * have it here before it is needed. */
        __builtin_prefetch(&slots[(number + PREFETCH_SLOTS) & (capacity - 1)], 1);
        put(number, record);
    } else {
        count_dropped(1);
    }
}

/* Writes a string's definition. Where the ring has no room it stays unpublished, so that its
 * next use tries again; the reader meanwhile knows only its id. Two threads may both write it. */
static void publish_string(String *string)
{
    uint64_t parts = (string->length + STRING_BYTES_PER_SLOT - 1) / STRING_BYTES_PER_SLOT, number;
    Slot record = {.kind = KIND_STRING, .name = string->id, .value = string->length};
    if (!reserve(parts + 1, &number))
        return;
    put(number, &record);
    for (uint64_t part = 0; part < parts; part++) {
        char bytes[STRING_BYTES_PER_SLOT] = {0};
        uint64_t at = part * STRING_BYTES_PER_SLOT, left = string->length - at;
        memcpy(bytes, string->text + at, left < sizeof bytes ? left : sizeof bytes);
        put(number + 1 + part, bytes);
    }
    __atomic_store_n(&string->published, 1, __ATOMIC_RELEASE);
}

static inline uint32_t id_of(String *string)
{
    if (UNLIKELY(!__atomic_load_n(&string->published, __ATOMIC_ACQUIRE)))
        publish_string(string);
    return string->id;
}

/* --- known strings ------------------------------------------------------------------------- */

enum { STRINGS_MAX = 1 << 20, STRING_CHUNK = 1 << 18 };
#define STRING_MEMORY_MAX (256ull << 20)

typedef struct {
    uint64_t mask;
    String *entries[];
} Table;

static Table *strings; /* replaced when it grows; old ones stay, for readers still in them */
static uint64_t string_count, string_memory;
static char *chunk;
static uint64_t chunk_left;
static String *too_many; /* stands for every string that no longer fits */
static union {
    String string;
    char bytes[sizeof(String) + 8];
} empty_storage = {.string = {.published = 1}}; /* "" has the id 0 and needs no definition */
/* Error-checking, so that a signal handler that interrupts an insertion gets an error back. */
static pthread_mutex_t string_lock = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

static uint64_t hash_bytes(const char *bytes, uint64_t length)
{
    uint64_t hash = length * 0x9E3779B97F4A7C15ull, word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9FB21C651E98DF25ull;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, bytes, length);
    hash = (hash ^ word) * 0x9FB21C651E98DF25ull;
    return hash ^ (hash >> 29);
}

static inline String *find_string(const Table *table, uint64_t hash, const char *text,
                                  uint64_t length)
{
    String *string;
    for (uint64_t at = hash & table->mask;
         (string = __atomic_load_n(&table->entries[at], __ATOMIC_ACQUIRE)) != NULL;
         at = (at + 1) & table->mask)
        if (string->hash == hash && string->length == length &&
            memcmp(string->text, text, length) == 0)
            return string;
    return NULL;
}

static void *map_pages(uint64_t size)
{
    void *pages =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static void place_string(Table *table, String *string)
{
    uint64_t at = string->hash & table->mask;
    while (table->entries[at] != NULL)
        at = (at + 1) & table->mask;
    __atomic_store_n(&table->entries[at], string, __ATOMIC_RELEASE);
}

static Table *new_table(uint64_t entries)
{
    Table *table = map_pages(sizeof(Table) + entries * sizeof(String *));
    if (table != NULL)
        table->mask = entries - 1;
    return table;
}

/* Called with the lock held; NULL when a limit is reached or memory is out. */
static String *insert_string(uint64_t hash, const char *text, uint64_t length)
{
    uint64_t size = (sizeof(String) + length + 1 + 7) & ~7ull;
    if (string_count >= STRINGS_MAX || string_memory + size > STRING_MEMORY_MAX)
        return NULL;
    if (string_count * 2 >= strings->mask) {
        Table *larger = new_table((strings->mask + 1) * 4);
        if (larger == NULL)
            return NULL;
        for (uint64_t at = 0; at <= strings->mask; at++)
            if (strings->entries[at] != NULL)
                place_string(larger, strings->entries[at]);
        __atomic_store_n(&strings, larger, __ATOMIC_RELEASE);
    }
    if (size > chunk_left) {
        char *pages = map_pages(STRING_CHUNK);
        if (pages == NULL)
            return NULL;
        chunk = pages;
        chunk_left = STRING_CHUNK;
    }
    String *string = (String *)chunk;
    chunk += size;
    chunk_left -= size;
    string_memory += size;
    string->hash = hash;
    string->length = (uint32_t)length;
    string->id = (uint32_t)++string_count;
    memcpy(string->text, text, length);
    place_string(strings, string);
    return string;
}

static String *intern_new(uint64_t hash, const char *text, uint64_t length)
{
    int saved_errno = errno;
    String *string = NULL;
    if (pthread_mutex_lock(&string_lock) == 0) {
        string = find_string(strings, hash, text, length);
        if (string == NULL)
            string = insert_string(hash, text, length);
        pthread_mutex_unlock(&string_lock);
    }
    errno = saved_errno;
    return string != NULL ? string : too_many;
}

/* Cuts at a character's boundary: never in front of a UTF-8 continuation byte. */
static uint64_t cut(const char *text, uint64_t limit)
{
    uint64_t length = strnlen(text, limit + 1);
    if (length <= limit)
        return length;
    for (length = limit; length > limit - 4 && (text[length] & 0xC0) == 0x80;)
        length--;
    return length;
}

static inline String *intern(const char *text, uint64_t limit)
{
    if (text == NULL || text[0] == '\0')
        return &empty_storage.string;
    uint64_t length = cut(text, limit), hash = hash_bytes(text, length);
    String *string =
        find_string(__atomic_load_n(&strings, __ATOMIC_ACQUIRE), hash, text, length);
    return LIKELY(string != NULL) ? string : intern_new(hash, text, length);
}

static String *intern_wide(const wchar_t *text)
{
    char bytes[NAME_BYTES_MAX + 1];
    uint64_t used = 0;
    if (text == NULL)
        return &empty_storage.string;
    for (; *text != 0; text++) {
        uint32_t c = (uint32_t)*text;
        char encoded[4];
        uint64_t length;
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
            c = 0xFFFD;
        if (c < 0x80) {
            encoded[0] = (char)c;
            length = 1;
        } else if (c < 0x800) {
            encoded[0] = (char)(0xC0 | c >> 6);
            encoded[1] = (char)(0x80 | (c & 0x3F));
            length = 2;
        } else if (c < 0x10000) {
            encoded[0] = (char)(0xE0 | c >> 12);
            encoded[1] = (char)(0x80 | (c >> 6 & 0x3F));
            encoded[2] = (char)(0x80 | (c & 0x3F));
            length = 3;
        } else {
            encoded[0] = (char)(0xF0 | c >> 18);
            encoded[1] = (char)(0x80 | (c >> 12 & 0x3F));
            encoded[2] = (char)(0x80 | (c >> 6 & 0x3F));
            encoded[3] = (char)(0x80 | (c & 0x3F));
            length = 4;
        }
        if (used + length > NAME_BYTES_MAX)
            break;
        memcpy(bytes + used, encoded, length);
        used += length;
    }
    bytes[used] = '\0';
    return intern(bytes, NAME_BYTES_MAX);
}

/* --- opening the ring ---------------------------------------------------------------------- */

static void disarm(void)
{
    __atomic_store_n(armed, 0, __ATOMIC_RELEASE);
}

static void forked(void)
{
    disarm();
    __atomic_store_n(&fork_counted, 0, __ATOMIC_RELAXED);
}

static void write_exit(void)
{
    uint64_t number;
    Slot record = {.kind = KIND_EXIT, .start = now_ns()};
    if (reserve(1, &number))
        put(number, &record);
    disarm();
    __atomic_store_n(&header->exited, 1, __ATOMIC_RELEASE);
}

static int number_from_environment(const char *const *names)
{
    for (; *names != NULL; names++) {
        const char *text = getenv(*names);
        char *end;
        if (text == NULL || *text == '\0')
            continue;
        long number = strtol(text, &end, 10);
        if (*end == '\0' && number >= 0 && number <= INT32_MAX)
            return (int)number;
    }
    return -1;
}

static uint64_t read_small_file(const char *path, char *out, uint64_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t used = 0;
    if (fd < 0)
        return 0;
    while (used < size) {
        ssize_t got = read(fd, out + used, size - used);
        if (got > 0)
            used += (uint64_t)got;
        else if (got == 0 || errno != EINTR)
            break;
    }
    close(fd);
    return used;
}

static uint64_t start_ticks(void)
{
    /* Field 22 of /proc/self/stat; the second field may hold spaces and brackets. */
    char text[1024];
    uint64_t length = read_small_file("/proc/self/stat", text, sizeof text - 1);
    text[length] = '\0';
    char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

static void describe_process(Header *target)
{
    static const char *const ranks[] = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", NULL};
    static const char *const local_ranks[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                              "SLURM_LOCALID", NULL};
    struct stat status;
    target->pid = (uint32_t)getpid();
    target->parent_pid = (uint32_t)getppid();
    target->rank = number_from_environment(ranks);
    target->local_rank = number_from_environment(local_ranks);
    target->start_ticks = start_ticks();
    if (stat("/proc/self/ns/pid", &status) == 0)
        target->pid_namespace = status.st_ino;
    uint64_t length =
        read_small_file("/proc/self/cmdline", target->command, sizeof target->command - 1);
    while (length > 0 && target->command[length - 1] == '\0')
        length--;
    for (uint64_t at = 0; at < length; at++)
        if (target->command[at] == '\0')
            target->command[at] = ' ';
    const char *kernels = getenv("GPUTUI_CAPTURE_KERNELS");
    if (kernels != NULL && strcmp(kernels, "0") == 0) {
        target->cuda_state = CUDA_OFF;
        snprintf(target->cuda_text, sizeof target->cuda_text, "kernels were not asked for");
    } else {
        snprintf(target->cuda_text, sizeof target->cuda_text, "no CUDA");
    }
}

/* Space is reserved before it is mapped: writing to a page that a full /dev/shm cannot give
 * would kill the traced program with SIGBUS. */
static int reserve_space(int fd, uint64_t bytes)
{
    struct rlimit limit;
    int error;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes)
        return 0; /* going on would raise SIGXFSZ */
    do {
        error = posix_fallocate(fd, 0, (off_t)bytes);
    } while (error == EINTR);
    return error == 0;
}

static void *create_ring(const char *folder, uint64_t wanted_slots, uint64_t start_ns)
{
    static const uint64_t fallback_bytes[] = {4 << 20, 1 << 20};
    char path[PATH_MAX], temporary[PATH_MAX];
    uint64_t count = wanted_slots, bytes = 0;
    void *map = MAP_FAILED;

    if (snprintf(path, sizeof path, "%s/%ld-%llu.ring", folder, (long)getpid(),
                 (unsigned long long)start_ns) >= (int)sizeof path ||
        snprintf(temporary, sizeof temporary, "%s/.%ld-%llu.new", folder, (long)getpid(),
                 (unsigned long long)start_ns) >= (int)sizeof temporary)
        return NULL;
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return NULL;
    for (int attempt = -1; map == MAP_FAILED && attempt < 2; attempt++) {
        if (attempt >= 0) {
            if (fallback_bytes[attempt] / SLOT_BYTES >= count)
                continue;
            count = fallback_bytes[attempt] / SLOT_BYTES;
            if (ftruncate(fd, 0) != 0)
                break;
        }
        bytes = HEADER_BYTES + count * SLOT_BYTES;
        if (reserve_space(fd, bytes))
            map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (map == MAP_FAILED) {
        unlink(temporary);
        return NULL;
    }
    Header *target = map;
    target->magic = RING_MAGIC;
    target->layout_version = LAYOUT_VERSION;
    target->header_bytes = HEADER_BYTES;
    target->slot_bytes = SLOT_BYTES;
    target->capacity = count;
    target->start_ns = start_ns;
    describe_process(target);
    capacity = count;
    slots = (Slot *)((char *)map + HEADER_BYTES);
    /* Only a whole header ever has the name that the reader looks for. */
    if (rename(temporary, path) != 0) {
        munmap(map, bytes);
        unlink(temporary);
        return NULL;
    }
    return map;
}

static uint64_t wanted_slots(void)
{
    const char *text = getenv("GPUTUI_RING_BYTES");
    uint64_t bytes = text != NULL ? strtoull(text, NULL, 10) : 0, count = 1024;
    if (bytes == 0)
        bytes = 16 << 20;
    if (bytes > 1ull << 30)
        bytes = 1ull << 30;
    while (count * 2 * SLOT_BYTES <= bytes)
        count *= 2;
    return count;
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
static void read_duty(void);
static int unnumbered; /* PyTorch's operators have their numbers taken off */

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
        strings = new_table(4096);
        if (strings != NULL)
            too_many = insert_string(hash_bytes(overflow, sizeof overflow - 1), overflow,
                                     sizeof overflow - 1);
        if (too_many != NULL && create_flag()) {
            const char *annotate = getenv("GPUTUI_ANNOTATE");
            unnumbered = annotate != NULL && strcmp(annotate, "autograd") == 0;
            read_duty();
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
    static const pthread_mutex_t unlocked = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    const char *folder = getenv("GPUTUI_CAPTURE_DIR");
    if (header == NULL || header->pid == (uint32_t)getpid() || folder == NULL)
        return;
    string_lock = unlocked;
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

/* Kernels may be traced part of the time only: some steps of many, told by the pushes of a range,
 * or some time of every period, told by the flushing thread's clock. */
static struct {
    pthread_mutex_t lock;
    uint64_t on, period; /* steps, or nanoseconds */
    uint64_t began_ns, since_ns, steps;
    uint32_t range; /* the step's name; 0 where time rules */
    int ready, tracing;
} duty = {.lock = PTHREAD_MUTEX_INITIALIZER, .tracing = 1};

static void switch_activity(int on);

/* Called with the lock held: what was traced or not since the last time. */
static void account_duty(uint64_t now)
{
    if (!duty.ready || now <= duty.since_ns)
        return;
    __atomic_fetch_add(duty.tracing ? &header->traced_ns : &header->paused_ns,
                       now - duty.since_ns, __ATOMIC_RELAXED);
    duty.since_ns = now;
}

static void set_tracing(int on)
{
    pthread_mutex_lock(&duty.lock);
    if (duty.ready) {
        account_duty(now_ns());
        if (duty.tracing != on) {
            switch_activity(on);
            duty.tracing = on;
        }
    }
    pthread_mutex_unlock(&duty.lock);
}

static __attribute__((noinline)) void next_step(void)
{
    uint64_t step = __atomic_fetch_add(&duty.steps, 1, __ATOMIC_RELAXED);
    int on = step % duty.period < duty.on;
    if (on != __atomic_load_n(&duty.tracing, __ATOMIC_RELAXED))
        set_tracing(on);
}

/* "steps ON PERIOD NAME" or "time ON_NS PERIOD_NS", as environment.py writes it. */
static void read_duty(void)
{
    const char *text = getenv("GPUTUI_DUTY");
    char *at;
    if (text == NULL)
        return;
    int steps = strncmp(text, "steps ", 6) == 0;
    if (!steps && strncmp(text, "time ", 5) != 0)
        return;
    uint64_t on = strtoull(text + (steps ? 6 : 5), &at, 10), period = strtoull(at, &at, 10);
    if (on == 0 || on >= period || (steps && *at != ' '))
        return;
    duty.on = on;
    duty.period = period;
    if (steps)
        duty.range = intern(at + 1, NAME_BYTES_MAX)->id;
}

/* --- NVTX ---------------------------------------------------------------------------------- */

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        uint32_t u32;
        int32_t i32;
        float f32;
    } payload;
    int32_t message_type;
    const void *message;
} Attributes;
_Static_assert(sizeof(Attributes) == 48, "nvtxEventAttributes_t, version 2 and 3");

enum { NVTX_NO_TRACKING = -2, NVTX_COLOR_ARGB = 1 };
enum { MESSAGE_ASCII = 1, MESSAGE_UNICODE = 2, MESSAGE_REGISTERED = 3 };
enum { NVTX_UINT64 = 1, NVTX_INT64, NVTX_DOUBLE, NVTX_UINT32, NVTX_INT32, NVTX_FLOAT };

/* Names of categories: (domain, category) to string, open addressing, never removed. */
enum { CATEGORIES = 4096 };
static struct {
    uint64_t key;
    String *name;
} categories[CATEGORIES];

static uint64_t category_slot(uint64_t key)
{
    uint64_t at = (key * 0x9E3779B97F4A7C15ull) >> 52;
    for (int tries = 0; tries < CATEGORIES; tries++, at = (at + 1) % CATEGORIES) {
        uint64_t found = __atomic_load_n(&categories[at].key, __ATOMIC_ACQUIRE);
        if (found == key || found == 0)
            return at;
    }
    return CATEGORIES;
}

static void name_category(const String *domain, uint32_t category, String *name)
{
    uint64_t key = (uint64_t)(domain != NULL ? domain->id : 0) << 32 | category;
    if (category == 0 || pthread_mutex_lock(&string_lock) != 0)
        return;
    uint64_t at = category_slot(key);
    if (at < CATEGORIES) {
        __atomic_store_n(&categories[at].name, name, __ATOMIC_RELEASE);
        __atomic_store_n(&categories[at].key, key, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&string_lock);
}

static uint32_t category_id(uint32_t domain, uint32_t category)
{
    uint64_t key = (uint64_t)domain << 32 | category, at = category_slot(key);
    if (at >= CATEGORIES || __atomic_load_n(&categories[at].key, __ATOMIC_ACQUIRE) != key)
        return 0;
    return id_of(__atomic_load_n(&categories[at].name, __ATOMIC_ACQUIRE));
}

static void read_payload(Slot *record, const Attributes *attributes)
{
    double wide;
    uint64_t bits = attributes->payload.u64;
    switch (attributes->payload_type) {
    case NVTX_UINT64: record->source_kind = PAYLOAD_UINT64; break;
    case NVTX_INT64: record->source_kind = PAYLOAD_INT64; break;
    case NVTX_DOUBLE: record->source_kind = PAYLOAD_DOUBLE; break;
    case NVTX_UINT32:
        record->source_kind = PAYLOAD_UINT64;
        bits = attributes->payload.u32;
        break;
    case NVTX_INT32:
        record->source_kind = PAYLOAD_INT64;
        bits = (uint64_t)(int64_t)attributes->payload.i32;
        break;
    case NVTX_FLOAT:
        record->source_kind = PAYLOAD_DOUBLE;
        wide = attributes->payload.f32;
        memcpy(&bits, &wide, sizeof bits);
        break;
    default: return; /* structured payloads are not carried */
    }
    record->sub |= FLAG_PAYLOAD;
    record->end = bits;
}

/* Only what `size` says is there is read. */
#define HAS(attributes, field) \
    ((attributes)->size >= offsetof(Attributes, field) + sizeof((attributes)->field))

static inline void read_attributes(Slot *record, uint32_t domain, const Attributes *attributes)
{
    if (attributes == NULL)
        return;
    if (HAS(attributes, color) && attributes->color_type == NVTX_COLOR_ARGB) {
        record->sub |= FLAG_COLORED;
        record->c = attributes->color & 0xFFFFFF;
    }
    if (HAS(attributes, payload) && attributes->payload_type != 0)
        read_payload(record, attributes);
    if (HAS(attributes, category) && attributes->category != 0)
        record->b = category_id(domain, attributes->category);
    if (!HAS(attributes, message) || attributes->message == NULL)
        return;
    if (LIKELY(attributes->message_type == MESSAGE_REGISTERED))
        record->name = id_of((String *)attributes->message);
    else if (attributes->message_type == MESSAGE_ASCII)
        record->name = id_of(intern(attributes->message, NAME_BYTES_MAX));
    else if (attributes->message_type == MESSAGE_UNICODE)
        record->name = id_of(intern_wide(attributes->message));
}

static inline uint32_t domain_id(void *domain)
{
    return domain != NULL ? id_of(domain) : 0;
}

/* How many ranges this thread has open in `domain`; NULL when it has too many domains open. */
static inline uint32_t *depth_of(Thread *thread, uint32_t domain)
{
    Open *unused = NULL;
    for (uint32_t at = 0; at < thread->domains; at++) {
        if (LIKELY(thread->open[at].domain == domain))
            return &thread->open[at].depth;
        if (thread->open[at].depth == 0)
            unused = &thread->open[at];
    }
    if (thread->domains < OPEN_DOMAINS)
        unused = &thread->open[thread->domains++];
    if (unused == NULL)
        return NULL;
    unused->domain = domain;
    return &unused->depth;
}

static int push(void *domain, const Attributes *attributes, String *name)
{
    if (UNLIKELY(!may_write()))
        return NVTX_NO_TRACKING;
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    Slot record = {.kind = KIND_RANGE_PUSH, .thread = thread->tid, .a = domain_id(domain)};
    uint32_t *depth = depth_of(thread, record.a);
    if (UNLIKELY(depth == NULL)) {
        count_dropped(1);
        return NVTX_NO_TRACKING;
    }
    if (name != NULL)
        record.name = id_of(name);
    else
        read_attributes(&record, record.a, attributes);
    if (UNLIKELY(duty.range != 0 && record.name == duty.range))
        next_step();
    record.d = (*depth)++;
    record.start = now_ns(); /* last, so that our own work is outside the range */
    emit(&record);
    sample_end(began);
    return (int)record.d;
}

static int pop(void *domain)
{
    if (UNLIKELY(!is_armed()))
        return NVTX_NO_TRACKING;
    Slot record = {.kind = KIND_RANGE_POP, .start = now_ns()};
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    record.thread = thread->tid;
    record.a = domain_id(domain);
    uint32_t *depth = depth_of(thread, record.a);
    if (UNLIKELY(depth == NULL || *depth == 0))
        return NVTX_NO_TRACKING; /* nothing was open */
    record.d = --*depth;
    emit(&record);
    sample_end(began);
    return (int)record.d;
}

static uint64_t start(void *domain, const Attributes *attributes, String *name)
{
    static uint64_t last_id;
    if (UNLIKELY(!may_write()))
        return 0;
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    Slot record = {.kind = KIND_RANGE_START, .thread = thread->tid, .a = domain_id(domain)};
    if (name != NULL)
        record.name = id_of(name);
    else
        read_attributes(&record, record.a, attributes);
    record.value = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    record.start = now_ns();
    emit(&record);
    sample_end(began);
    return record.value;
}

static void end(uint64_t id)
{
    if (UNLIKELY(!is_armed() || id == 0))
        return;
    Slot record = {.kind = KIND_RANGE_END, .start = now_ns(), .value = id};
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    record.thread = thread->tid;
    emit(&record);
    sample_end(began);
}

static void mark(void *domain, const Attributes *attributes, String *name)
{
    if (UNLIKELY(!may_write()))
        return;
    Slot record = {.kind = KIND_MARK, .start = now_ns()};
    Thread *thread = this_thread();
    uint64_t began = sample_begin(thread);
    record.thread = thread->tid;
    record.a = domain_id(domain);
    if (name != NULL)
        record.name = id_of(name);
    else
        read_attributes(&record, record.a, attributes);
    emit(&record);
    sample_end(began);
}

static void name_thread(uint32_t tid, String *name)
{
    Slot record = {.kind = KIND_THREAD_NAME, .thread = tid, .name = id_of(name)};
    emit(&record);
}

/* What NVTX calls. The core calls and the domain calls without a domain are one domain. Each
 * asks whether we are armed before a string is interned: a forked child must not take locks. */
#define NAMED(call, otherwise, make) return may_write() ? call(NULL, NULL, make) : (otherwise)
#define ASCII(text) intern(text, NAME_BYTES_MAX)

static void mark_ex(const Attributes *a) { mark(NULL, a, NULL); }
static void mark_a(const char *text) { if (may_write()) mark(NULL, NULL, ASCII(text)); }
static void mark_w(const wchar_t *text) { if (may_write()) mark(NULL, NULL, intern_wide(text)); }
static uint64_t start_ex(const Attributes *a) { return start(NULL, a, NULL); }
static uint64_t start_a(const char *text) { NAMED(start, 0, ASCII(text)); }
static uint64_t start_w(const wchar_t *text) { NAMED(start, 0, intern_wide(text)); }
static int push_ex(const Attributes *a) { return push(NULL, a, NULL); }
/* PyTorch's own ranges around operators are all different: "aten::add, seq = 7, op_id = 12". */
static String *without_numbers(const char *text)
{
    const char *numbers = text != NULL ? strstr(text, ", seq = ") : NULL;
    if (numbers == NULL && text != NULL)
        numbers = strstr(text, ", op_id = ");
    if (numbers == NULL || numbers == text || numbers - text > NAME_BYTES_MAX)
        return ASCII(text);
    return intern(text, (uint64_t)(numbers - text));
}
static int push_a(const char *text)
{
    NAMED(push, NVTX_NO_TRACKING, UNLIKELY(unnumbered) ? without_numbers(text) : ASCII(text));
}
static int push_w(const wchar_t *text) { NAMED(push, NVTX_NO_TRACKING, intern_wide(text)); }
static int pop_core(void) { return pop(NULL); }
static void name_thread_a(uint32_t tid, const char *text)
{
    if (is_armed())
        name_thread(tid, ASCII(text));
}
static void name_thread_w(uint32_t tid, const wchar_t *text)
{
    if (is_armed())
        name_thread(tid, intern_wide(text));
}
static void domain_category_a(void *domain, uint32_t category, const char *text)
{
    if (is_armed())
        name_category(domain, category, ASCII(text));
}
static void domain_category_w(void *domain, uint32_t category, const wchar_t *text)
{
    if (is_armed())
        name_category(domain, category, intern_wide(text));
}
static void category_a(uint32_t category, const char *text)
{
    domain_category_a(NULL, category, text);
}
static void category_w(uint32_t category, const wchar_t *text)
{
    domain_category_w(NULL, category, text);
}
static void domain_mark(void *domain, const Attributes *a) { mark(domain, a, NULL); }
static uint64_t domain_start(void *domain, const Attributes *a) { return start(domain, a, NULL); }
static void domain_end(void *domain, uint64_t id) { (void)domain; end(id); }
static int domain_push(void *domain, const Attributes *a) { return push(domain, a, NULL); }
/* Handles are the strings themselves: the same name is the same domain, and none is ever freed
 * (the Python package keeps its handles for good). */
static void *register_a(void *domain, const char *text)
{
    (void)domain;
    return is_armed() ? ASCII(text) : NULL;
}
static void *register_w(void *domain, const wchar_t *text)
{
    (void)domain;
    return is_armed() ? intern_wide(text) : NULL;
}
static void *domain_create_a(const char *text) { return register_a(NULL, text); }
static void *domain_create_w(const wchar_t *text) { return register_w(NULL, text); }
static void domain_destroy(void *domain) { (void)domain; }
static void initialize(const void *reserved) { (void)reserved; }

/* For the start-up hook of a child's Python, which has no NVTX of its own to call: a name once,
 * then a push of it and a pop in the default domain. A push that cannot be told stays balanced. */
EXPORT void *gputui_name(const char *text)
{
    return text != NULL && start_capture() ? ASCII(text) : NULL;
}
EXPORT void gputui_push(void *name) { push(NULL, NULL, name); }
EXPORT void gputui_pop(void) { pop(NULL); }

typedef void (*Function)(void);
typedef const void *(*GetExportTable)(uint32_t);
typedef struct {
    size_t struct_size;
    int (*get_module_functions)(int module, Function ***table, unsigned *size);
} Callbacks;

enum { NVTX_CALLBACKS = 1, MODULE_CORE = 1, MODULE_CORE2 = 5, MODULE_FUNCTIONS = 16 };

static const Function core_functions[MODULE_FUNCTIONS] = {
    NULL, (Function)mark_ex, (Function)mark_a, (Function)mark_w, (Function)start_ex,
    (Function)start_a, (Function)start_w, (Function)end, (Function)push_ex, (Function)push_a,
    (Function)push_w, (Function)pop_core, (Function)category_a, (Function)category_w,
    (Function)name_thread_a, (Function)name_thread_w,
};

static const Function core2_functions[MODULE_FUNCTIONS] = {
    NULL, (Function)domain_mark, (Function)domain_start, (Function)domain_end,
    (Function)domain_push, (Function)pop, NULL, NULL, (Function)domain_category_a,
    (Function)domain_category_w, (Function)register_a, (Function)register_w,
    (Function)domain_create_a, (Function)domain_create_w, (Function)domain_destroy,
    (Function)initialize,
};

static int install(const Callbacks *callbacks, int module, const Function *functions)
{
    Function **table = NULL;
    unsigned size = 0;
    if (!callbacks->get_module_functions(module, &table, &size) || table == NULL)
        return 0;
    for (unsigned at = 1; at < size && at < MODULE_FUNCTIONS; at++)
        if (table[at] != NULL && functions[at] != NULL)
            *table[at] = functions[at];
    return 1;
}

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
    int core = install(callbacks, MODULE_CORE, core_functions);
    return install(callbacks, MODULE_CORE2, core2_functions) || core;
}

/* Accepts and implements nothing: a refusal would make nvtxDomainIsEnabled say no, and the
 * Python package would then make no ranges at all. */
EXPORT int InitializeInjectionNvtxExtension(void *module)
{
    (void)module;
    return 1;
}

/* --- CUPTI --------------------------------------------------------------------------------- */

enum {
    ACTIVITY_MEMCPY = 1,
    ACTIVITY_MEMSET = 2,
    ACTIVITY_DRIVER = 4,
    ACTIVITY_RUNTIME = 5,
    ACTIVITY_CONCURRENT_KERNEL = 10,
    ACTIVITY_MEMCPY2 = 22,
    ACTIVITY_GRAPH_TRACE = 51,
};
enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2 };
enum { THREAD_ID_SYSTEM = 1, FLUSH_FORCED = 1, COPY_PEER = 10 };
enum { CUPTI_SUCCESS = 0, CUPTI_MULTIPLE_SUBSCRIBERS = 39 };

typedef void (*SubscriberFunction)(void *, int, uint32_t, const void *);
typedef void (*BufferRequested)(uint8_t **, size_t *, size_t *);
typedef void (*BufferCompleted)(void *, uint32_t, uint8_t *, size_t, size_t);

static struct {
    int (*GetVersion)(uint32_t *);
    int (*GetResultString)(int, const char **);
    int (*Subscribe)(void **, SubscriberFunction, void *);
    int (*Unsubscribe)(void *);
    int (*GetCallbackName)(int, uint32_t, const char **);
    int (*SetThreadIdType)(int);
    int (*ActivityRegisterCallbacks)(BufferRequested, BufferCompleted);
    int (*ActivityEnable)(int);
    int (*ActivityDisable)(int);
    int (*ActivityEnableRuntimeApi)(uint32_t, uint8_t);
    int (*ActivityEnableDriverApi)(uint32_t, uint8_t);
    int (*ActivityFlushAll)(uint32_t);
    int (*ActivityGetNextRecord)(uint8_t *, size_t, uint8_t **);
    int (*ActivityGetNumDroppedRecords)(void *, uint32_t, size_t *);
} cupti;

static const char *const cupti_symbols[] = {
    "cuptiGetVersion", "cuptiGetResultString", "cuptiSubscribe", "cuptiUnsubscribe",
    "cuptiGetCallbackName", "cuptiSetThreadIdType", "cuptiActivityRegisterCallbacks",
    "cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityEnableRuntimeApi",
    "cuptiActivityEnableDriverApi",
    "cuptiActivityFlushAll", "cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords",
};
_Static_assert(sizeof cupti == sizeof cupti_symbols, "one name for each function");

static void set_cuda_state(uint32_t state, const char *format, ...)
{
    char text[sizeof header->cuda_text] = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(header->cuda_text, text, sizeof text);
    __atomic_store_n(&header->cuda_state, state, __ATOMIC_RELEASE);
}

/* Buffers that CUPTI fills. It may crash when it is refused one, so there is no upper bound. */
enum { BUFFER_BYTES = 512 << 10, SPARE_BUFFERS = 64 };
static struct {
    pthread_mutex_t lock;
    int count;
    uint8_t *spare[SPARE_BUFFERS];
} buffers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *records)
{
    uint8_t *found = NULL;
    pthread_mutex_lock(&buffers.lock);
    if (buffers.count > 0)
        found = buffers.spare[--buffers.count];
    pthread_mutex_unlock(&buffers.lock);
    if (found == NULL)
        found = malloc(BUFFER_BYTES);
    *buffer = found;
    *size = found != NULL ? BUFFER_BYTES : 0;
    *records = 0;
}

static void return_buffer(uint8_t *buffer)
{
    pthread_mutex_lock(&buffers.lock);
    if (buffers.count < SPARE_BUFFERS) {
        buffers.spare[buffers.count++] = buffer;
        buffer = NULL;
    }
    pthread_mutex_unlock(&buffers.lock);
    free(buffer);
}

/* Names of the calls that were enabled, by domain and callback id. */
enum { CALLS = 2048 };
static String *call_names[2][CALLS];

/* Calls that were made: those alone are worth switching off. */
static uint8_t call_made[2][CALLS], call_off[2][CALLS];

/* Records on their way to the ring: one reservation for many. */
enum { BATCH = 64 };
typedef struct {
    int count;
    Slot records[BATCH];
} Batch;

static void write_batch(Batch *batch)
{
    uint64_t number;
    if (batch->count > 0 && reserve((uint64_t)batch->count, &number))
        for (int at = 0; at < batch->count; at++)
            put(number + (uint64_t)at, &batch->records[at]);
    else
        for (int at = 0; at < batch->count; at++)
            emit(&batch->records[at]);
    batch->count = 0;
}

/* Launch shapes: what a launch has beyond its name, interned like strings. Guarded by
 * decode_lock. */
enum { SHAPES = 1 << 16, SHAPES_MAX = SHAPES / 4 * 3 };
typedef struct {
    uint32_t name, grid[3], block[3], registers, static_shared, dynamic_shared;
} ShapeKey;
static struct {
    ShapeKey key;
    uint32_t id, published;
} shapes[SHAPES];
static uint32_t shape_count;
static pthread_mutex_t decode_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t shape_id(const ShapeKey *key)
{
    uint64_t at = hash_bytes((const char *)key, sizeof *key) % SHAPES, number;
    while (shapes[at].id != 0 && memcmp(&shapes[at].key, key, sizeof *key) != 0)
        at = (at + 1) % SHAPES;
    if (shapes[at].id == 0) {
        if (shape_count >= SHAPES_MAX)
            return 0;
        shapes[at].key = *key;
        shapes[at].id = ++shape_count;
    }
    if (!shapes[at].published && reserve(1, &number)) {
        Slot record = {
            .kind = KIND_LAUNCH_SHAPE, .name = key->name, .d = shapes[at].id,
            .start = key->grid[0] | (uint64_t)key->grid[1] << 32,
            .end = key->grid[2] | (uint64_t)key->block[0] << 32,
            .value = key->block[1] | (uint64_t)key->block[2] << 32,
            .a = key->registers, .b = key->static_shared, .c = key->dynamic_shared,
        };
        put(number, &record);
        shapes[at].published = 1;
    }
    return shapes[at].id;
}

/* Kernel names are long and come with the same pointer again and again: a guess by pointer,
 * checked by comparing the text, spares hashing them. */
enum { NAME_GUESSES = 1024 };
static String *name_guesses[NAME_GUESSES];

static String *kernel_name(const char *text)
{
    if (text == NULL)
        return &empty_storage.string;
    uint64_t at = ((uint64_t)(uintptr_t)text * 0x9E3779B97F4A7C15ull) >> 54;
    String *guess = name_guesses[at];
    if (guess == NULL || strcmp(guess->text, text) != 0)
        name_guesses[at] = guess = intern(text, STRING_BYTES_MAX);
    return guess;
}

static inline uint32_t u32_at(const uint8_t *record, int offset)
{
    uint32_t value;
    memcpy(&value, record + offset, sizeof value);
    return value;
}

static inline uint64_t u64_at(const uint8_t *record, int offset)
{
    uint64_t value;
    memcpy(&value, record + offset, sizeof value);
    return value;
}

static void decode_kernel(const uint8_t *r, Slot *out)
{
    uint16_t registers;
    const char *name;
    memcpy(&registers, r + 6, sizeof registers);
    memcpy(&name, r + 104, sizeof name);
    out->kind = KIND_KERNEL;
    out->start = u64_at(r, 16);
    out->end = u64_at(r, 24);
    out->a = u32_at(r, 40);
    out->c = u32_at(r, 44);
    out->b = u32_at(r, 48);
    out->correlation = u32_at(r, 92);
    out->name = id_of(kernel_name(name));
    out->value = u64_at(r, 144);
    out->e = u32_at(r, 156);
    ShapeKey key = {
        .name = out->name, .registers = registers,
        .grid = {u32_at(r, 52), u32_at(r, 56), u32_at(r, 60)},
        .block = {u32_at(r, 64), u32_at(r, 68), u32_at(r, 72)},
        .static_shared = u32_at(r, 76), .dynamic_shared = u32_at(r, 80),
    };
    out->d = shape_id(&key);
}

static void decode_transfer(const uint8_t *r, Slot *out)
{
    out->value = u64_at(r, 8);
    out->start = u64_at(r, 16);
    out->end = u64_at(r, 24);
    out->a = u32_at(r, 32);
    out->c = u32_at(r, 36);
    out->b = u32_at(r, 40);
}

static void decode_memcpy(const uint8_t *r, Slot *out)
{
    decode_transfer(r, out);
    out->kind = KIND_MEMCPY;
    out->sub = r[4];
    out->source_kind = r[5];
    out->destination_kind = r[6];
    out->correlation = u32_at(r, 44);
    out->e = u32_at(r, 72);
}

static void decode_peer_copy(const uint8_t *r, Slot *out)
{
    uint32_t source = u32_at(r, 44), destination = u32_at(r, 52);
    decode_memcpy(r, out);
    out->sub = COPY_PEER;
    out->c = out->a == source ? destination : source;
    out->correlation = u32_at(r, 60);
    out->e = u32_at(r, 80);
}

static void decode_memset(const uint8_t *r, Slot *out)
{
    decode_transfer(r, out);
    out->kind = KIND_MEMSET;
    out->destination_kind = r[50];
    out->correlation = u32_at(r, 44);
    out->e = u32_at(r, 72);
}

static void decode_call(const uint8_t *r, int driver, Slot *out)
{
    uint32_t call = u32_at(r, 4);
    out->kind = KIND_API;
    out->sub = (uint8_t)driver;
    out->start = u64_at(r, 8);
    out->end = u64_at(r, 16);
    out->thread = u32_at(r, 28);
    out->correlation = u32_at(r, 32);
    out->a = u32_at(r, 36);
    if (call < CALLS && call_names[driver][call] != NULL) {
        call_made[driver][call] = 1;
        out->name = id_of(call_names[driver][call]);
    }
}

static void decode_graph(const uint8_t *r, Slot *out)
{
    out->kind = KIND_GRAPH;
    out->correlation = u32_at(r, 4);
    out->start = u64_at(r, 8);
    out->end = u64_at(r, 16);
    out->a = u32_at(r, 24);
    out->e = u32_at(r, 28);
    out->c = u32_at(r, 32);
    out->b = u32_at(r, 36);
}

static void decode(const uint8_t *r, Batch *batch)
{
    if (batch->count == BATCH)
        write_batch(batch);
    Slot *out = &batch->records[batch->count];
    memset(out, 0, sizeof *out);
    switch (u32_at(r, 0)) {
    case ACTIVITY_CONCURRENT_KERNEL: decode_kernel(r, out); break;
    case ACTIVITY_MEMCPY: decode_memcpy(r, out); break;
    case ACTIVITY_MEMCPY2: decode_peer_copy(r, out); break;
    case ACTIVITY_MEMSET: decode_memset(r, out); break;
    case ACTIVITY_RUNTIME: decode_call(r, 0, out); break;
    case ACTIVITY_DRIVER: decode_call(r, 1, out); break;
    case ACTIVITY_GRAPH_TRACE: decode_graph(r, out); break;
    default: return;
    }
    batch->count++;
}

static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                             size_t valid)
{
    (void)size;
    if (buffer == NULL)
        return;
    if (is_armed()) {
        uint64_t began = now_ns();
        Batch batch;
        uint8_t *record = NULL;
        size_t dropped = 0;
        batch.count = 0;
        pthread_mutex_lock(&decode_lock);
        while (valid > 0 && cupti.ActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
            decode(record, &batch);
        write_batch(&batch);
        pthread_mutex_unlock(&decode_lock);
        /* Without the lock: CUPTI takes one of its own in here. */
        if (cupti.ActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
            __atomic_fetch_add(&header->cupti_dropped, dropped, __ATOMIC_RELAXED);
        __atomic_fetch_add(&header->callback_ns, now_ns() - began, __ATOMIC_RELAXED);
    }
    return_buffer(buffer);
}

/* The thread that asks CUPTI for what has finished, ten times a second. */
enum { FLUSH_PERIOD_NS = 100000000, EXIT_WAIT_S = 2 };
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int running, stop;
} flusher = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void flush(uint32_t how)
{
    uint64_t number;
    Slot record = {.kind = KIND_FLUSH, .start = now_ns()};
    cupti.ActivityFlushAll(how);
    if (duty.period != 0 && duty.range == 0)
        set_tracing((record.start - duty.began_ns) % duty.period < duty.on);
    pthread_mutex_lock(&duty.lock);
    account_duty(record.start);
    pthread_mutex_unlock(&duty.lock);
    record.value = __atomic_load_n(&header->cupti_dropped, __ATOMIC_RELAXED);
    if (is_armed() && reserve(1, &number))
        put(number, &record);
    __atomic_store_n(&header->heartbeat_ns, now_ns(), __ATOMIC_RELAXED);
}

static void monotonic_after(struct timespec *when, long seconds, long nanoseconds)
{
    clock_gettime(CLOCK_MONOTONIC, when);
    when->tv_sec += seconds;
    when->tv_nsec += nanoseconds;
    if (when->tv_nsec >= 1000000000) {
        when->tv_nsec -= 1000000000;
        when->tv_sec++;
    }
}

static void *flush_loop(void *unused)
{
    prctl(PR_SET_NAME, "gputui-flush", 0, 0, 0);
    pthread_mutex_lock(&flusher.lock);
    while (!flusher.stop) {
        struct timespec when;
        monotonic_after(&when, 0, FLUSH_PERIOD_NS);
        while (!flusher.stop &&
               pthread_cond_timedwait(&flusher.changed, &flusher.lock, &when) == 0)
            ;
        pthread_mutex_unlock(&flusher.lock);
        flush(0);
        pthread_mutex_lock(&flusher.lock);
    }
    flusher.running = 0;
    pthread_cond_broadcast(&flusher.changed);
    pthread_mutex_unlock(&flusher.lock);
    return unused;
}

static int start_flusher(void)
{
    pthread_t thread;
    pthread_condattr_t clock;
    sigset_t all, before;
    int error;
    if (pthread_condattr_init(&clock) != 0 ||
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) != 0 ||
        pthread_cond_init(&flusher.changed, &clock) != 0)
        return errno;
    /* Signals are the program's own: its handlers run on its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    flusher.running = 1;
    error = pthread_create(&thread, NULL, flush_loop, NULL);
    if (error == 0)
        pthread_detach(thread);
    else
        flusher.running = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void stop_cuda(void)
{
    struct timespec when;
    int stopped;
    pthread_mutex_lock(&flusher.lock);
    if (!flusher.running) {
        pthread_mutex_unlock(&flusher.lock);
        return;
    }
    flusher.stop = 1;
    pthread_cond_broadcast(&flusher.changed);
    /* Bounded: a flush that hangs must not keep the program from ending. */
    monotonic_after(&when, EXIT_WAIT_S, 0);
    while (flusher.running &&
           pthread_cond_timedwait(&flusher.changed, &flusher.lock, &when) == 0)
        ;
    stopped = !flusher.running;
    pthread_mutex_unlock(&flusher.lock);
    if (stopped)
        flush(FLUSH_FORCED);
}

/* Calls worth a record, by the beginning of CUPTI's name for them. Of the driver's, only those
 * that programs without the runtime launch and copy with: the runtime calls the others itself. */
static const char *const runtime_calls[] = {
    "cudaLaunch", "__cudaLaunchKernel", "cudaGraphLaunch", "cudaGraphInstantiate", "cudaMemcpy",
    "cudaMemset", "cudaMemPrefetch", "cudaMalloc", "cudaFree", "cudaHostAlloc",
    "cudaHostRegister", "cudaHostUnregister", "cudaDeviceSynchronize",
    "cudaThreadSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", NULL,
};
static const char *const driver_calls[] = {
    "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuLaunchHostFunc", "cuLaunchGrid",
    "cuGraphLaunch", "cuMemcpy", "cuMemset", NULL,
};

static int begins_with_any(const char *name, const char *const *beginnings)
{
    for (; *beginnings != NULL; beginnings++)
        if (strncmp(name, *beginnings, strlen(*beginnings)) == 0)
            return 1;
    return 0;
}

static int enable_calls(int domain, const char *const *wanted, int (*enable)(uint32_t, uint8_t))
{
    int enabled = 0;
    String **names = call_names[domain == DOMAIN_DRIVER];
    for (uint32_t call = 1; call < CALLS; call++) {
        const char *name = NULL;
        if (cupti.GetCallbackName(domain, call, &name) != CUPTI_SUCCESS || name == NULL ||
            !begins_with_any(name, wanted))
            continue;
        /* What a program compiled with CUDA 13 calls cudaLaunchKernel. */
        if (strncmp(name, "__cudaLaunchKernel", 18) == 0)
            name = strstr(name, "_ptsz") != NULL ? "cudaLaunchKernel_ptsz_v7000"
                                                 : "cudaLaunchKernel_v7000";
        names[call] = ASCII(name);
        enabled += enable(call, 1) == CUPTI_SUCCESS;
    }
    return enabled;
}

/* Finding libcupti: the one already loaded, else one that stands beside a CUDA library that is
 * loaded, else what the monitor suggests, else what the system knows. */
enum { CANDIDATES = 96 };
typedef struct {
    int count;
    char paths[CANDIDATES][512];
} Candidates;

static void add_candidate(Candidates *candidates, const char *format, ...)
{
    va_list arguments;
    if (candidates->count == CANDIDATES)
        return;
    char *target = candidates->paths[candidates->count];
    va_start(arguments, format);
    int length = vsnprintf(target, sizeof candidates->paths[0], format, arguments);
    va_end(arguments);
    if (length <= 0 || length >= (int)sizeof candidates->paths[0])
        return;
    for (int at = 0; at < candidates->count; at++)
        if (strcmp(candidates->paths[at], target) == 0)
            return;
    candidates->count++;
}

static void add_folder(Candidates *candidates, const char *folder, int length)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (int at = 0; at < 3; at++) {
        char path[512];
        if (snprintf(path, sizeof path, "%.*s/%s", length, folder, names[at]) <
                (int)sizeof path &&
            access(path, R_OK) == 0)
            add_candidate(candidates, "%s", path);
    }
}

static int see_loaded_cupti(struct dl_phdr_info *info, size_t size, void *data)
{
    const char *name = info->dlpi_name != NULL ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;
    if (name != NULL && strncmp(name, "/libcupti.so", 12) == 0)
        add_candidate(data, "%s", info->dlpi_name);
    return 0;
}

static int see_cuda_library(struct dl_phdr_info *info, size_t size, void *data)
{
    /* From the folder of the library: pip's CUDA 12 and 13 wheels, torch's own folder beside
     * them, and a toolkit's lib64 or targets/ARCH/lib. */
    static const char *const beside[] = {
        "", "/../../cuda_cupti/lib", "/../../nvidia/cu13/lib", "/../../nvidia/cuda_cupti/lib",
        "/../extras/CUPTI/lib64", "/../../../extras/CUPTI/lib64",
    };
    static const char *const known[] = {"/libcudart.so", "/libcublas.so", "/libnvrtc.so",
                                        "/libtorch_cuda.so", "/libcufft.so", NULL};
    const char *name = info->dlpi_name != NULL ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;
    if (name == NULL || !begins_with_any(name, known))
        return 0;
    for (size_t at = 0; at < sizeof beside / sizeof *beside; at++) {
        char folder[512];
        int length = snprintf(folder, sizeof folder, "%.*s%s", (int)(name - info->dlpi_name),
                              info->dlpi_name, beside[at]);
        if (length < (int)sizeof folder)
            add_folder(data, folder, length);
    }
    return 0;
}

static void find_candidates(Candidates *candidates)
{
    static const char *const toolkits[] = {"/usr/local/cuda", "/usr/local/cuda-13",
                                           "/usr/local/cuda-12"};
    const char *hint = getenv("GPUTUI_CUPTI_PATH");
    dl_iterate_phdr(see_loaded_cupti, candidates);
    if (candidates->count > 0)
        return; /* two in one process would fight over the driver's one subscriber */
    dl_iterate_phdr(see_cuda_library, candidates);
    if (hint != NULL && hint[0] != '\0') {
        struct stat status;
        if (stat(hint, &status) == 0 && S_ISDIR(status.st_mode))
            add_folder(candidates, hint, (int)strlen(hint));
        else
            add_candidate(candidates, "%s", hint);
    }
    add_candidate(candidates, "libcupti.so.13");
    add_candidate(candidates, "libcupti.so.12");
    add_candidate(candidates, "libcupti.so");
    for (int at = 0; at < 3; at++) {
        char folder[64];
        int length = snprintf(folder, sizeof folder, "%s/extras/CUPTI/lib64", toolkits[at]);
        add_folder(candidates, folder, length);
    }
}

static void ignore_callback(void *data, int domain, uint32_t call, const void *details)
{
    (void)data, (void)domain, (void)call, (void)details;
}

static int failed(const char *what, int result)
{
    const char *text = NULL;
    if (cupti.GetResultString(result, &text) != CUPTI_SUCCESS || text == NULL)
        text = "unknown";
    set_cuda_state(CUDA_FAILED, "%s: %s (%d)%s", what, text, result,
                   result == CUPTI_MULTIPLE_SUBSCRIBERS
                       ? ", another profiler is at work in this process"
                       : "");
    return 0;
}

/* Loads one libcupti and claims the process's single subscriber; the text tells what failed. */
static int claim_cupti(const char *path, int *another_may_do)
{
    /* Local: NVTX looks symbols up in us and must not find CUPTI's through us. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *subscriber = NULL;
    void **functions = (void **)&cupti;
    uint32_t version = 0;
    *another_may_do = 1;
    if (library == NULL)
        return 0;
    for (size_t at = 0; at < sizeof cupti_symbols / sizeof *cupti_symbols; at++) {
        functions[at] = dlsym(library, cupti_symbols[at]);
        if (functions[at] == NULL) {
            set_cuda_state(CUDA_FAILED, "%s lacks %s: too old?", path, cupti_symbols[at]);
            dlclose(library);
            return 0;
        }
    }
    cupti.GetVersion(&version);
    header->cupti_version = version;
    int result = cupti.Subscribe(&subscriber, ignore_callback, NULL);
    if (result != CUPTI_SUCCESS) {
        failed("cuptiSubscribe", result);
        *another_may_do = result != CUPTI_MULTIPLE_SUBSCRIBERS;
        return 0; /* it stays loaded: it may have started threads */
    }
    *another_may_do = 0;
    result = cupti.SetThreadIdType(THREAD_ID_SYSTEM);
    if (result == CUPTI_SUCCESS) {
        result = cupti.ActivityRegisterCallbacks(buffer_requested, buffer_completed);
        if (result == CUPTI_SUCCESS)
            return 1;
        failed("cuptiActivityRegisterCallbacks", result);
    } else {
        failed("cuptiSetThreadIdType", result);
    }
    cupti.Unsubscribe(subscriber);
    return 0;
}

static const int activity_kinds[] = {
    ACTIVITY_CONCURRENT_KERNEL, ACTIVITY_MEMCPY, ACTIVITY_MEMSET, ACTIVITY_MEMCPY2,
};

static void switch_calls(int driver, int on, int (*enable)(uint32_t, uint8_t))
{
    for (uint32_t call = 1; call < CALLS; call++)
        if (on ? call_off[driver][call] : call_made[driver][call] && !call_off[driver][call]) {
            enable(call, (uint8_t)on);
            call_off[driver][call] = (uint8_t)!on;
        }
}

/* What costs, off and on again: on an H200 some 17 µs for the kinds and 1 for each call. Calls go
 * on before kernels and off after them, so that no kernel is without its call. */
static void switch_activity(int on)
{
    for (int step = 0; step < 2; step++) {
        if (step == on)
            for (size_t at = 0; at < sizeof activity_kinds / sizeof *activity_kinds; at++)
                (on ? cupti.ActivityEnable : cupti.ActivityDisable)(activity_kinds[at]);
        else {
            switch_calls(0, on, cupti.ActivityEnableRuntimeApi);
            switch_calls(1, on, cupti.ActivityEnableDriverApi);
        }
    }
}

/* Not SYNCHRONIZATION: enabling it took a launch-bound decode on an H200 from 1.2 to 1.6 times its
 * bare time, and the calls that synchronize are recorded as calls. */
static void enable_activity(void)
{
    static const struct {
        int kind, needed;
        const char *name;
    } kinds[] = {
        {ACTIVITY_CONCURRENT_KERNEL, 1, "CONCURRENT_KERNEL"},
        {ACTIVITY_MEMCPY, 1, "MEMCPY"},
        {ACTIVITY_MEMSET, 1, "MEMSET"},
        {ACTIVITY_MEMCPY2, 0, "MEMCPY2"},
    };
    const char *graphs = getenv("GPUTUI_GRAPH_TRACE");
    int calls = enable_calls(DOMAIN_RUNTIME, runtime_calls, cupti.ActivityEnableRuntimeApi);
    calls += enable_calls(DOMAIN_DRIVER, driver_calls, cupti.ActivityEnableDriverApi);
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        int result = cupti.ActivityEnable(kinds[at].kind);
        if (result != CUPTI_SUCCESS && kinds[at].needed) {
            char what[64];
            snprintf(what, sizeof what, "cuptiActivityEnable(%s)", kinds[at].name);
            failed(what, result);
            return;
        }
    }
    if (graphs != NULL && strcmp(graphs, "graph") == 0)
        cupti.ActivityEnable(ACTIVITY_GRAPH_TRACE);
    pthread_mutex_lock(&duty.lock);
    duty.began_ns = duty.since_ns = now_ns();
    duty.ready = 1;
    pthread_mutex_unlock(&duty.lock);
    if (duty.range != 0)
        set_tracing(__atomic_load_n(&duty.steps, __ATOMIC_RELAXED) % duty.period < duty.on);
    int error = start_flusher();
    if (error != 0)
        set_cuda_state(CUDA_FAILED, "no thread for flushing: %s", strerror(error));
    else if (calls == 0)
        set_cuda_state(CUDA_TRACING, "tracing, but no CUDA call could be enabled: kernels "
                                     "cannot be attributed to ranges");
    else
        set_cuda_state(CUDA_TRACING, "tracing");
}

static void start_cuda(void)
{
    static Candidates candidates;
    int saved_errno = errno, another_may_do = 1, claimed = 0;
    if (!start_capture())
        open_ring_after_fork();
    if (is_armed() && header->cuda_state != CUDA_OFF) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        if (visible != NULL)
            snprintf(header->visible_devices, sizeof header->visible_devices, "=%s", visible);
        set_cuda_state(CUDA_STARTING, "looking for libcupti");
        find_candidates(&candidates);
        for (int at = 0; at < candidates.count && another_may_do && !claimed; at++)
            claimed = claim_cupti(candidates.paths[at], &another_may_do);
        if (claimed)
            enable_activity();
        else if (header->cuda_state == CUDA_STARTING)
            set_cuda_state(CUDA_FAILED, "libcupti not found: install nvidia-cuda-cupti or set "
                                        "GPUTUI_CUPTI_PATH to the file");
    }
    errno = saved_errno;
}

/* The driver calls this inside cuInit. */
EXPORT int InitializeInjection(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, start_cuda);
    return 1;
}
