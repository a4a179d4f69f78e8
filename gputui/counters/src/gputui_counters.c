/* Samples one GPU's hardware counters from outside the programs that use it, by CUPTI's PM sampling.
 *
 *     gputui_counters INTERVAL_NS IN_WINDOWS LIBCUPTI ...
 *
 * The GPU is the first that CUDA_VISIBLE_DEVICES shows. It makes no CUDA context. Messages go to the
 * standard output; it ends when nobody reads them, when its parent has died, and at SIGTERM.
 * With IN_WINDOWS 1 a program is traced in windows, of which SIGUSR2 says that one has opened: only
 * samples inside of those are of use. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "metrics.inc.c"

#include <signal.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <time.h>

#ifndef SOURCES_MARK
#define SOURCES_MARK ""
#endif
__attribute__((used)) static const char sources_mark[] = SOURCES_MARK;

enum { USAGE = 2, UUID_BYTES = 16, DEVICE = 0 };
enum { SHORTEST_NS = 20000, LONGEST_NS = 10000000, BUFFER_BYTES = 64 << 20 };

/* Decoding and evaluating takes some 100 us a sample: counters are sampled in bursts, as seldom as
 * keeps this process's share of a core below a limit. The first follow each other. */
enum { BURST_SAMPLES = 250, FIRST_BURSTS = 10, ROOM_SAMPLES = 150 };
enum { SHORTEST_PAUSE_MS = 1, LONGEST_PAUSE_MS = 10000, CPU_PERMILLE = 25 };
enum { WINDOW_BURSTS = 4, ADVANCE_MS = 400 }; /* what a window of 0.5 s holds; CPU time at the start */
enum { ASSUMED_SYSCLK_MHZ = 1500 }; /* where the trigger counts cycles: Turing and GA100 */

static volatile sig_atomic_t is_asked_to_end, is_sampling, is_in_window;
static pid_t parent;

static void on_signal(int number)
{
    /* SIGUSR1 comes when the thread that started this process ends: that alone is no reason. */
    if (number != SIGTERM && getppid() == parent)
        return;
    is_asked_to_end = 1;
    if (!is_sampling)
        _exit(0); /* CUPTI may take seconds to start, and nothing is switched on yet */
}

static void on_window(int number)
{
    (void)number;
    is_in_window = 1;
}

