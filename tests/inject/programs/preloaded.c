/* A tool that comes in through LD_PRELOAD and takes NVTX's variable in programs, as nsys's proxy
 * does; it looks at nothing. */

#include <stdlib.h>

__attribute__((constructor)) static void take(void)
{
    if (getenv("GPUTUI_CAPTURE_DIR") != NULL) /* not in gputui itself */
        setenv("NVTX_INJECTION64_PATH", "/proc/self/exe/not-a-library.so", 1);
}
