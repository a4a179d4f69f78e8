/* A libnvidia-ml.so.1 whose answers come from a file, for tests of the real pynvml on it.
 *
 * FAKE_NVML names a file of lines "KEY VALUE". KEY is a function, or DEVICE.FUNCTION, or
 * DEVICE.FUNCTION.DETAIL; for the MIG instance I of a device, DEVICE.mig.I.FUNCTION. A VALUE "!N" is the error N; "@FIFO" hangs until someone opens that
 * fifo for writing, then the file is read again. A key that is not there: not supported. The
 * file is read anew whenever it was replaced. On shutdown, "FILE.log" gets the number of GPM
 * samples that were not freed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, VERSION_MISMATCH = 25 };
enum { VALUE = 512, MIG_BASE = 1000 };
typedef struct { int unused; } *device_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int references, live_samples;
static long asked;

static char *content(void) {
    static char *text;
    static struct stat last;
    struct stat now;
    const char *path = getenv("FAKE_NVML");
    if (path == NULL || stat(path, &now) != 0) return text;
    if (text && now.st_ino == last.st_ino && now.st_mtim.tv_nsec == last.st_mtim.tv_nsec
        && now.st_mtim.tv_sec == last.st_mtim.tv_sec && now.st_size == last.st_size) return text;
    FILE *file = fopen(path, "r");
    if (file == NULL) return text;
    char *fresh = calloc(1, (size_t)now.st_size + 2);
    fresh[0] = '\n';
    if (fread(fresh + 1, 1, (size_t)now.st_size, file) > 0) { free(text); text = fresh; }
    fclose(file);
    last = now;
    return text;
}

static int find(const char *key, char *value) {
    char needle[VALUE];
    int found = 0;
    snprintf(needle, sizeof needle, "\n%s ", key);
    pthread_mutex_lock(&lock);
    char *text = content(), *line = text ? strstr(text, needle) : NULL;
    if (line) {
        line += strlen(needle);
        snprintf(value, VALUE, "%.*s", (int)strcspn(line, "\n"), line);
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* A handle is the GPU's index + 1; those of its MIG instances follow in steps of MIG_BASE. */
static int gpu_of(device_t device) { return ((int)(intptr_t)device - 1) % MIG_BASE; }
static int instance_of(device_t device) { return ((int)(intptr_t)device - 1) / MIG_BASE - 1; }
static device_t mig_handle(int gpu, int instance) {
    return (device_t)(intptr_t)((instance + 1) * MIG_BASE + gpu + 1);
}

/* FAKE_NVML_CALLS, where set, names a file that gets a line "DEVICE FUNCTION" for each call. */
static void note(int index, const char *function) {
    char line[VALUE];
    const char *path = getenv("FAKE_NVML_CALLS");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%d %s\n", index, function);
    if (write(file, line, (size_t)length) != length) abort();
    close(file);
}

static int ask(device_t device, const char *function, const char *detail, char *value) {
    char key[VALUE], place[32];
    int index = gpu_of(device), instance = instance_of(device);
    if (references == 0 && strcmp(function, "nvmlInitWithFlags") != 0) return UNINITIALIZED;
    __atomic_add_fetch(&asked, 1, __ATOMIC_SEQ_CST);
    if (instance < 0) snprintf(place, sizeof place, "%d", index);
    else snprintf(place, sizeof place, "%d.mig.%d", index, instance);
    if (device) snprintf(key, sizeof key, "%s.%s%s%s", place, function, *detail ? "." : "", detail);
    else snprintf(key, sizeof key, "%s", function);
    note(index, function);
    for (;;) {
        if (!find(key, value)) return NOT_SUPPORTED;
        if (value[0] == '!') return atoi(value + 1);
        if (value[0] != '@') return OK;
        int fifo = open(value + 1, O_RDONLY);
        if (fifo >= 0) close(fifo);
    }
}

static int number(device_t device, const char *function, const char *detail, uint64_t *out) {
    char value[VALUE];
    int code = ask(device, function, detail, value);
    if (code == OK) *out = strtoull(value, NULL, 0);
    return code;
}

static int number32(device_t device, const char *function, int detail, unsigned *out) {
    char words[16] = "";
    uint64_t wide = 0;
    if (detail >= 0) snprintf(words, sizeof words, "%d", detail);
    int code = number(device, function, words, &wide);
    if (code == OK) *out = (unsigned)wide;
    return code;
}

