/* What gputui puts inside a traced process: NVTX ranges and CUDA activity, written to a ring in
 * shared memory. `layout.py` is the other half of the contract.
 *
 * Builds with `cc -O2 -shared -fPIC gputui_capture.c -o libgputui_capture.so`: no CUDA, CUPTI or
 * NVTX headers. The few types of theirs that are needed are declared here; activity records are
 * read by the offsets that have been the same in CUPTI 12.1 to 13.5 (they only ever grow).
 *
 * Rules that hold everywhere: never print, never exit, never block the traced program, never
 * allocate when the string is known; what does not fit is dropped and counted; whatever fails,
 * the traced program goes on as if this library were not there.
 *
 * One translation unit: a range costs tens of nanoseconds, so all of its path from NVTX's call to
 * the ring has to be inlined, by any compiler and without link-time optimisation, and state that is
 * static here needs no global offset table. Each part includes what it builds on.
 */

/* What the monitor calls. */
#include "layout_words.h"
#include "ring_watch.h"

/* What calls us in a traced process: NVTX, our hook in its Python, the CUDA driver. */
#include "nvtx_install.h"
#include "python_hook.h"
#include "cupti_start.h"