static void watch_parent(void)
{
    struct sigaction action = {.sa_handler = on_signal}, window = {.sa_handler = on_window};
    parent = getppid();
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &window, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    fcntl(OUTPUT, F_SETFL, fcntl(OUTPUT, F_GETFL) | O_NONBLOCK);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static char uuid_text[2 * UUID_BYTES + 1];

static void find_device(void)
{
    int code, count = 0, device = 0, driver = 0;
    uint8_t uuid[UUID_BYTES];
    if ((code = cuInit(0)) != 0)
        refuse("driver", code, "cuInit returned %d", code);
    cuDriverGetVersion(&driver);
    if (driver < 13000)
        refuse("driver", driver, "the driver is of CUDA %d.%d, CUPTI 13 needs one of 13.0",
               driver / 1000, driver % 1000 / 10);
    if (cuDeviceGetCount(&count) != 0 || count < 1 || cuDeviceGet(&device, DEVICE) != 0 ||
        cuDeviceGetUuid(uuid, device) != 0)
        refuse("device", count, "the driver shows no such GPU");
    for (int at = 0; at < UUID_BYTES; at++)
        snprintf(uuid_text + 2 * at, 3, "%02x", uuid[at]);
}

static __attribute__((noreturn)) void refuse_result(const char *call, CuptiResult result)
{
    const char *word = result == CUPTI_INSUFFICIENT_PRIVILEGES ? "rights"
                       : result == CUPTI_MIG_NOT_SUPPORTED     ? "mig"
                       : result == CUPTI_HARDWARE_BUSY || result == CUPTI_INVALID_OPERATION
                           ? "busy"
                           : "failed";
    refuse(word, result, "%s: %s", call, result_text(result));
}

static void ask_device(void)
{
    CuptiResult result;
    PARAMETERS(ProfilerInitialize, begin, unused, .unused = NULL);
    PARAMETERS(ChipName, name, chip, .device = DEVICE);
    PARAMETERS(SamplingAvailability, available, image, .device = DEVICE);
    if ((result = cuptiProfilerInitialize(&begin)) != CUPTI_OK)
        refuse_result("cuptiProfilerInitialize", result);
    if ((result = cuptiDeviceGetChipName(&name)) != CUPTI_OK)
        refuse_result("cuptiDeviceGetChipName", result);
    chip = name.chip;
    if ((result = cuptiPmSamplingGetCounterAvailability(&available)) != CUPTI_OK)
        refuse_result("cuptiPmSamplingGetCounterAvailability", result);
    if ((availability = malloc(available.bytes)) == NULL)
        refuse("failed", 0, "no memory");
    available.image = availability;
    if ((result = cuptiPmSamplingGetCounterAvailability(&available)) != CUPTI_OK)
        refuse_result("cuptiPmSamplingGetCounterAvailability", result);
}

static void *sampling; /* CUPTI's object of the GPU's sampling */
static const char *trigger_name;
static uint8_t *image;
static size_t image_bytes;

static void enable_sampling(uint64_t interval_ns)
{
    CuptiResult result;
    PARAMETERS(SamplingEnable, enable, sampling, .device = DEVICE);
    if ((result = cuptiPmSamplingEnable(&enable)) != CUPTI_OK)
        refuse_result("cuptiPmSamplingEnable", result);
    sampling = enable.sampling;
    is_sampling = 1;
    PARAMETERS(SamplingConfig, setting, append, .sampling = sampling,
               .config_bytes = config_bytes, .config = config, .buffer_bytes = BUFFER_BYTES,
               .interval = interval_ns, .trigger = TRIGGER_TIME_NS,
               .append = APPEND_KEEP_OLDEST);
    trigger_name = "time";
    if ((result = cuptiPmSamplingSetConfig(&setting)) != CUPTI_OK) {
        trigger_name = "sysclk";
        setting.trigger = TRIGGER_SYSCLK_CYCLES;
        setting.interval = interval_ns * ASSUMED_SYSCLK_MHZ / 1000;
        result = cuptiPmSamplingSetConfig(&setting);
    }
    if (result != CUPTI_OK)
        refuse_result("cuptiPmSamplingSetConfig", result);
    PARAMETERS(SamplingImageSize, size, bytes, .sampling = sampling, .names = metrics,
               .count = metric_count, .samples = BURST_SAMPLES + ROOM_SAMPLES);
    if ((result = cuptiPmSamplingGetCounterDataSize(&size)) != CUPTI_OK)
        refuse_result("cuptiPmSamplingGetCounterDataSize", result);
    if (image == NULL || image_bytes != size.bytes) {
        free(image);
        image_bytes = size.bytes;
        if ((image = malloc(image_bytes)) == NULL)
            refuse("failed", 0, "no memory");
    }
}

static void disable_sampling(void)
{
    PARAMETERS(SamplingObject, object, sampling, .sampling = sampling);
    if (sampling != NULL)
        cuptiPmSamplingDisable(&object);
    sampling = NULL;
}

/* The samples of a burst: decoded, evaluated, and sent. 0 if the card's buffer ran over: CUPTI then
 * gives nothing more until sampling is enabled anew. */
static int read_samples(uint8_t *message, uint64_t interval_ns)
{
    CuptiResult result;
    PARAMETERS(SamplingImageInitialize, begin, image, .sampling = sampling,
               .bytes = image_bytes, .image = image);
    if ((result = cuptiPmSamplingCounterDataImageInitialize(&begin)) != CUPTI_OK)
        refuse_result("cuptiPmSamplingCounterDataImageInitialize", result);
    PARAMETERS(SamplingDecode, decode, overflow, .sampling = sampling, .image = image,
               .bytes = image_bytes);
    result = cuptiPmSamplingDecodeData(&decode);
    if (result == CUPTI_OUT_OF_MEMORY || decode.overflow)
        return 0;
    if (result != CUPTI_OK)
        refuse_result("cuptiPmSamplingDecodeData", result);
    PARAMETERS(SamplingImageInfo, info, completed, .image = image, .bytes = image_bytes);
    if ((result = cuptiPmSamplingGetCounterDataInfo(&info)) != CUPTI_OK)
        refuse_result("cuptiPmSamplingGetCounterDataInfo", result);
    size_t length = sizeof(uint64_t), sample_bytes = (2 + metric_count) * sizeof(uint64_t);
    uint64_t read_ns = clock_ns(CLOCK_REALTIME), count = 0; /* the clock of the time stamps */
    memcpy(message, &read_ns, sizeof read_ns);
    for (size_t at = 0; at < info.completed && at < BURST_SAMPLES + ROOM_SAMPLES; at++) {
        double values[COUNTERS] = {0};
        PARAMETERS(SamplingSampleInfo, sample, end_ns, .sampling = sampling, .image = image,
                   .bytes = image_bytes, .index = at);
        PARAMETERS(HostEvaluate, evaluate, values, .host = host, .image = image,
                   .bytes = image_bytes, .index = at, .names = metrics, .count = metric_count,
                   .values = values);
        if (cuptiPmSamplingCounterDataGetSampleInfo(&sample) != CUPTI_OK) {
            lost_samples++;
            continue;
        }
        /* The first of a burst reaches back to the one before it, the last ones have no length. */
        if (at == 0 || sample.start_ns == 0 || sample.end_ns <= sample.start_ns ||
            (strcmp(trigger_name, "time") == 0 &&
             sample.end_ns - sample.start_ns > interval_ns + interval_ns / 2))
            continue;
        if (cuptiProfilerHostEvaluateToGpuValues(&evaluate) != CUPTI_OK) {
            lost_samples++;
            continue;
        }
        memcpy(message + length, &sample.start_ns, sizeof sample.start_ns);
        memcpy(message + length + 8, &sample.end_ns, sizeof sample.end_ns);
        memcpy(message + length + 16, values, metric_count * sizeof(double));
        length += sample_bytes;
        count++;
    }
    if (count > 0 && !send_message(MESSAGE_SAMPLES, message, length))
        lost_samples += count;
    return 1;
}

static void say_ready(uint64_t interval_ns)
{
    char text[4096];
    int length = snprintf(text, sizeof text,
                          "uuid %s\nchip %s\ncupti %u\nlibrary %s\ninterval_ns %llu\n"
                          "trigger %s\n",
                          uuid_text, chip, cupti_version, cupti_path,
                          (unsigned long long)interval_ns, trigger_name);
    for (size_t at = 0; at < metric_count && length < (int)sizeof text - 64; at++)
        length += snprintf(text + length, sizeof text - (size_t)length, "counter %s\n", keys[at]);
    send_surely(MESSAGE_READY, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1);
}

static int is_over(uint64_t milliseconds)
{
    return is_asked_to_end || is_reader_gone((int)milliseconds, 0) || is_asked_to_end;
}

static int in_windows;

/* How long to sleep after a burst that took so much CPU time; `spent_ms` were all since the start. */
static uint64_t pause_after(uint64_t used_ms, uint64_t burst_ms, uint64_t spent_ms,
                            uint64_t lasted_ms, uint64_t *following)
{
    if (is_in_window) {
        is_in_window = 0;
        if (spent_ms * 1000 < lasted_ms * CPU_PERMILLE + ADVANCE_MS * 1000)
            *following = WINDOW_BURSTS;
    }
    if (*following > 0) {
        *following -= 1;
        return SHORTEST_PAUSE_MS;
    }
    if (in_windows)
        return LONGEST_PAUSE_MS; /* until the next one */
    uint64_t pause_ms = used_ms * 1000 / CPU_PERMILLE;
    pause_ms = pause_ms > burst_ms ? pause_ms - burst_ms : SHORTEST_PAUSE_MS;
    return pause_ms < LONGEST_PAUSE_MS ? pause_ms : LONGEST_PAUSE_MS;
}

/* Loading CUPTI takes as much CPU time as thirty bursts: with it counted, the windows of a program
 * that was attached to had 258 samples in 14 s, too few for any figure (H200). */
static void sample_in_bursts(uint8_t *message, uint64_t interval_ns)
{
    uint64_t burst_ms = BURST_SAMPLES * interval_ns / 1000000 + 1,
             following = in_windows ? 0 : FIRST_BURSTS;
    uint64_t started_ns = clock_ns(CLOCK_MONOTONIC), loaded_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (;;) {
        CuptiResult result;
        uint64_t began_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID), used_ms = 0;
        PARAMETERS(SamplingObject, object, sampling, .sampling = sampling);
        if ((result = cuptiPmSamplingStart(&object)) != CUPTI_OK)
            refuse_result("cuptiPmSamplingStart", result);
        int over = is_over(burst_ms);
        cuptiPmSamplingStop(&object);
        if (over)
            return;
        if (!read_samples(message, interval_ns)) {
            lost_samples += BURST_SAMPLES;
            disable_sampling();
            enable_sampling(interval_ns);
        }
        if (lost_samples > 0 && send_message(MESSAGE_LOST, &lost_samples, sizeof lost_samples))
            lost_samples = 0;
        used_ms = (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - began_ns) / 1000000 + 1;
        do { /* anew where a window interrupted the pause */
            uint64_t spent_ms = (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - loaded_ns) / 1000000,
                     lasted_ms = (clock_ns(CLOCK_MONOTONIC) - started_ns) / 1000000;
            if (is_over(pause_after(used_ms, burst_ms, spent_ms, lasted_ms, &following)))
                return;
            used_ms = 0;
        } while (is_in_window);
    }
}

