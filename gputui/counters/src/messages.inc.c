/* What the sampler tells the monitor, on its standard output: messages of a kind, a length and so many
 * bytes, in this machine's byte order; gputui/counters/sampler.py reads them. The pipe is never
 * waited for: samples that do not fit are dropped and counted. */

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MESSAGE_READY = 1,   /* lines "key value": what is sampled, and how */
    MESSAGE_SAMPLES = 2, /* the moment they were read, then start, end and values of each */
    MESSAGE_REFUSED = 3, /* "word code text": why there are no samples; the last message */
    MESSAGE_LOST = 4,    /* how many samples were dropped or overwritten, as one number */
};
enum { OUTPUT = 1, REFUSE_MS = 1000 };

typedef struct {
    uint32_t kind, bytes;
} MessageHead;

/* A message is written whole or not at all; what of it did not fit into the pipe waits here. */
static uint8_t *rest;
static size_t rest_bytes, rest_capacity;
static uint64_t lost_samples;

/* The monitor reads no more: nothing is left to be done. */
static int is_reader_gone(int milliseconds, short events)
{
    struct pollfd output = {.fd = OUTPUT, .events = events};
    return poll(&output, 1, milliseconds) > 0 && (output.revents & (POLLERR | POLLNVAL)) != 0;
}

/* 1 if the pipe took everything, 0 if some of it waits, -1 if nobody reads. */
static int write_rest(void)
{
    size_t done = 0;
    while (done < rest_bytes) {
        ssize_t count = write(OUTPUT, rest + done, rest_bytes - done);
        if (count >= 0) {
            done += (size_t)count;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            return -1;
        }
    }
    memmove(rest, rest + done, rest_bytes - done);
    rest_bytes -= done;
    return rest_bytes == 0;
}

/* 0 if it was not sent: an earlier message still waits, or there is no memory. */
static int send_message(uint32_t kind, const void *bytes, size_t count)
{
    MessageHead head = {kind, (uint32_t)count};
    if (write_rest() != 1)
        return 0;
    if (rest_capacity < sizeof head + count) {
        uint8_t *larger = realloc(rest, sizeof head + count);
        if (larger == NULL)
            return 0;
        rest = larger;
        rest_capacity = sizeof head + count;
    }
    memcpy(rest, &head, sizeof head);
    memcpy(rest + sizeof head, bytes, count);
    rest_bytes = sizeof head + count;
    write_rest();
    return 1;
}

/* For the first and the last message: the reader may be busy for a moment. */
static void send_surely(uint32_t kind, const void *bytes, size_t count)
{
    struct pollfd output = {.fd = OUTPUT, .events = POLLOUT};
    for (int tries = 0; tries < 2; tries++) {
        if (send_message(kind, bytes, count))
            break;
        poll(&output, 1, REFUSE_MS);
    }
    if (write_rest() == 0 && poll(&output, 1, REFUSE_MS) > 0)
        write_rest();
}

static __attribute__((noreturn, format(printf, 3, 4))) void refuse(const char *word, int code,
                                                                   const char *format, ...)
{
    char text[1024];
    int length = snprintf(text, sizeof text, "%s %d ", word, code);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    if (more > 0)
        length += more;
    send_surely(MESSAGE_REFUSED, text,
                length < (int)sizeof text ? (size_t)length : sizeof text - 1);
    exit(3);
}
