/* What an NVTX call says of its range or mark. */

#pragma once

#include "nvtx_categories.h"
#include "known_strings.h"
#include "wide_strings.h"

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
enum { NVTX_UINT64 = 1, NVTX_INT64, NVTX_DOUBLE, NVTX_UINT32, NVTX_INT32, NVTX_FLOAT };

static void read_payload(Slot *record, const Attributes *attributes)
{
    double wide;
    uint64_t bits = attributes->payload.u64;
    switch (attributes->payload_type) {
    case NVTX_UINT64: record->source_kind = PAYLOAD_UINT64; break;
    case NVTX_INT64: record->source_kind = PAYLOAD_INT64; break;
    case NVTX_DOUBLE: record->source_kind = PAYLOAD_DOUBLE; break;
    case NVTX_UINT32:
        record->source_kind = PAYLOAD_UINT64;
        bits = attributes->payload.u32;
        break;
    case NVTX_INT32:
        record->source_kind = PAYLOAD_INT64;
        bits = (uint64_t)(int64_t)attributes->payload.i32;
        break;
    case NVTX_FLOAT:
        record->source_kind = PAYLOAD_DOUBLE;
        wide = attributes->payload.f32;
        memcpy(&bits, &wide, sizeof bits);
        break;
    default: return; /* structured payloads are not carried */
    }
    record->sub |= FLAG_PAYLOAD;
    record->end = bits;
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
    if (HAS(attributes, category) && attributes->category != 0)
        record->b = category_id(domain, attributes->category);
    if (!HAS(attributes, message) || attributes->message == NULL)
        return;
    if (LIKELY(attributes->message_type == MESSAGE_REGISTERED))
        record->name = id_of((String *)attributes->message);
    else if (attributes->message_type == MESSAGE_ASCII)
        record->name = id_of(intern(attributes->message, NAME_BYTES_MAX));
    else if (attributes->message_type == MESSAGE_UNICODE)
        record->name = id_of(intern_wide(attributes->message));
}
