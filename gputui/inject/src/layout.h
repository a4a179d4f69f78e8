/* The ring's layout, for both libraries; mirrors gputui/ring/__init__.py. */

#pragma once

#include "common.h"

#define RING_MAGIC 0x47555052494E4731ull
#define LAYOUT_VERSION 2
#define HEADER_BYTES 4096
#define SLOT_BYTES 64
#define STRING_BYTES_PER_SLOT 60
#define STRING_BYTES_MAX 32768
#define NAME_BYTES_MAX 4096
#define SAMPLE_EVERY 61 /* odd: of calls that alternate, push and pop, each comes as often */
#define SAMPLE_NS_MAX 10000

enum {
    KIND_STRING = 1,
    KIND_RANGE_PUSH = 2,
    KIND_RANGE_POP = 3,
    KIND_RANGE_START = 4,
    KIND_RANGE_END = 5,
    KIND_MARK = 6,
    KIND_THREAD_NAME = 7,
    KIND_RESOURCE_NAME = 8,
    KIND_REFUSED = 9,
    KIND_STEP = 10,
    KIND_KERNEL = 16,
    KIND_MEMCPY = 17,
    KIND_MEMSET = 18,
    KIND_API = 19,
    KIND_DEVICE = 20,
    KIND_GRAPH = 21,
    KIND_LAUNCH_SHAPE = 22,
    KIND_GRAPH_PART = 23,
    KIND_WINDOW = 24,
    KIND_LOST = 25,
    KIND_FLUSH = 32,
    KIND_EXIT = 33,
};

enum { FLAG_COLORED = 1, FLAG_PAYLOAD = 2, FLAG_COMMUNICATOR = 4 };
enum { RESOURCE_DEVICE = 1, RESOURCE_CONTEXT = 2, RESOURCE_STREAM = 3 };
#define UNKNOWN_DEVICE 0xFFFFFFFFu
enum { NAMED_BY_SYSTEM = 1 };
enum { REFUSED_DEFERRED = 1 };
enum { PART_GRAPH = 1, PART_NODE = 2, PART_CLONE = 3, PART_GONE = 4 };
/* NVTX's numbers, and one of our own. */
enum {
    PAYLOAD_UINT64 = 1,
    PAYLOAD_INT64 = 2,
    PAYLOAD_DOUBLE = 3,
    PAYLOAD_UINT32 = 4,
    PAYLOAD_INT32 = 5,
    PAYLOAD_FLOAT = 6,
    PAYLOAD_BYTES = 7,
};
/* What a window of tracing has come to. */
enum { WINDOW_OPENING = 1, WINDOW_ON = 2, WINDOW_OFF = 3, WINDOW_CLOSED = 4 };
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
    char visible_devices[224]; /* "=" and CUDA_VISIBLE_DEVICES; empty where it is not set */
    /* The monitor's: how often a window is to be opened, and a step's name; 0 without a wish. */
    uint64_t period_ns;
    uint32_t step_name;
    uint32_t launch_blocking;  /* the process's CUDA_LAUNCH_BLOCKING, 0 where it is not set */
    uint64_t unseen_forks;     /* forked processes that wanted to write, and may not */
    char cuda_text[512] __attribute__((aligned(512)));
    char command[3072] __attribute__((aligned(1024)));
} Header;

_Static_assert(sizeof(Slot) == SLOT_BYTES, "a slot is one cache line");
_Static_assert(offsetof(Slot, published) == STRING_BYTES_PER_SLOT, "the last word publishes");
_Static_assert(sizeof(Header) == HEADER_BYTES, "the header is one page");