int main(int count, char **arguments)
{
    char *end = NULL;
    uint64_t interval_ns = count > 3 ? strtoull(arguments[1], &end, 10) : 0;
    if (count < 4 || end == NULL || *end != '\0' || interval_ns < SHORTEST_NS ||
        interval_ns > LONGEST_NS) {
        fprintf(stderr, "usage: gputui_counters INTERVAL_NS IN_WINDOWS LIBCUPTI ...\n");
        return USAGE;
    }
    if (getauxval(AT_SECURE))
        refuse("failed", 0, "gputui_counters was given rights that its caller lacks; it loads what "
                            "its caller names, and does not run so");
    in_windows = strcmp(arguments[2], "1") == 0;
    watch_parent();
    load_driver();
    load_cupti(count - 3, arguments + 3);
    find_device();
    ask_device();
    choose_metrics();
    enum { WORDS = 1 + (BURST_SAMPLES + ROOM_SAMPLES) * (2 + COUNTERS) };
    uint8_t *message = malloc(WORDS * sizeof(uint64_t));
    if (message == NULL)
        refuse("failed", 0, "no memory");
    enable_sampling(interval_ns);
    say_ready(interval_ns);
    sample_in_bursts(message, interval_ns);
    disable_sampling();
    forget_config();
    return 0;
}
