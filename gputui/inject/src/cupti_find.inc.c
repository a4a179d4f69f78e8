/* Finding libcupti: the one already loaded, else one that stands beside a CUDA library that is
 * loaded, else what the monitor suggests, else what the system knows. */

#pragma once

#include "cupti_calls.inc.c"
#include "libraries.inc.c"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static int see_loaded_cupti(const char *path, void *data)
{
    if (strncmp(strrchr(path, '/'), "/libcupti.so", 12) == 0)
        add_candidate(data, "%s", path);
    return 0;
}

static int see_cuda_library(const char *path, void *data)
{
    /* From the folder of the library: pip's CUDA 12 and 13 wheels, torch's own folder beside
     * them, and a toolkit's lib64 or targets/ARCH/lib. */
    static const char *const beside[] = {
        "", "/../../cuda_cupti/lib", "/../../nvidia/cu13/lib", "/../../nvidia/cuda_cupti/lib",
        "/../extras/CUPTI/lib64", "/../../../extras/CUPTI/lib64",
    };
    static const char *const known[] = {"/libcudart.so", "/libcublas.so", "/libnvrtc.so",
                                        "/libtorch_cuda.so", "/libcufft.so", NULL};
    const char *name = strrchr(path, '/');
    if (!begins_with_any(name, known))
        return 0;
    for (size_t at = 0; at < sizeof beside / sizeof *beside; at++) {
        char folder[512];
        int length = snprintf(folder, sizeof folder, "%.*s%s", (int)(name - path), path, beside[at]);
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
    see_libraries(see_loaded_cupti, candidates);
    if (candidates->count > 0)
        return; /* two in one process would fight over the driver's one subscriber */
    see_libraries(see_cuda_library, candidates);
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
