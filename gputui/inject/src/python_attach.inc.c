/* In a Python program that runs: hooks around torch's modules, and the nvtx package shown its tool.
 *
 * A thread of its own takes the interpreter's lock, which C code may hold for seconds: nothing else
 * waits for it. What it runs is part of this library (hook/attached.py), so that nobody who can
 * write to the word has the program run anything. */

#pragma once

#include "python_hook.inc.c"
#include "word.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define EMBED(name, file)                                                            \
    __asm__(".section .rodata\n" #name ":\n.incbin \"" HOOK_FOLDER "/" file "\"\n"   \
            ".byte 0\n.previous\n");                                                 \
    extern const char name[] __attribute__((visibility("hidden")))
#ifndef HOOK_FOLDER
#define HOOK_FOLDER "../hook"
#endif
EMBED(gputui_hook_source, "torch_ranges.py");
EMBED(gputui_attached_source, "attached.py");

static Word *word; /* set while this process sleeps, or is woken */
static int python_wanted;  /* guarded by PYTHON_LOCK, as is the next */
static int python_busy;

static uint32_t python_state(void) { return __atomic_load_n(&word->python, __ATOMIC_ACQUIRE); }
static void say_python(uint32_t state) { __atomic_store_n(&word->python, state, __ATOMIC_RELEASE); }

static void *symbol(const char *name) { return dlsym(RTLD_DEFAULT, name); }

/* Runs hook/attached.py with the interpreter's lock held; what it answers. */
static uint32_t run_python(int on)
{
    void *(*module_dict)(void *), *(*add_module)(const char *), *(*from_text)(const char *);
    void *(*run)(const char *, int, void *, void *), *(*builtins)(void), (*clear)(void);
    int (*set_item)(void *, const char *, void *);
    void *(*get_item)(void *, const char *), *(*from_number)(unsigned long long);
    long (*as_number)(void *);
    void (*forget)(void *);
    enum { FILE_INPUT = 257 };
    *(void **)&add_module = symbol("PyImport_AddModule");
    *(void **)&module_dict = symbol("PyModule_GetDict");
    *(void **)&from_text = symbol("PyUnicode_FromString");
    *(void **)&from_number = symbol("PyLong_FromUnsignedLongLong");
    *(void **)&as_number = symbol("PyLong_AsLong");
    *(void **)&run = symbol("PyRun_String");
    *(void **)&builtins = symbol("PyEval_GetBuiltins");
    *(void **)&clear = symbol("PyErr_Clear");
    *(void **)&set_item = symbol("PyDict_SetItemString");
    *(void **)&get_item = symbol("PyDict_GetItemString");
    *(void **)&forget = symbol("Py_DecRef");
    if (!add_module || !module_dict || !from_text || !from_number || !as_number || !run ||
        !builtins || !clear || !set_item || !get_item || !forget)
        return PYTHON_FAILED;
    void *module = add_module("_gputui_attached"), *result = NULL;
    if (module == NULL) {
        clear();
        return PYTHON_FAILED;
    }
    void *names = module_dict(module);
    const struct {
        const char *name;
        void *value;
    } given[] = {
        {"hook_source", from_text(gputui_hook_source)},
        {"name_address", from_number((uintptr_t)gputui_name)},
        {"push_address", from_number((uintptr_t)gputui_push)},
        {"pop_address", from_number((uintptr_t)gputui_pop)},
        {"wanted", from_number((unsigned)on)},
    };
    set_item(names, "__builtins__", builtins());
    for (size_t at = 0; at < sizeof given / sizeof *given; at++)
        if (given[at].value != NULL) {
            set_item(names, given[at].name, given[at].value);
            forget(given[at].value);
        }
    result = run(gputui_attached_source, FILE_INPUT, names, names);
    if (result == NULL) {
        clear();
        return PYTHON_FAILED;
    }
    forget(result);
    void *answer = get_item(names, "answer"); /* borrowed */
    long number = answer != NULL ? as_number(answer) : PYTHON_FAILED;
    clear();
    return number >= PYTHON_NONE && number <= PYTHON_FAILED ? (uint32_t)number : PYTHON_FAILED;
}

static void *python_loop(void *unused)
{
    int (*ensure)(void), (*is_initialized)(void), done = 0;
    void (*release)(int);
    prctl(PR_SET_NAME, "gputui-python", 0, 0, 0);
    *(void **)&is_initialized = symbol("Py_IsInitialized");
    *(void **)&ensure = symbol("PyGILState_Ensure");
    *(void **)&release = symbol("PyGILState_Release");
    while (!done) {
        lock(PYTHON_LOCK);
        int on = python_wanted;
        unlock(PYTHON_LOCK);
        int held = ensure();
        lock(PYTHON_LOCK);
        int still = python_wanted == on;
        unlock(PYTHON_LOCK);
        if (still)
            say_python(run_python(on));
        release(held);
        lock(PYTHON_LOCK);
        done = still && python_wanted == on;
        python_busy = !done;
        unlock(PYTHON_LOCK);
    }
    return unused;
}

static int start_thread(void *(*function)(void *));

static void ask_python(int on)
{
    int (*is_initialized)(void);
    *(void **)&is_initialized = symbol("Py_IsInitialized");
    if (is_initialized == NULL || symbol("PyGILState_Ensure") == NULL || !is_initialized() ||
        !lock(PYTHON_LOCK))
        return;
    python_wanted = on;
    int start = !python_busy;
    python_busy = 1;
    unlock(PYTHON_LOCK);
    say_python(PYTHON_WAITS);
    if (start && !start_thread(python_loop)) {
        lock(PYTHON_LOCK);
        python_busy = 0;
        unlock(PYTHON_LOCK);
        say_python(PYTHON_FAILED);
    }
}

static void hook_python(void) { ask_python(1); }

static void unhook_python(void)
{
    if (python_state() != PYTHON_NONE)
        ask_python(0);
}
