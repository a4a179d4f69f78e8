/* The monitor's library: it reads the rings that traced processes write (gputui/inject/src), moves
 * records out of those that fill, and survives a process that truncates its ring. Its functions run
 * outside the interpreter's lock.
 *
 * Builds with `cc -O2 -shared -fPIC -I../../inject/src gputui_ring.c -o libgputui_ring.so`.
 */

#include "layout_words.inc.c"
#include "watch.inc.c"
