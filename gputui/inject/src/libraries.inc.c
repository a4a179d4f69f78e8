/* Which libraries are loaded, by what the kernel has mapped.
 *
 * Our threads ask neither glibc's list nor its loader for it in passing: while another thread's dlopen
 * goes on, dl_iterate_phdr looks up the thread-local storage of a library that has its number but no
 * place in the list of these yet, and a thread that was made when there were nearly 64 such libraries
 * reads past that list's end (_dl_tls_get_addr_soft, seen in glibc 2.36 and 2.39). Asked ten times a
 * second, 4 of 51 runs of a program on an H200 died of it, as a library of cuDNN was the 65th. */

#pragma once

#include "common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* KiB of libraries' code that are mapped, which another library changes; 0 where that is unknown. */
static uint64_t library_code_kib(void)
{
    char status[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, status, sizeof status - 1) : -1;
    if (fd >= 0)
        close(fd);
    status[length > 0 ? length : 0] = '\0';
    const char *line = strstr(status, "\nVmLib:");
    return line != NULL ? strtoull(line + strlen("\nVmLib:"), NULL, 10) : 0;
}

/* Shows `see` the file of a line of /proc/self/maps, where that is code; whether it has seen enough. */
static int see_mapped(char *line, int (*see)(const char *path, void *data), void *data)
{
    static const char deleted[] = " (deleted)";
    char *path = strchr(line, '/'), *rights = strchr(line, ' ');
    if (path == NULL || rights == NULL || strlen(rights) < 4 || rights[3] != 'x')
        return 0;
    size_t length = strlen(path);
    if (length > sizeof deleted && strcmp(path + length - (sizeof deleted - 1), deleted) == 0)
        path[length - (sizeof deleted - 1)] = '\0';
    return see(path, data);
}

/* Shows `see` the file of each library that is mapped until it gives something else than 0. Takes no
 * lock of the loader's, and some milliseconds of the kernel's where there are thousands of mappings. */
static void see_libraries(int (*see)(const char *path, void *data), void *data)
{
    enum { LINE_MAX_BYTES = 8192 };
    char text[LINE_MAX_BYTES];
    size_t held = 0;
    ssize_t got;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), enough = 0;
    while (fd >= 0 && !enough && (got = read(fd, text + held, sizeof text - 1 - held)) > 0) {
        char *line = text, *end;
        held += (size_t)got;
        text[held] = '\0';
        for (; !enough && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            enough = see_mapped(line, see, data);
        }
        held -= (size_t)(line - text);
        if (held == sizeof text - 1)
            held = 0; /* no path is as long */
        memmove(text, line, held);
    }
    if (fd >= 0)
        close(fd);
}

/* Until the dlopen that another thread is at is over. The caller holds no lock: a library's
 * constructor may wait for any. */
static void wait_for_loader(void)
{
    Dl_info unused;
    (void)dladdr((void *)&sources_mark, &unused); /* under the lock that dlopen holds to its end */
}
