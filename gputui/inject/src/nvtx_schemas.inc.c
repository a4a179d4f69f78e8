/* Schemas of NVTX's payload extension: where in data of the program's own making its message lies, and
 * the numbers of NCCL's that ranks are matched by. */

#pragma once

#include "nvtx_domains.inc.c"

#include <string.h>

enum { ENTRY_POINTER = 1 << 1, ENTRY_ARRAY = 7 << 4, ENTRY_FIXED = 1 << 4,
       ENTRY_ENDS_IN_NUL = 2 << 4, ENTRY_DEEP_COPY = 1 << 8, ENTRY_MESSAGE = 1 << 10 };
enum { TYPE_CSTRING = 75, TYPE_CSTRING_UTF8 = 76, TYPE_REGISTERED_STRING = 80 };
enum { FIELD_NAME = 1 << 1, FIELD_ENTRIES = 1 << 4, FIELD_ENTRY_COUNT = 1 << 5,
       FIELD_STATIC_SIZE = 1 << 6, FIELD_PACK = 1 << 7, FIELD_ID = 1 << 8 };

typedef struct {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t detail, offset;
    const void *semantics, *reserved;
} SchemaEntry;

typedef struct {
    uint64_t fields;
    const char *name;
    uint64_t type, flags;
    const SchemaEntry *entries;
    size_t entry_count, static_size, pack;
    uint64_t id;
    void *extension;
} SchemaAttributes;

/* Integers of NCCL's schemas that are read, by the names of their entries (NCCL's
 * nvtx_payload_schemas.h): offsets differ among its versions, and up to 2.24 there is no ID. */
enum { COMMUNICATOR, MESSAGE_SIZE, RANKS, PARTNER, PARTNER_TOO, PARTNER_LAST, NUMBERS };
static const char *const number_names[NUMBERS] = {
    "NCCL communicator ID", "Message size [bytes]", "No. of ranks", "Peer rank", "Root", "Rank",
};
typedef struct {
    uint32_t offset, bytes; /* 0 bytes: there is none */
} Number;

/* Where the message of a schema's data is; without one the schema's name stands for it. */
typedef struct {
    uint64_t id, flags, type, length, offset, static_size;
    String *name;
    uint32_t domain, used, has_message;
    Number numbers[NUMBERS];
} Schema;

enum { SCHEMAS = 1024, ENTRIES_MAX = 4096 };
static Schema schemas[SCHEMAS];
static uint64_t last_dynamic_id = 1ull << 32;

static Schema *schema_slot(uint32_t domain, uint64_t id)
{
    uint64_t at = ((id ^ domain) * 0x9E3779B97F4A7C15ull) >> 54;
    for (int tries = 0; tries < SCHEMAS; tries++, at = (at + 1) % SCHEMAS)
        if (!__atomic_load_n(&schemas[at].used, __ATOMIC_ACQUIRE) ||
            (schemas[at].id == id && schemas[at].domain == domain))
            return &schemas[at];
    return NULL;
}

static const Schema *find_schema(uint32_t domain, uint64_t id)
{
    const Schema *schema = schema_slot(domain, id);
    return schema != NULL && __atomic_load_n(&schema->used, __ATOMIC_ACQUIRE) ? schema : NULL;
}

/* Bytes of an entry that is no array, 0 where they are not known: what comes after it without an
 * offset of its own is then not found. */
static uint64_t entry_bytes(const SchemaEntry *entry)
{
    static const uint8_t bytes[] = {
        0, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 16, 8, 8, 4, 1, 2, 4,
        [32] = 1, [42] = 2, [43] = 4, [44] = 8, [50] = 2, [52] = 4, [67] = 8, [68] = 4, [69] = 4,
        [70] = 8, [71] = 4, [72] = 8, [73] = 4, [74] = 8, [TYPE_REGISTERED_STRING] = 8,
    };
    if (entry->flags & (ENTRY_POINTER | ENTRY_DEEP_COPY))
        return 8;
    if (entry->type == TYPE_CSTRING || entry->type == TYPE_CSTRING_UTF8)
        return (entry->flags & ENTRY_ARRAY & ~ENTRY_FIXED) == 0 ? entry->detail : 0;
    if ((entry->flags & ENTRY_ARRAY) == ENTRY_FIXED || (entry->flags & ENTRY_ARRAY) == 0)
        return entry->type < sizeof bytes
                   ? bytes[entry->type] * (entry->flags & ENTRY_ARRAY ? entry->detail : 1)
                   : 0;
    return 0;
}