static int string(device_t device, const char *function, char *out, unsigned size) {
    char value[VALUE];
    int code = ask(device, function, "", value);
    if (code == OK) snprintf(out, size, "%s", value);
    return code;
}

/* Up to `count` numbers of one value, spaces between; how many there were. */
static int numbers_of(device_t device, const char *function, const char *detail, uint64_t *out,
                      int count) {
    char value[VALUE], *at = value, *end;
    int code = ask(device, function, detail, value), n = 0;
    if (code != OK) return -code;
    for (; n < count; n++, at = end) {
        out[n] = strtoull(at, &end, 0);
        if (end == at) break;
    }
    return n;
}

static int numbers(device_t device, const char *function, uint64_t *out, int count) {
    return numbers_of(device, function, "", out, count);
}

int nvmlInitWithFlags(unsigned flags) {
    uint64_t unused;
    (void)flags;
    int code = number(NULL, __func__, "", &unused);
    if (code == OK) references++;
    return code;
}

int nvmlShutdown(void) {
    char path[4096];
    if (references == 0) return UNINITIALIZED;
    references--;
    snprintf(path, sizeof path, "%s.log", getenv("FAKE_NVML"));
    FILE *log = fopen(path, "w");
    if (log) { fprintf(log, "%d\n", live_samples); fclose(log); }
    return OK;
}

const char *nvmlErrorString(int code) { (void)code; return "Something Odd"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { return string(NULL, __func__, out, n); }
int nvmlSystemGetCudaDriverVersion_v2(unsigned *out) { return number32(NULL, __func__, -1, out); }
int nvmlDeviceGetCount_v2(unsigned *out) { return number32(NULL, __func__, -1, out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
    unsigned unused;
    *out = (device_t)(intptr_t)(index + 1);
    return number32(*out, __func__, -1, &unused);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) {
    char key[VALUE], value[VALUE];
    unsigned count = 0;
    nvmlDeviceGetCount_v2(&count);
    for (unsigned i = 0; i < count; i++) {
        *out = (device_t)(intptr_t)(i + 1);
        if (string(*out, "nvmlDeviceGetUUID", value, sizeof value) == OK && !strcmp(value, uuid))
            return OK;
    }
    snprintf(key, sizeof key, "mig.%s", uuid);
    if (!find(key, value)) return NOT_FOUND;
    *out = mig_handle(atoi(value), 0);
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t mig, device_t *out) {
    if ((intptr_t)mig <= MIG_BASE) return INVALID_ARGUMENT;
    *out = (device_t)(intptr_t)(gpu_of(mig) + 1);
    return OK;
}

int nvmlDeviceGetIndex(device_t d, unsigned *out) { *out = (unsigned)(intptr_t)d - 1; return OK; }

#define TEXT(name) int name(device_t d, char *out, unsigned n) { return string(d, #name, out, n); }
#define UINT(name) int name(device_t d, unsigned *out) { return number32(d, #name, -1, out); }
#define UINT_OF(name) int name(device_t d, int which, unsigned *out) { return number32(d, #name, which, out); }
#define WIDE(name) int name(device_t d, uint64_t *out) { return number(d, #name, "", out); }

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetVbiosVersion)
UINT(nvmlDeviceGetArchitecture)
UINT(nvmlDeviceGetPowerManagementDefaultLimit)
UINT(nvmlDeviceGetFanSpeed)
UINT(nvmlDeviceGetPerformanceState)
UINT(nvmlDeviceGetCurrPcieLinkGeneration)
UINT(nvmlDeviceGetCurrPcieLinkWidth)
UINT(nvmlDeviceGetPcieReplayCounter)
UINT(nvmlDeviceGetPersistenceMode)
UINT(nvmlDeviceGetComputeMode)
UINT(nvmlDeviceGetRetiredPagesPendingStatus)
UINT(nvmlDeviceGetMaxMigDeviceCount)
UINT(nvmlDeviceGetGpuInstanceId)
UINT(nvmlDeviceGetComputeInstanceId)
UINT_OF(nvmlDeviceGetPcieThroughput)
UINT_OF(nvmlDeviceGetNvLinkState)
WIDE(nvmlDeviceGetTotalEnergyConsumption)
UINT(nvmlDeviceGetNumGpuCores)
UINT(nvmlDeviceGetMemoryBusWidth)
UINT(nvmlDeviceGetMaxPcieLinkGeneration)
UINT(nvmlDeviceGetMaxPcieLinkWidth)
UINT(nvmlDeviceGetPowerUsage)
UINT(nvmlDeviceGetEnforcedPowerLimit)
UINT_OF(nvmlDeviceGetMaxClockInfo)
UINT_OF(nvmlDeviceGetClockInfo)
UINT_OF(nvmlDeviceGetTemperature)
UINT_OF(nvmlDeviceGetTemperatureThreshold)
WIDE(nvmlDeviceGetCurrentClocksEventReasons)
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons)

