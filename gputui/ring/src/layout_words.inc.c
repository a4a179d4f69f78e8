/* Where the compiler places the fields: tests/ring/test_layout.py compares them with gputui/ring, as it
 * does the numbers of layout.h. */

#pragma once

#include "layout.h"

#include <stdio.h>

#define FIELD(type, field) \
    #type "." #field "=%zu,%zu\n", offsetof(type, field), sizeof(((type *)0)->field)
EXPORT int gputui_layout(char *out, uint64_t size)
{
    int used = 0;
#define PUT(...) used += snprintf(out + used, (uint64_t)used < size ? size - used : 0, __VA_ARGS__)
#define PUT_SLOT(field) PUT(FIELD(Slot, field))
#define PUT_HEADER(field) PUT(FIELD(Header, field))
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
    PUT_HEADER(traced_ns); PUT_HEADER(paused_ns); PUT_HEADER(head); PUT_HEADER(tail);
    PUT_HEADER(visible_devices); PUT_HEADER(period_ns); PUT_HEADER(step_name);
    PUT_HEADER(launch_blocking);
    PUT_HEADER(unseen_forks);
    PUT_HEADER(cuda_text);
    PUT_HEADER(command);
    return used;
}
