/* For the start-up hook of a child's Python, which has no NVTX of its own to call: a name once,
 * then a push of it and a pop in the default domain. A push without a name stays balanced. */

#pragma once

#include "nvtx_ranges.inc.c"
#include "start.inc.c"

EXPORT void *gputui_name(const char *text)
{
    return text != NULL && start_capture() ? ASCII(text) : NULL;
}
EXPORT void gputui_push(void *name) { push(NULL, NULL, name); }
EXPORT void gputui_pop(void) { pop(NULL); }