static int pair(device_t device, const char *function, unsigned *first, unsigned *second) {
    uint64_t both[2];
    int n = numbers(device, function, both, 2);
    if (n < 0) return -n;
    *first = (unsigned)both[0];
    *second = (unsigned)both[1];
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(device_t d, unsigned *major, unsigned *minor) {
    return pair(d, __func__, major, minor);
}
int nvmlDeviceGetMigMode(device_t d, unsigned *now, unsigned *later) {
    return pair(d, __func__, now, later);
}
int nvmlDeviceGetPowerManagementLimitConstraints(device_t d, unsigned *least, unsigned *most) {
    return pair(d, __func__, least, most);
}
int nvmlDeviceGetEncoderUtilization(device_t d, unsigned *percent, unsigned *period_us) {
    return pair(d, __func__, percent, period_us);
}
int nvmlDeviceGetDecoderUtilization(device_t d, unsigned *percent, unsigned *period_us) {
    return pair(d, __func__, percent, period_us);
}
int nvmlDeviceGetEccMode(device_t d, unsigned *now, unsigned *later) {
    return pair(d, __func__, now, later);
}
struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(device_t d, struct utilization *out) {
    return pair(d, __func__, &out->gpu, &out->memory);
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(device_t d, struct pci *out) {
    memset(out, 0, sizeof *out);
    return string(d, __func__, out->bus_id, sizeof out->bus_id);
}

struct memory { uint64_t total, free, used; };
int nvmlDeviceGetMemoryInfo(device_t d, struct memory *out) {
    uint64_t n[2];
    int got = numbers(d, __func__, n, 2);
    if (got < 0) return -got;
    *out = (struct memory){ n[0], n[0] - n[1], n[1] };
    return OK;
}

struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory_v2 *out) {
    uint64_t n[3];
    if (out->version != (sizeof *out | 2 << 24)) return VERSION_MISMATCH;
    int got = numbers(d, __func__, n, 3);
    if (got < 0) return -got;
    out->total = n[0], out->used = n[1], out->reserved = n[2], out->free = n[0] - n[1] - n[2];
    return OK;
}

int nvmlDeviceGetBAR1MemoryInfo(device_t d, struct memory *out) {
    uint64_t n[2];
    int got = numbers(d, __func__, n, 2);
    if (got < 0) return -got;
    *out = (struct memory){ n[0], n[0] - n[1], n[1] };
    return OK;
}

int nvmlDeviceGetTotalEccErrors(device_t d, int kind, int counter, uint64_t *out) {
    char detail[16];
    snprintf(detail, sizeof detail, "%d.%d", kind, counter);
    return number(d, __func__, detail, out);
}

int nvmlDeviceGetRemappedRows(device_t d, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    uint64_t n[4];
    int got = numbers(d, __func__, n, 4);
    if (got < 0) return -got;
    *corrected = n[0], *uncorrected = n[1], *pending = n[2], *failed = n[3];
    return OK;
}

/* The value is how many pages there are of this cause. */
int nvmlDeviceGetRetiredPages_v2(device_t d, int cause, unsigned *count, uint64_t *addresses,
                                 uint64_t *stamps) {
    unsigned found, room = *count;
    int code = number32(d, __func__, cause, &found);
    if (code != OK) return code;
    *count = found;
    if (found > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; addresses && stamps && i < found; i++) addresses[i] = stamps[i] = i;
    return OK;
}

struct margin { unsigned version; int celsius; };
int nvmlDeviceGetMarginTemperature(device_t d, struct margin *out) {
    if (out->version != (sizeof *out | 1 << 24)) return VERSION_MISMATCH;
    return number32(d, __func__, -1, (unsigned *)&out->celsius);
}

/* "DEVICE.field.ID VALUE": unsigned 64 bit, each field with its own error. */
struct field { unsigned id, scope; int64_t stamp, latency; int type, code; uint64_t value; };
int nvmlDeviceGetFieldValues(device_t d, int count, struct field *fields) {
    for (int i = 0; i < count; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", fields[i].id);
        fields[i].type = 3;
        fields[i].code = number(d, "field", id, &fields[i].value);
        if (fields[i].code == 15) return fields[i].code;
    }
    return OK;
}

/* "DEVICE.xid COUNT CODE": so many Xids there were, the newest of that code. */
struct events { device_t device; uint64_t told; };
struct event { device_t device; uint64_t type, data; unsigned gpu_instance, compute_instance; };
int nvmlEventSetCreate(struct events **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlEventSetFree(struct events *set) { free(set); return OK; }
int nvmlDeviceRegisterEvents(device_t d, uint64_t types, struct events *set) {
    uint64_t n[2];
    if (types != 8) return INVALID_ARGUMENT;
    int got = numbers(d, "xid", n, 2);
    if (got < 0) return -got;
    *set = (struct events){ d, n[0] };
    return OK;
}
int nvmlEventSetWait_v2(struct events *set, struct event *out, unsigned timeout_ms) {
    uint64_t n[2];
    (void)timeout_ms;
    int got = numbers(set->device, "xid", n, 2);
    if (got < 0) return -got;
    if (n[0] <= set->told) return TIMEOUT;
    set->told++;
    *out = (struct event){ set->device, 8, n[1], ~0u, ~0u };
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t d, unsigned link, struct pci *out) {
    char detail[16], value[VALUE];
    memset(out, 0, sizeof *out);
    snprintf(detail, sizeof detail, "%u", link);
    int code = ask(d, __func__, detail, value);
    if (code == OK) snprintf(out->bus_id, sizeof out->bus_id, "%.31s", value);
    return code;
}
int nvmlDeviceGetTopologyCommonAncestor(device_t d, device_t other, unsigned *out) {
    return number32(d, __func__, gpu_of(other), out);
}
int nvmlDeviceGetP2PStatus(device_t d, device_t other, int which, unsigned *out) {
    char detail[16];
    uint64_t wide = 0;
    snprintf(detail, sizeof detail, "%d.%d", gpu_of(other), which);
    int code = number(d, __func__, detail, &wide);
    *out = (unsigned)wide;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned index, device_t *out) {
    char value[VALUE];
    *out = mig_handle(gpu_of(d), (int)index);
    return ask(*out, "nvmlDeviceGetUUID", "", value) == OK ? OK : NOT_FOUND;
}
struct attributes {
    unsigned sm_count, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    uint64_t memory_mib;
};
int nvmlDeviceGetAttributes_v2(device_t d, struct attributes *out) {
    uint64_t n[2];
    int got = numbers(d, __func__, n, 2);
    if (got < 0) return -got;
    *out = (struct attributes){ .sm_count = (unsigned)n[0], .memory_mib = n[1] };
    return OK;
}

struct temperature { unsigned version; int sensor, celsius; };
int nvmlDeviceGetTemperatureV(device_t d, struct temperature *out) {
    if (out->version != (sizeof *out | 1 << 24)) return VERSION_MISMATCH;
    return number32(d, __func__, out->sensor, (unsigned *)&out->celsius);
}

/* Processes: "PID BYTES PID BYTES ..."; BYTES of 18446744073709551615 is "not available".
 * FUNCTION.instances has the GPU and compute instance of each. */
struct process { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; };
static int processes(device_t d, const char *function, unsigned *count, struct process *out) {
    uint64_t n[32], places[32];
    int got = numbers(d, function, n, 32);
    if (got < 0) return -got;
    int placed = numbers_of(d, function, "instances", places, 32);
    unsigned found = (unsigned)got / 2, room = *count;
    *count = found;
    if (found > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        out[i] = (struct process){ (unsigned)n[2 * i], n[2 * i + 1], ~0u, ~0u };
        if (2 * (int)i + 1 < placed) {
            out[i].gpu_instance = (unsigned)places[2 * i];
            out[i].compute_instance = (unsigned)places[2 * i + 1];
        }
    }
    return OK;
}
#define PROCESSES(name) int name(device_t d, unsigned *count, struct process *out) { return processes(d, #name, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)

/* Samples: "PID STAMP PERCENT ..."; STAMP 0 is now. FUNCTION.memory has each one's percent. */
struct process_sample { unsigned pid; uint64_t stamp; unsigned sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(device_t d, struct process_sample *out, unsigned *count,
                                    uint64_t since) {
    uint64_t n[30], memory[10] = { 0 };
    struct process_sample kept[10];
    struct timespec now;
    unsigned found = 0;
    int got = numbers(d, __func__, n, 30);
    if (got < 0) return -got;
    numbers_of(d, __func__, "memory", memory, 10);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i + 2 < got; i += 3) {
        uint64_t stamp = n[i + 1] ? n[i + 1] : (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        if (stamp > since)
            kept[found++] = (struct process_sample){ (unsigned)n[i], stamp, (unsigned)n[i + 2], (unsigned)memory[i / 3], 0, 0 };
    }
    if (found == 0) return NOT_FOUND;
    if (out == NULL || *count < found) { *count = found; return INSUFFICIENT_SIZE; }
    *count = found;
    memcpy(out, kept, found * sizeof *kept);
    return OK;
}

/* GPM: "DEVICE.gpm.ID VALUE", of the GPU instance G "DEVICE.instance.G.gpm.ID". An id that is not there makes the whole query invalid, as on a
 * driver that does not know it; a window under 100 ms gives NaN, as on Hopper. */
struct sample { device_t device; int instance; int64_t taken_ns; };
struct support { unsigned version, supported; };
struct metric { unsigned id; int code; double value; const char *names[3]; };
struct query { unsigned version, count; struct sample *first, *second; struct metric metrics[]; };

int nvmlGpmQueryDeviceSupport(device_t d, struct support *out) {
    return number32(d, __func__, -1, &out->supported);
}
int nvmlGpmSampleAlloc(struct sample **out) {
    *out = calloc(1, sizeof **out);
    __atomic_add_fetch(&live_samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}
int nvmlGpmSampleFree(struct sample *sample) {
    free(sample);
    __atomic_sub_fetch(&live_samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}
static int take(device_t d, const char *function, int instance, struct sample *sample) {
    struct timespec now;
    unsigned unused;
    int code = number32(d, function, instance, &unused);
    if (code != OK) return code;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *sample = (struct sample){ d, instance, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec };
    return OK;
}
int nvmlGpmSampleGet(device_t d, struct sample *sample) { return take(d, __func__, -1, sample); }
int nvmlGpmMigSampleGet(device_t d, unsigned instance, struct sample *sample) {
    return take(d, __func__, (int)instance, sample);
}
static int metrics_of(struct query *query) {
    char value[VALUE], id[16];
    struct sample *a = query->first, *b = query->second;
    if (query->version != 1) return VERSION_MISMATCH;
    if (!a || !b || a->device != b->device || a->instance != b->instance || a->taken_ns >= b->taken_ns) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < query->count; i++) {
        struct metric *metric = &query->metrics[i];
        char key[VALUE];
        snprintf(id, sizeof id, "%u", metric->id);
        if (a->instance < 0) snprintf(key, sizeof key, "%d.gpm.%s", gpu_of(a->device), id);
        else snprintf(key, sizeof key, "%d.instance.%d.gpm.%s", gpu_of(a->device), a->instance, id);
        if (!find(key, value)) return INVALID_ARGUMENT;
        metric->code = value[0] == '!' ? atoi(value + 1) : OK;
        metric->value = metric->code ? 0 : strtod(value, NULL);
        if (b->taken_ns - a->taken_ns < 100000000) metric->value = 0.0 / 0.0;
    }
    return OK;
}

/* As with driver 580 on two H200, other calls during the first of these end the program; so do
 * two of these at once. */
int nvmlGpmMetricsGet(struct query *query) {
    static int inside, prepared;
    if (__atomic_exchange_n(&inside, 1, __ATOMIC_SEQ_CST)) abort();
    long before = __atomic_load_n(&asked, __ATOMIC_SEQ_CST);
    usleep(prepared ? 200 : 5000);
    if (!prepared && __atomic_load_n(&asked, __ATOMIC_SEQ_CST) != before) abort();
    prepared = 1;
    int code = metrics_of(query);
    __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST);
    return code;
}
