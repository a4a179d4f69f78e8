/* The attributes of an NVTX range or mark. */

#pragma once

#include "nvtx_categories.inc.c"
#include "known_strings.inc.c"
#include "wide_strings.inc.c"

#include <string.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        uint32_t u32;
        int32_t i32;
        float f32;
    } payload;
    int32_t message_type;
    const void *message;
} Attributes;
_Static_assert(sizeof(Attributes) == 48, "nvtxEventAttributes_t, version 2 and 3");

enum { NVTX_COLOR_ARGB = 1 };
enum { MESSAGE_ASCII = 1, MESSAGE_UNICODE = 2, MESSAGE_REGISTERED = 3 };

/* A payload of the program's own making: `payload` of the attributes is the address of as many of
 * these as `reserved` says. */
enum { NVTX_EXTENDED = (int32_t)0xDFBD0009, DATA_MAX = 1024 };
typedef struct {
    uint64_t schema;
    size_t size;
    const void *data;
} PayloadData;

static inline void set_payload(Slot *record, uint8_t type, uint64_t bits)
{
    record->sub |= FLAG_PAYLOAD;
    record->source_kind = type;
    record->end = bits;
}

static int read_collective(Slot *record, const PayloadData *data, uint64_t count);

/* Of data of the program's own making its size is kept, unless it describes a collective; text that
 * ends in a NUL has none. */
static void measure_payload(Slot *record, const PayloadData *data, uint64_t count)
{
    uint64_t bytes = 0;
    if (data == NULL || count == 0 || read_collective(record, data, count))
        return;
    for (uint64_t at = 0; at < count && at < DATA_MAX; at++)
        if (data[at].data != NULL && data[at].size != SIZE_MAX)
            bytes += data[at].size;
    set_payload(record, PAYLOAD_BYTES, bytes);
}

static void read_payload(Slot *record, const Attributes *attributes)
{
    uint64_t bits = attributes->payload.u64;
    double wide;
    switch (attributes->payload_type) {
    case PAYLOAD_UINT64:
    case PAYLOAD_INT64:
    case PAYLOAD_DOUBLE: break;
    case PAYLOAD_UINT32: bits = attributes->payload.u32; break;
    case PAYLOAD_INT32: bits = (uint64_t)(int64_t)attributes->payload.i32; break;
    case PAYLOAD_FLOAT:
        wide = attributes->payload.f32;
        memcpy(&bits, &wide, sizeof bits);
        break;
    case NVTX_EXTENDED:
        measure_payload(record, (const PayloadData *)(uintptr_t)bits,
                        (uint32_t)attributes->reserved);
        return;
    default: return;
    }
    set_payload(record, (uint8_t)attributes->payload_type, bits);
}

/* Only what `size` says is there is read. */
#define HAS(attributes, field) \
    ((attributes)->size >= offsetof(Attributes, field) + sizeof((attributes)->field))

static inline void read_attributes(Slot *record, uint32_t domain, const Attributes *attributes)
{
    if (attributes == NULL)
        return;
    if (HAS(attributes, color) && attributes->color_type == NVTX_COLOR_ARGB) {
        record->sub |= FLAG_COLORED;
        record->c = attributes->color & 0xFFFFFF;
    }
    if (HAS(attributes, payload) && attributes->payload_type != 0)
        read_payload(record, attributes);
    if (HAS(attributes, category) && attributes->category != 0) {
        record->e = attributes->category;
        record->b = category_id(domain, attributes->category);
    }
    if (!HAS(attributes, message) || attributes->message == NULL)
        return;
    if (LIKELY(attributes->message_type == MESSAGE_REGISTERED))
        record->name = id_of((String *)attributes->message);
    else if (attributes->message_type == MESSAGE_ASCII)
        record->name = id_of(intern(attributes->message, NAME_BYTES_MAX));
    else if (attributes->message_type == MESSAGE_UNICODE)
        record->name = id_of(intern_wide(attributes->message));
}
