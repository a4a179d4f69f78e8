/* Known strings: each is written to the ring once, records name it by number. */

#pragma once

#include "locks.inc.c"
#include "ring_write.inc.c"

#include <errno.h>
#include <string.h>

/* A known string: NVTX domain and registered-string handles are pointers to these too. */
typedef struct {
    uint64_t hash;
    uint32_t id, length;
    uint32_t published; /* the session in whose ring its STRING record is */
    char text[];        /* with a NUL after it */
} String;

/* Writes a string's definition. Where the ring has no room it stays unpublished, so that its
 * next use tries again; the reader meanwhile knows only its id. Two threads may both write it. */
static void publish_string(String *string)
{
    uint64_t parts = (string->length + STRING_BYTES_PER_SLOT - 1) / STRING_BYTES_PER_SLOT, number = 0;
    uint32_t ring = __atomic_load_n(&session, __ATOMIC_ACQUIRE);
    Slot record = {.kind = KIND_STRING, .name = string->id, .value = string->length};
    if (string->id != 0) { /* "" needs no definition */
        if (!reserve(parts + 1, &number))
            return;
        put(number, &record);
    }
    for (uint64_t part = 0; part < parts; part++) {
        char bytes[STRING_BYTES_PER_SLOT] = {0};
        uint64_t at = part * STRING_BYTES_PER_SLOT, left = string->length - at;
        memcpy(bytes, string->text + at, left < sizeof bytes ? left : sizeof bytes);
        put(number + 1 + part, bytes);
    }
    __atomic_store_n(&string->published, ring, __ATOMIC_RELEASE);
}

static inline uint32_t id_of(String *string)
{
    if (UNLIKELY(__atomic_load_n(&string->published, __ATOMIC_ACQUIRE) != session))
        publish_string(string);
    return string->id;
}

enum { STRINGS_MAX = 1 << 20, STRING_CHUNK = 1 << 18 };
#define STRING_MEMORY_MAX (256ull << 20)

typedef struct {
    uint64_t mask;
    String *entries[];
} Table;

static Table *strings; /* replaced when it grows; old ones stay, for readers still in them */
static uint64_t string_count, string_memory;
static char *chunk;
static uint64_t chunk_left;
static String *too_many; /* stands for every string that no longer fits */
static union {
    String string;
    char bytes[sizeof(String) + 8];
} empty_storage; /* "" has the id 0 */

static uint64_t hash_bytes(const char *bytes, uint64_t length)
{
    uint64_t hash = length * 0x9E3779B97F4A7C15ull, word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9FB21C651E98DF25ull;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, bytes, length);
    hash = (hash ^ word) * 0x9FB21C651E98DF25ull;
    return hash ^ (hash >> 29);
}

static inline String *find_string(const Table *table, uint64_t hash, const char *text,
                                  uint64_t length)
{
    String *string;
    for (uint64_t at = hash & table->mask;
         (string = __atomic_load_n(&table->entries[at], __ATOMIC_ACQUIRE)) != NULL;
         at = (at + 1) & table->mask)
        if (string->hash == hash && string->length == length &&
            memcmp(string->text, text, length) == 0)
            return string;
    return NULL;
}

static void place_string(Table *table, String *string)
{
    uint64_t at = string->hash & table->mask;
    while (table->entries[at] != NULL)
        at = (at + 1) & table->mask;
    __atomic_store_n(&table->entries[at], string, __ATOMIC_RELEASE);
}

static Table *new_table(uint64_t entries)
{
    Table *table = map_pages(sizeof(Table) + entries * sizeof(String *));
    if (table != NULL)
        table->mask = entries - 1;
    return table;
}

/* Called with the lock held; NULL when a limit is reached or memory is out. */
static String *insert_string(uint64_t hash, const char *text, uint64_t length)
{
    uint64_t size = (sizeof(String) + length + 1 + 7) & ~7ull;
    if (string_count >= STRINGS_MAX || string_memory + size > STRING_MEMORY_MAX)
        return NULL;
    if (string_count * 2 >= strings->mask) {
        Table *larger = new_table((strings->mask + 1) * 4);
        if (larger == NULL)
            return NULL;
        for (uint64_t at = 0; at <= strings->mask; at++)
            if (strings->entries[at] != NULL)
                place_string(larger, strings->entries[at]);
        __atomic_store_n(&strings, larger, __ATOMIC_RELEASE);
    }
    if (size > chunk_left) {
        char *pages = map_pages(STRING_CHUNK);
        if (pages == NULL)
            return NULL;
        chunk = pages;
        chunk_left = STRING_CHUNK;
    }
    String *string = (String *)chunk;
    chunk += size;
    chunk_left -= size;
    string_memory += size;
    string->hash = hash;
    string->length = (uint32_t)length;
    string->id = (uint32_t)++string_count;
    memcpy(string->text, text, length);
    place_string(strings, string);
    return string;
}

static String *intern_new(uint64_t hash, const char *text, uint64_t length)
{
    int saved_errno = errno;
    String *string = NULL;
    if (lock(STRINGS_LOCK)) {
        string = find_string(strings, hash, text, length);
        if (string == NULL)
            string = insert_string(hash, text, length);
        unlock(STRINGS_LOCK);
    }
    errno = saved_errno;
    return string != NULL ? string : too_many;
}

/* Cuts at a character's boundary: never in front of a UTF-8 continuation byte. */
static uint64_t cut(const char *text, uint64_t limit)
{
    uint64_t length = strnlen(text, limit + 1);
    if (length <= limit)
        return length;
    for (length = limit; length > limit - 4 && (text[length] & 0xC0) == 0x80;)
        length--;
    return length;
}

static inline String *intern(const char *text, uint64_t limit)
{
    if (text == NULL || text[0] == '\0')
        return &empty_storage.string;
    uint64_t length = cut(text, limit), hash = hash_bytes(text, length);
    String *string =
        find_string(__atomic_load_n(&strings, __ATOMIC_ACQUIRE), hash, text, length);
    return LIKELY(string != NULL) ? string : intern_new(hash, text, length);
}

#define ASCII(text) intern(text, NAME_BYTES_MAX)
