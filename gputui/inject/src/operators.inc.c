/* With --annotate autograd: PyTorch's own ranges around operators, without the numbers that make
 * each a name of its own, and without the operators that compute nothing. With --annotate shapes the
 * sizes of the inputs stay in the name. What runs in a backward pass is named after the module whose
 * operator in the forward pass caused it: PyTorch numbers both alike. */

#pragma once

#include "known_strings.inc.c"
#include "thread.inc.c"

#include <stdlib.h>
#include <string.h>

static int annotates_operators; /* or OPERATORS_WITH_SIZES */
enum { OPERATORS_WITH_SIZES = 2 };

/* "aten::add, seq = 7, op_id = 12, sizes = [[2, 3], []], input_op_ids = [[1,0]]" */
static uint64_t operator_length(const char *text)
{
    static const char *const parts[] = {", seq = ", ", op_id = ", ", sizes = ["};
    for (unsigned at = 0; at < sizeof parts / sizeof *parts; at++) {
        const char *numbers = strstr(text, parts[at]);
        if (numbers != NULL)
            return numbers != text ? (uint64_t)(numbers - text) : strlen(text);
    }
    return strlen(text);
}

static String *without_numbers(const char *text)
{
    uint64_t length = text != NULL ? operator_length(text) : 0;
    return text == NULL || length > NAME_BYTES_MAX ? ASCII(text) : intern(text, length);
}

/* "aten::mm [[2, 3], [3, 4]]"; sizes that find no room are left out. */
static String *with_sizes(const char *text)
{
    enum { SIZES_MAX = 400 };
    const char *sizes = text != NULL ? strstr(text, ", sizes = [") : NULL;
    if (sizes == NULL)
        return without_numbers(text);
    sizes += strlen(", sizes = ");
    const char *end = strstr(sizes, ", input_op_ids = ");
    uint64_t length = operator_length(text), more = end != NULL ? (uint64_t)(end - sizes) : strlen(sizes);
    char name[2 * SIZES_MAX];
    if (length + 1 + more >= sizeof name || more > SIZES_MAX || more < 3)
        return without_numbers(text);
    memcpy(name, text, length);
    name[length] = ' ';
    memcpy(name + length + 1, sizes, more);
    length += 1 + more;
    name[length] = '\0'; /* it is looked at to cut between characters */
    return intern(name, length);
}

/* The module in which an operator of a number ran. Threads number theirs alone: where two used the
 * same number, nobody knows whose a backward pass means. */
enum { FORWARDS = 1 << 16 };
static struct {
    uint64_t number;
    uint32_t thread;
    String *module; /* NULL where it is not known */
} forwards[FORWARDS];

static int operator_number(const char *text, uint64_t *number)
{
    const char *at = strstr(text, ", seq = ");
    if (at != NULL)
        *number = strtoull(at + strlen(", seq = "), NULL, 10);
    return at != NULL;
}

static void remember_forward(const Thread *thread, uint64_t number)
{
    uint32_t depth = thread->module_depth < MODULES_MAX ? thread->module_depth : MODULES_MAX;
    String *module = depth > 0 ? thread->modules[depth - 1] : NULL;
    uint32_t at = number % FORWARDS;
    if (forwards[at].number == number && forwards[at].thread != thread->tid &&
        forwards[at].thread != 0)
        module = NULL;
    forwards[at].thread = thread->tid;
    forwards[at].number = number;
    __atomic_store_n(&forwards[at].module, module, __ATOMIC_RELEASE);
}

/* "layers.0.mlp (backward)" in place of "AddmmBackward0", which is in the name of the engine's range
 * around it. NULL where the module is not known. */
static String *backward_of_module(uint64_t number)
{
    static const char pass[] = " (backward)";
    char name[NAME_BYTES_MAX];
    uint32_t at = number % FORWARDS;
    String *module = __atomic_load_n(&forwards[at].module, __ATOMIC_ACQUIRE);
    if (module == NULL || forwards[at].number != number ||
        module->length + sizeof pass > sizeof name)
        return NULL;
    memcpy(name, module->text, module->length);
    memcpy(name + module->length, pass, sizeof pass); /* with its end */
    return intern(name, module->length + sizeof pass - 1);
}

/* The name of an operator's range on a thread. */
static String *operator_name(const Thread *thread, const char *text)
{
    uint64_t number;
    if (text != NULL && operator_number(text, &number)) {
        if (strstr(text, "Backward") == NULL) {
            remember_forward(thread, number);
        } else {
            String *module = backward_of_module(number);
            if (module != NULL)
                return module;
        }
    }
    return annotates_operators == OPERATORS_WITH_SIZES ? with_sizes(text) : without_numbers(text);
}

static void open_module(Thread *thread, String *name)
{
    if (thread->module_depth < MODULES_MAX)
        thread->modules[thread->module_depth] = name;
    thread->module_depth++;
}

static void close_module(Thread *thread)
{
    if (thread->module_depth > 0)
        thread->module_depth--;
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
