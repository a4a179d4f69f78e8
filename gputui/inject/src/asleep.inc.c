/* Asleep: one thread waits at the word of this process (word.h) and costs nothing. Awake: a ring,
 * ranges, kernels, and ranges around torch's modules, until the monitor says so or is gone. */

#pragma once

#include "cupti_start.inc.c"
#include "nvtx_instances.inc.c"
#include "python_attach.inc.c"
#include "word.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int word_fd = -1;
static struct stat word_file;

/* The kernel's, whose headers musl's compiler does not find. */
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1 };

/* Above what a program counts on: one that closes its standard input expects the next file there. */
enum { FIRST_FD = 200 };
enum { LOOK_NS = 100000000, SETTLE_NS = 20000000 };

/* Waits for the monitor at most `nanoseconds`, for ever if 0. */
static void wait_at_word(uint32_t seen, long nanoseconds)
{
    struct timespec limit = {0, nanoseconds};
    (void)syscall(SYS_futex, &word->wanted, FUTEX_WAIT, seen, nanoseconds != 0 ? &limit : NULL,
                  NULL, 0);
}

/* The monitor holds a lock in its folder as long as it lives. */
static int monitor_is_gone(void)
{
    char path[sizeof wishes.folder + 16];
    copy_text(path, sizeof path, wishes.folder);
    strcat(path, "/.gputui-lock");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int gone = fd >= 0 ? flock(fd, LOCK_SH | LOCK_NB) == 0 : errno == ENOENT;
    if (fd >= 0)
        close(fd); /* and with it the lock */
    return gone;
}

/* The folder of a monitor that was killed: empty but for its lock, and gone with us. */
static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    if (folder == NULL)
        return;
    while ((entry = readdir(folder)) != NULL)
        if (entry->d_type != DT_DIR)
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
    (void)rmdir(path);
}

/* Whether the folder is a private one of this user's monitor. */
static int may_use(const char *folder)
{
    const char *name = strrchr(folder, '/');
    struct stat status;
    return folder[0] == '/' && name != NULL && strncmp(name, "/gputui-", 8) == 0 &&
           lstat(folder, &status) == 0 && S_ISDIR(status.st_mode) &&
           status.st_uid == geteuid() && (status.st_mode & 0777) == 0700;
}

/* CUDA may have been initialised before we came, or without us. */
static int has_cuda(void)
{
    if (!__atomic_load_n(&cuda_initialised, __ATOMIC_ACQUIRE)) {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        int (*count)(int *) = NULL, devices = 0;
        if (driver == NULL)
            return 0;
        *(void **)&count = dlsym(driver, "cuDeviceGetCount");
        if (count != NULL && count(&devices) == 0)
            __atomic_store_n(&cuda_initialised, 1, __ATOMIC_RELEASE);
        dlclose(driver);
    }
    return __atomic_load_n(&cuda_initialised, __ATOMIC_ACQUIRE);
}

static void look_around(int again)
{
    if (search_instances(again))
        __atomic_store_n(&word->nvtx_found, instance_count, __ATOMIC_RELAXED);
    __atomic_store_n(&word->nvtx_held, held_instances, __ATOMIC_RELAXED);
    if (has_cuda())
        start_cuda();
}

static uint32_t milliseconds_since(uint64_t began) { return (uint32_t)((now_ns() - began) / 1000000); }

static void wake(void)
{
    uint64_t began = now_ns();
    memset(&wishes, 0, sizeof wishes);
    memcpy(wishes.folder, word->folder, sizeof wishes.folder - 1);
    memcpy(wishes.sampling, word->sampling, sizeof wishes.sampling - 1);
    wishes.kernels = word->kernels != 0;
    cuda_begun = 0;
    if (lock(DECODE_LOCK)) {
        memset(callers, 0, sizeof callers);
        caller_count = 0;
        unlock(DECODE_LOCK);
    }
    word->wake_error = EACCES;
    if (!may_use(wishes.folder))
        return;
    errno = 0;
    if (!open_ring()) {
        word->wake_error = errno != 0 ? (uint32_t)errno : ENOSPC;
        return;
    }
    word->wake_error = 0;
    give_functions(1);
    look_around(1);
    if (word->modules)
        hook_python();
    word->woken_ms = milliseconds_since(began);
}

