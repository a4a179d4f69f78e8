/* With --annotate autograd: PyTorch's own ranges around operators, without the numbers that make
 * each a name of its own, and without the operators that compute nothing. */

#pragma once

#include "known_strings.inc.c"
#include "thread.inc.c"

#include <string.h>

static int annotates_operators;

/* "aten::add, seq = 7, op_id = 12" */
static uint64_t operator_length(const char *text)
{
    const char *numbers = strstr(text, ", seq = ");
    if (numbers == NULL)
        numbers = strstr(text, ", op_id = ");
    return numbers != NULL && numbers != text ? (uint64_t)(numbers - text) : strlen(text);
}

static String *without_numbers(const char *text)
{
    uint64_t length = text != NULL ? operator_length(text) : 0;
    return text == NULL || length > NAME_BYTES_MAX ? ASCII(text) : intern(text, length);
}

/* Memory without contents, other views of the same memory, and the profiler's own; the list is
 * that of the start-up hook (hook/torch_ranges.py). */
static int computes_nothing(const char *text)
{
    static const char *const names[] = {
        "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "detach_",
        "empty", "empty_like", "empty_strided", "expand", "expand_as", "lift_fresh", "narrow",
        "new_empty", "new_empty_strided", "permute", "resize_", "select", "set_", "slice", "split",
        "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze",
        "view", "view_as", "_has_compatible_shallow_copy_type",
    };
    if (text == NULL || strncmp(text, "profiler::", 10) == 0)
        return text != NULL;
    uint64_t length = operator_length(text);
    if (strncmp(text, "aten::", 6) == 0)
        text += 6, length -= 6;
    else if (strncmp(text, "detach", 6) != 0)
        return 0;
    for (unsigned at = 0; at < sizeof names / sizeof *names; at++)
        if (strlen(names[at]) == length && memcmp(names[at], text, length) == 0)
            return 1;
    return 0;
}

/* The levels of the default domain, those that are hidden among them: a pop carries no name. */
static void show_level(Thread *thread)
{
    if (thread->levels < HIDDEN_LEVELS)
        thread->hidden[thread->levels / 64] &= ~(1ull << thread->levels % 64);
    thread->levels++;
}

/* Whether there was room to remember it. */
static int hide_level(Thread *thread)
{
    if (thread->levels >= HIDDEN_LEVELS)
        return 0;
    thread->hidden[thread->levels / 64] |= 1ull << thread->levels % 64;
    thread->levels++;
    return 1;
}

/* Whether the innermost level, which ends, was hidden. */
static int end_level(Thread *thread)
{
    if (thread->levels == 0 || --thread->levels >= HIDDEN_LEVELS)
        return 0;
    return thread->hidden[thread->levels / 64] >> thread->levels % 64 & 1;
}
