/* The library that lives in a traced process: it writes NVTX ranges and CUDA activity to a ring in
 * shared memory, as layout.h describes it. The monitor reads the ring with a library of its own,
 * gputui/ring/src.
 *
 * Builds with `cc -O2 -shared -fPIC gputui_capture.c -o libgputui_capture.so`: no CUDA, CUPTI or
 * NVTX headers. The few types of theirs that are needed are declared here; activity records are
 * read by the offsets in cupti_fields.h.
 *
 * Rules that hold everywhere: never print, never exit, never block the traced program, never
 * allocate when the string is known; what does not fit is dropped and counted; whatever fails,
 * the traced program goes on as if this library were not there.
 *
 * One translation unit, of fragments (.inc.c) that include what they build on: a range costs tens
 * of nanoseconds, so all of its path from NVTX's call to the ring has to be inlined, by any
 * compiler and without link-time optimisation, and state that is static here needs no global offset
 * table.
 */

/* What calls us in a traced process: NVTX, our hook in its Python, the CUDA driver. */
#include "nvtx_install.inc.c"
#include "python_hook.inc.c"
#include "cupti_start.inc.c"
#include "asleep.inc.c"