static void fall_asleep(void)
{
    struct timespec settle = {0, SETTLE_NS};
    if (!is_armed())
        return;
    int traced = begin_to_end_cuda();
    unhook_python();
    give_functions(0);
    if (subscriber != NULL)
        word->cupti_stays = 1;
    if (traced)
        end_cuda();
    write_exit();
    /* A thread that had begun a record is let finish it; one that is later still writes to memory
     * that is nobody's. */
    nanosleep(&settle, NULL);
    leave_ring();
}

static void *sleep_loop(void *unused)
{
    prctl(PR_SET_NAME, "gputui-asleep", 0, 0, 0);
    for (;;) {
        uint32_t wanted = __atomic_load_n(&word->wanted, __ATOMIC_ACQUIRE);
        if (wanted == word->reached) {
            wait_at_word(wanted, is_armed() ? LOOK_NS : 0);
            if (is_armed() && monitor_is_gone()) {
                remove_folder(wishes.folder);
                fall_asleep();
                /* As if the monitor had said so, unless another has woken us meanwhile. */
                (void)__atomic_compare_exchange_n(&word->wanted, &wanted, wanted + 1, 0,
                                                  __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
                __atomic_store_n(&word->reached, wanted + 1, __ATOMIC_RELEASE);
            } else if (is_armed()) {
                look_around(0);
            }
            continue;
        }
        fall_asleep();
        if (wanted & 1)
            wake();
        __atomic_store_n(&word->reached, wanted, __ATOMIC_RELEASE);
        (void)syscall(SYS_futex, &word->reached, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    return unused;
}

static int start_thread(void *(*function)(void *))
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* Signals are the program's own: its handlers run on its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, function, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

static Word *map_word(int fd)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < WORD_BYTES)
        return NULL; /* going on would raise SIGXFSZ */
    /* Sealed: neither side can be killed by the other's truncating it. */
    if (ftruncate(fd, WORD_BYTES) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        fstat(fd, &word_file) != 0)
        return NULL;
    Word *made = mmap(NULL, WORD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (made == MAP_FAILED)
        return NULL;
    made->version = WORD_VERSION;
    made->layout_version = LAYOUT_VERSION;
    made->pid = (uint32_t)getpid();
    made->start_ticks = start_ticks();
    made->seccomp_filters = seccomp_filters();
    made->came_late = (uint32_t)attached_late;
    __atomic_store_n(&made->magic, WORD_MAGIC, __ATOMIC_RELEASE);
    return made;
}

/* A program that closes files it does not know closes ours, and may have another in its place. */
static int is_word(int fd)
{
    struct stat status;
    return fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == word_file.st_dev &&
           status.st_ino == word_file.st_ino;
}

/* Also in a forked child, which has its parent's. */
static int create_word(void)
{
    if (word != NULL) {
        munmap(word, WORD_BYTES);
        if (is_word(word_fd))
            close(word_fd);
        word = NULL;
        word_fd = -1;
        python_busy = 0;
    }
    int fd = (int)syscall(SYS_memfd_create, WORD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return 0;
    word_fd = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
    if (word_fd < 0)
        word_fd = fd;
    else
        close(fd);
    Word *made = map_word(word_fd);
    if (made != NULL) {
        word = made;
        if (start_thread(sleep_loop))
            return 1;
    }
    close(word_fd);
    word_fd = -1;
    return 0;
}

/* How an injector hands us over: we are loaded from a file without a name. */
__attribute__((constructor)) static void loaded(void)
{
    static const char handed_over[] = "/proc/self/fd/";
    Dl_info info;
    char *end;
    if (dladdr((void *)&header, &info) == 0 || info.dli_fname == NULL ||
        strncmp(info.dli_fname, handed_over, sizeof handed_over - 1) != 0)
        return;
    long fd = strtol(info.dli_fname + sizeof handed_over - 1, &end, 10);
    /* The injector that waited too long has closed it: another file may have its number. */
    static const char made[] = "/memfd:gputui-capture";
    char link[64];
    if (*end == '\0' && readlink(info.dli_fname, link, sizeof link) >= (ssize_t)sizeof made - 1 &&
        strncmp(link, made, sizeof made - 1) == 0)
        close((int)fd);
    attached_late = 1;
    (void)start_capture();
}
