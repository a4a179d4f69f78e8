/* This process's facts, for its ring's header. */

#pragma once

#include "layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the monitor asks for: in the environment of a program that it started, in the word of one
 * that it wakes. */
static struct {
    char folder[512], sampling[512]; /* "" if there is none */
    int kernels, whole_graphs, operators;
} wishes;

static void copy_text(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", text != NULL ? text : "");
}

static void read_environment(void)
{
    const char *kernels = getenv("GPUTUI_CAPTURE_KERNELS"), *graphs = getenv("GPUTUI_GRAPH_TRACE");
    const char *annotate = getenv("GPUTUI_ANNOTATE");
    copy_text(wishes.folder, sizeof wishes.folder, getenv("GPUTUI_CAPTURE_DIR"));
    copy_text(wishes.sampling, sizeof wishes.sampling, getenv("GPUTUI_TRACE_SAMPLING"));
    wishes.kernels = kernels == NULL || strcmp(kernels, "0") != 0;
    wishes.whole_graphs = graphs != NULL && strcmp(graphs, "graph") == 0;
    wishes.operators = annotate == NULL                    ? 0
                       : strcmp(annotate, "autograd") == 0 ? 1
                       : strcmp(annotate, "shapes") == 0   ? 2 /* OPERATORS_WITH_SIZES */
                                                           : 0;
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

/* How many seccomp filters this thread is under; UINT32_MAX where the kernel (before 5.9) does not
 * tell how many. */
static uint32_t seccomp_filters(void)
{
    char text[4096];
    uint64_t length = read_small_file("/proc/self/status", text, sizeof text - 1);
    text[length] = '\0';
    const char *mode = strstr(text, "\nSeccomp:"), *filters = strstr(text, "\nSeccomp_filters:");
    if (mode == NULL || strtoul(mode + strlen("\nSeccomp:"), NULL, 10) == 0)
        return 0;
    if (filters == NULL)
        return UINT32_MAX;
    return (uint32_t)strtoul(filters + strlen("\nSeccomp_filters:"), NULL, 10);
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

/* A task of Slurm is a rank unless it starts the ranks: then their world is another size, or the
 * command is a launcher's. */
static int task_is_rank(const char *command)
{
    static const char *const launchers[] = {"torchrun", "torch.distributed.run",
                                            "torch.distributed.launch", "deepspeed", "accelerate"};
    const char *world = getenv("WORLD_SIZE"), *tasks = getenv("SLURM_NTASKS");
    if (world != NULL && tasks != NULL && strcmp(world, tasks) != 0)
        return 0;
    for (uint64_t at = 0; at < sizeof launchers / sizeof *launchers; at++)
        if (strstr(command, launchers[at]) != NULL)
            return 0;
    return 1;
}

static void find_rank(Header *target)
{
    static const char *const ranks[] = {"RANK", "OMPI_COMM_WORLD_RANK", NULL};
    static const char *const local_ranks[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", NULL};
    static const char *const tasks[] = {"SLURM_PROCID", NULL};
    static const char *const local_tasks[] = {"SLURM_LOCALID", NULL};
    int may_be_task = task_is_rank(target->command);
    target->rank = number_from_environment(ranks);
    target->local_rank = number_from_environment(local_ranks);
    if (target->rank < 0 && may_be_task)
        target->rank = number_from_environment(tasks);
    if (target->local_rank < 0 && may_be_task)
        target->local_rank = number_from_environment(local_tasks);
}

static void describe_process(Header *target)
{
    struct stat status;
    target->pid = (uint32_t)getpid();
    target->parent_pid = (uint32_t)getppid();
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
    find_rank(target);
    if (!wishes.kernels) {
        target->cuda_state = CUDA_OFF;
        snprintf(target->cuda_text, sizeof target->cuda_text, "kernels were not asked for");
    } else {
        snprintf(target->cuda_text, sizeof target->cuda_text, "no CUDA");
    }
}
