/* Names of NVTX categories: (domain, category) to string, open addressing, never removed. */

#pragma once

#include "known_strings.inc.c"

enum { CATEGORIES = 4096 };
static struct {
    uint64_t key;
    String *name;
} categories[CATEGORIES];

static uint64_t category_slot(uint64_t key)
{
    uint64_t at = (key * 0x9E3779B97F4A7C15ull) >> 52;
    for (int tries = 0; tries < CATEGORIES; tries++, at = (at + 1) % CATEGORIES) {
        uint64_t found = __atomic_load_n(&categories[at].key, __ATOMIC_ACQUIRE);
        if (found == key || found == 0)
            return at;
    }
    return CATEGORIES;
}

static void name_category(const String *domain, uint32_t category, String *name)
{
    uint64_t key = (uint64_t)(domain != NULL ? domain->id : 0) << 32 | category;
    if (category == 0 || !lock(STRINGS_LOCK))
        return;
    uint64_t at = category_slot(key);
    if (at < CATEGORIES) {
        __atomic_store_n(&categories[at].name, name, __ATOMIC_RELEASE);
        __atomic_store_n(&categories[at].key, key, __ATOMIC_RELEASE);
    }
    unlock(STRINGS_LOCK);
}

static uint32_t category_id(uint32_t domain, uint32_t category)
{
    uint64_t key = (uint64_t)domain << 32 | category, at = category_slot(key);
    if (at >= CATEGORIES || __atomic_load_n(&categories[at].key, __ATOMIC_ACQUIRE) != key)
        return 0;
    return id_of(__atomic_load_n(&categories[at].name, __ATOMIC_ACQUIRE));
}
