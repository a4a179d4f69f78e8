/* Which counters are sampled: as many of these as the card has and as fit into one pass together. */

#pragma once

#include "libraries.inc.c"

/* A counter's name in gputui, and NVIDIA's names of what gives it, the best first. "Realtime" ones
 * count in the same pass as any other; peaks are those that the unit can sustain. */
typedef struct {
    const char *key;
    const char *names[3];
} Counter;

#define OF_PEAK ".avg.pct_of_peak_sustained_elapsed"
static const Counter counters[] = {
    {"sm_cycles", {"sm__cycles_elapsed.max"}},
    {"sm_active_percent", {"sm__cycles_active" OF_PEAK}},
    {"tensor_active_percent",
     {"sm__pipe_tensor_cycles_active_realtime" OF_PEAK, "sm__pipe_tensor_cycles_active" OF_PEAK}},
    {"memory_read_bytes", {"dram__bytes_read.sum"}},
    {"memory_write_bytes", {"dram__bytes_write.sum"}},
    {"l2_bytes", {"lts__t_bytes.sum"}},
    {"occupancy_percent",
     {"sm__warps_active_realtime" OF_PEAK, "sm__warps_active" OF_PEAK}},
    {"issue_percent", {"sm__inst_executed_realtime" OF_PEAK, "sm__inst_executed" OF_PEAK}},
    {"fp64_active_percent",
     {"TPC.TriageCompute.sm__pipe_fp64_cycles_active_realtime" OF_PEAK,
      "sm__pipe_fp64_cycles_active" OF_PEAK}},
    {"fma_issue_percent",
     {"TPC.TriageCompute.sm__inst_executed_pipe_fma_realtime" OF_PEAK,
      "sm__inst_executed_pipe_fma_realtime" OF_PEAK}},
};
enum { COUNTERS = sizeof counters / sizeof *counters, NAMES = 3 };

static const char *keys[COUNTERS], *metrics[COUNTERS];
static size_t metric_count;
static const char *chip;
static uint8_t *availability;
static void *host; /* CUPTI's object that made the configuration, and evaluates the samples */
static uint8_t *config;
static size_t config_bytes;

static void forget_config(void)
{
    PARAMETERS(HostDeinitialize, end, host, .host = host);
    if (host != NULL)
        cuptiProfilerHostDeinitialize(&end);
    free(config);
    host = NULL;
    config = NULL;
}

/* Passes that the metrics need together; 0 where one of them is none of this card's. */
static size_t configure(size_t count)
{
    forget_config();
    PARAMETERS(HostInitialize, begin, host, .profiler = PROFILER_PM_SAMPLING, .chip = chip,
               .availability = availability);
    CuptiResult result = cuptiProfilerHostInitialize(&begin);
    if (result != CUPTI_OK)
        refuse("chip", result, "no counters of %s are known to CUPTI %u: %s", chip, cupti_version,
               result_text(result));
    host = begin.host;
    PARAMETERS(HostAddMetrics, add, count, .host = host, .names = metrics, .count = count);
    if (cuptiProfilerHostConfigAddMetrics(&add) != CUPTI_OK)
        return 0;
    PARAMETERS(HostConfigSize, size, bytes, .host = host);
    if (cuptiProfilerHostGetConfigImageSize(&size) != CUPTI_OK || size.bytes == 0 ||
        (config = malloc(size.bytes)) == NULL)
        return 0;
    config_bytes = size.bytes;
    PARAMETERS(HostConfigImage, image, image, .host = host, .bytes = config_bytes,
               .image = config);
    PARAMETERS(HostPasses, passes, passes, .bytes = config_bytes, .image = config);
    if (cuptiProfilerHostGetConfigImage(&image) != CUPTI_OK ||
        cuptiProfilerHostGetNumOfPasses(&passes) != CUPTI_OK)
        return 0;
    return passes.passes;
}

/* All by their best names, or each counter that this card has and that fits into the pass beside
 * those before it. */
static void choose_metrics(void)
{
    for (size_t at = 0; at < COUNTERS; at++) {
        keys[at] = counters[at].key;
        metrics[at] = counters[at].names[0];
    }
    if (configure(COUNTERS) == 1) {
        metric_count = COUNTERS;
        return;
    }
    for (size_t at = 0; at < COUNTERS; at++)
        for (size_t name = 0; name < NAMES && counters[at].names[name] != NULL; name++) {
            keys[metric_count] = counters[at].key;
            metrics[metric_count] = counters[at].names[name];
            if (configure(metric_count + 1) == 1) {
                metric_count++;
                break;
            }
        }
    if (metric_count == 0 || configure(metric_count) != 1)
        refuse("metrics", 0, "none of the counters can be sampled on %s", chip);
}