static uint64_t entry_alignment(const SchemaEntry *entry, uint64_t bytes, uint64_t pack)
{
    uint64_t natural = bytes;
    if (!(entry->flags & (ENTRY_POINTER | ENTRY_DEEP_COPY))) {
        if (entry->type == TYPE_CSTRING || entry->type == TYPE_CSTRING_UTF8)
            natural = 1;
        else if (entry->flags & ENTRY_ARRAY && entry->detail != 0)
            natural = bytes / entry->detail;
    }
    return pack != 0 && pack < natural ? pack : natural;
}

static void find_number(Schema *schema, const SchemaEntry *entry, uint64_t at, uint64_t bytes)
{
    if (entry->name == NULL || entry->flags != 0 || (bytes != 4 && bytes != 8) || at > UINT32_MAX)
        return;
    for (int number = 0; number < NUMBERS; number++)
        if (strcmp(entry->name, number_names[number]) == 0)
            schema->numbers[number] = (Number){(uint32_t)at, (uint32_t)bytes};
}

static void find_entries(Schema *schema, const SchemaAttributes *attributes)
{
    uint64_t pack = attributes->fields & FIELD_PACK ? attributes->pack : 0, cursor = 0;
    int known = 1;
    for (size_t at = 0; at < attributes->entry_count && at < ENTRIES_MAX; at++) {
        const SchemaEntry *entry = &attributes->entries[at];
        uint64_t bytes = entry_bytes(entry), alignment = entry_alignment(entry, bytes, pack);
        if (at == 0 || entry->offset != 0) {
            cursor = entry->offset;
            known = 1;
        } else if (known && alignment != 0) {
            cursor = (cursor + alignment - 1) / alignment * alignment;
        }
        if (known && entry->flags & ENTRY_MESSAGE &&
            (entry->type == TYPE_CSTRING || entry->type == TYPE_CSTRING_UTF8 ||
             entry->type == TYPE_REGISTERED_STRING)) {
            schema->flags = entry->flags;
            schema->type = entry->type;
            schema->length = entry->detail;
            schema->offset = cursor;
            schema->has_message = 1; /* of several the last one counts */
        }
        if (known)
            find_number(schema, entry, cursor, bytes);
        known = known && bytes != 0;
        cursor += bytes;
    }
}

static uint64_t schema_register(void *domain, const SchemaAttributes *attributes)
{
    if (attributes == NULL || !start_capture())
        return 0;
    uint64_t id = attributes->fields & FIELD_ID ? attributes->id : 0;
    Schema schema = {.name = &empty_storage.string, .used = 1};
    schema.domain = domain != NULL ? ((String *)domain)->id : 0; /* there may be no ring */
    if (id == 0)
        id = __atomic_add_fetch(&last_dynamic_id, 1, __ATOMIC_RELAXED);
    schema.id = id;
    if (attributes->fields & FIELD_NAME && attributes->name != NULL)
        schema.name = ASCII(attributes->name);
    if (attributes->fields & FIELD_STATIC_SIZE)
        schema.static_size = attributes->static_size;
    if (attributes->fields & FIELD_ENTRIES && attributes->fields & FIELD_ENTRY_COUNT &&
        attributes->entries != NULL)
        find_entries(&schema, attributes);
    if (lock(STRINGS_LOCK)) {
        Schema *slot = schema_slot(schema.domain, id);
        if (slot != NULL && !slot->used) {
            schema.used = 0;
            *slot = schema;
            __atomic_store_n(&slot->used, 1, __ATOMIC_RELEASE);
        }
        unlock(STRINGS_LOCK);
    }
    return id;
}

/* Enumerations and scopes only need ids. */
static uint64_t any_register(void *domain, const void *attributes)
{
    (void)domain, (void)attributes;
    return __atomic_add_fetch(&last_dynamic_id, 1, __ATOMIC_RELAXED);
}
