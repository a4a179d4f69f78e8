/* A library to hand over again and again: it counts how often it was loaded, in HANDED_OVER. It
 * leaves its file open: the loader takes the next one of that number for the same library. */
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void)
{
    int count = open(HANDED_OVER, O_WRONLY | O_APPEND | O_CREAT, 0600);
    (void)!write(count, "x", 1);
    close(count);
}
