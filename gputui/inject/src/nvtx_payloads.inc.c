/* NVTX's payload extension: ranges and marks whose message, if any, lies in data of the program's
 * own making, which a schema describes. Of the data itself its size is kept, and of NCCL's what
 * ranks are matched by. */

#pragma once

#include "nvtx_schemas.inc.c"

static String *text_of(const char *text, uint64_t most)
{
    char copy[NAME_BYTES_MAX + 1];
    uint64_t length = strnlen(text, most < NAME_BYTES_MAX ? most : NAME_BYTES_MAX);
    memcpy(copy, text, length);
    copy[length] = '\0';
    return ASCII(copy);
}

static String *message_of(const Schema *schema, const PayloadData *data)
{
    const char *at = (const char *)data->data + schema->offset, *text;
    uint64_t left = data->size == SIZE_MAX ? NAME_BYTES_MAX : data->size - schema->offset;
    int ends_in_nul = (schema->flags & ENTRY_ARRAY) == ENTRY_ENDS_IN_NUL;
    if (data->size != SIZE_MAX && data->size < schema->offset)
        return NULL;
    if (schema->type != TYPE_REGISTERED_STRING &&
        !(schema->flags & (ENTRY_POINTER | ENTRY_DEEP_COPY)))
        return text_of(at, ends_in_nul || schema->length > left ? left : schema->length);
    if (left < sizeof text)
        return NULL;
    memcpy(&text, at, sizeof text);
    if (text == NULL)
        return NULL;
    if (schema->type == TYPE_REGISTERED_STRING)
        return (String *)text;
    return text_of(text, ends_in_nul ? NAME_BYTES_MAX : schema->length);
}

static int read_number(const Schema *schema, const PayloadData *data, int which, uint64_t *value)
{
    const Number *number = &schema->numbers[which];
    int32_t narrow;
    if (number->bytes == 0 ||
        (data->size != SIZE_MAX && data->size < (uint64_t)number->offset + number->bytes))
        return 0;
    const char *at = (const char *)data->data + number->offset;
    if (number->bytes == 8) {
        memcpy(value, at, 8);
    } else {
        memcpy(&narrow, at, 4);
        *value = (uint64_t)(int64_t)narrow;
    }
    return 1;
}

/* What NCCL writes of a collective, or of a communicator that it makes: see RANGE_PUSH in
 * RecordKind of gputui/ring. 0 where the data describes neither. */
static int read_collective(Slot *record, const PayloadData *data, uint64_t count)
{
    uint64_t communicator, number;
    int found = 0;
    for (uint64_t at = 0; at < count && at < DATA_MAX; at++) {
        const Schema *schema = find_schema(record->a, data[at].schema);
        if (schema == NULL || data[at].data == NULL)
            continue;
        if (read_number(schema, &data[at], COMMUNICATOR, &communicator)) {
            record->sub |= FLAG_COMMUNICATOR;
            record->value = communicator;
            found = 1;
        }
        if (read_number(schema, &data[at], MESSAGE_SIZE, &number)) {
            set_payload(record, PAYLOAD_BYTES, number);
            found = 1;
        } else if (read_number(schema, &data[at], RANKS, &number)) {
            set_payload(record, PAYLOAD_UINT64, number);
            found = 1;
        }
        for (int partner = PARTNER; partner < NUMBERS; partner++)
            if (read_number(schema, &data[at], partner, &number))
                record->correlation = (uint32_t)number + 1;
    }
    return found;
}

/* As attributes: the message of the last data that has one, else the first schema's name. */
static Attributes payload_attributes(void *domain, const PayloadData *data, size_t count)
{
    uint32_t in = domain_id(domain);
    String *message = NULL, *name = &empty_storage.string;
    for (size_t at = 0; data != NULL && at < count && at < DATA_MAX; at++) {
        const Schema *schema = find_schema(in, data[at].schema);
        if (schema == NULL || data[at].data == NULL)
            continue;
        String *found = schema->has_message ? message_of(schema, &data[at]) : NULL;
        message = found != NULL ? found : message;
        name = name->length == 0 ? schema->name : name;
    }
    return (Attributes){
        .version = 3, .size = sizeof(Attributes), .payload_type = NVTX_EXTENDED,
        .payload.u64 = (uintptr_t)data, .reserved = data != NULL ? (int32_t)count : 0,
        .message_type = MESSAGE_REGISTERED, .message = message != NULL ? message : name,
    };
}

static void payload_mark(void *domain, const PayloadData *data, size_t count)
{
    if (!may_write())
        return;
    Attributes attributes = payload_attributes(domain, data, count);
    mark(domain, &attributes, NULL);
}
static int payload_push(void *domain, const PayloadData *data, size_t count)
{
    if (!may_write())
        return NVTX_NO_TRACKING;
    Attributes attributes = payload_attributes(domain, data, count);
    return push(domain, &attributes, NULL);
}
static int payload_pop(void *domain, const PayloadData *data, size_t count)
{
    Slot record = {.kind = KIND_RANGE_POP};
    if (data != NULL && is_armed()) {
        record.a = domain_id(domain);
        read_collective(&record, data, count);
    }
    return pop_with(domain, &record);
}
static uint64_t payload_start(void *domain, const PayloadData *data, size_t count)
{
    if (!may_write())
        return 0;
    Attributes attributes = payload_attributes(domain, data, count);
    return start(domain, &attributes, NULL);
}
static void payload_end(void *domain, uint64_t id, const PayloadData *data, size_t count)
{
    (void)domain, (void)data, (void)count;
    end(id);
}

/* Deferred events, whose times lie in data of the program's own making, on clocks of its own: they
 * are not placed, only counted. */
typedef struct {
    uint64_t schema;
    size_t size;
    const void *events;
} EventBatch;

static void refuse_deferred(void *domain, uint64_t count)
{
    Thread *thread = this_thread();
    Slot record = {.kind = KIND_REFUSED, .sub = REFUSED_DEFERRED, .thread = thread->tid,
                   .a = domain_id(domain), .value = count};
    emit(&record);
}

static void event_submit(void *domain, const PayloadData *data, size_t count)
{
    (void)data, (void)count;
    if (may_write())
        refuse_deferred(domain, 1);
}
static void event_batch_submit(void *domain, const EventBatch *batch)
{
    if (batch == NULL || batch->size == 0 || !may_write())
        return;
    const Schema *schema = find_schema(domain_id(domain), batch->schema);
    uint64_t size = schema != NULL ? schema->static_size : 0;
    refuse_deferred(domain, size != 0 && size <= batch->size ? batch->size / size : 1);
}
