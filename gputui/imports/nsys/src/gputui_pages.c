/* When the rows of a table of an SQLite file begin and end, from its leaf pages as they stand in
 * the file (https://www.sqlite.org/fileformat2.html, sections 1.6 and 2.1). Runs outside the
 * interpreter's lock, so that a screen is drawn meanwhile.
 *
 * The file is untrusted: whatever its pages hold, nothing outside them is read. What is unusual is
 * left to SQLite.
 *
 * Builds with `cc -O2 -shared -fPIC gputui_pages.c -o libgputui_pages.so`.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#ifndef SOURCES_MARK
#define SOURCES_MARK ""
#endif
__attribute__((used)) static const char sources_mark[] = SOURCES_MARK;

enum { LEAF = 13, LEAF_HEADER = 8, LONGEST_VARINT = 8, LONGEST_HEADER = 127 };

/* Serial types; those from BLOB on say how long a text or a blob is. */
enum { NONE = 0, REAL = 7, ZERO = 8, ONE = 9, BLOB = 12 };

static const uint8_t sizes[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};

/* `start`, `end` and `kind` are places of columns, -1 where the table has none. */
struct question {
    uint32_t page_bytes, usable_bytes;
    int32_t columns, start, end, kind;
    uint64_t kinds; /* if not 0: the bit of each value of `kind` with which a row is chosen */
};

struct answer {
    int64_t least, most, last_end;
    uint64_t chosen;
    uint64_t without_start;
};

struct value {
    uint64_t type;
    uint64_t offset; /* from the beginning of the row */
};

/* What a row's header says. Most rows have the same as the one before. */
struct layout {
    const uint8_t *header;
    uint64_t length; /* of the row */
    struct value start, end, kind;
    bool has_integers; /* where they are needed */
};

static uint32_t half(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

/* Where the variable-length integer at `at` ends; NULL if it is longer, or not before `limit`. */
static const uint8_t *varint(const uint8_t *at, const uint8_t *limit, uint64_t *value)
{
    uint64_t read = 0;
    for (int count = 0; count < LONGEST_VARINT && at < limit; count++) {
        read = read << 7 | (*at & 0x7f);
        if (*at++ < 0x80) {
            *value = read;
            return at;
        }
    }
    return NULL;
}

static bool is_integer(struct value value)
{
    return value.type > NONE && value.type <= ONE && value.type != REAL;
}

static int64_t integer(struct value value, const uint8_t *row, int64_t otherwise)
{
    if (!is_integer(value))
        return otherwise;
    if (value.type >= ZERO)
        return value.type == ONE;
    row += value.offset;
    uint64_t read = row[0] < 0x80 ? 0 : UINT64_MAX;
    for (int byte = 0; byte < sizes[value.type]; byte++)
        read = read << 8 | row[byte];
    return (int64_t)read;
}

/* The layout of a row of `length` bytes, all of which are in its page. */
static bool read_header(const struct question *asked, const uint8_t *needed, const uint8_t *row,
                        uint64_t length, uint8_t *others, struct layout *layout)
{
    if (!length || row[0] > LONGEST_HEADER || row[0] > length)
        return false;
    const uint8_t *at = row + 1, *end = row + row[0];
    *layout = (struct layout){.header = row, .length = length, .has_integers = true};
    uint64_t offset = row[0];
    int32_t column = 0;
    for (; at < end; column++) {
        struct value value = {0, offset};
        uint8_t byte;
        if (column >= asked->columns)
            return false;
        do {
            if (at >= end || value.type >> 32)
                return false;
            byte = *at++;
            value.type = value.type << 7 | (byte & 0x7f);
        } while (byte >= 0x80);
        if (value.type >> 32 || value.type == 10 || value.type == 11)
            return false;
        offset += value.type < BLOB ? sizes[value.type] : (value.type - BLOB) >> 1;
        if (offset > length)
            return false;
        if (value.type > ONE || value.type == REAL)
            others[column] = 1;
        if (needed[column] && !is_integer(value))
            layout->has_integers = false;
        if (column == asked->start)
            layout->start = value;
        if (column == asked->end)
            layout->end = value;
        if (column == asked->kind)
            layout->kind = value;
    }
    return column == asked->columns && offset == length;
}

static void add_row(const struct question *asked, const struct layout *layout, const uint8_t *row,
                    struct answer *answer)
{
    if (!layout->has_integers)
        return;
    if (asked->kinds) {
        int64_t kind = integer(layout->kind, row, 0);
        if (kind < 0 || kind > 63 || !(asked->kinds >> kind & 1))
            return;
    }
    int64_t start = integer(layout->start, row, 0);
    int64_t end = layout->end.type == NONE ? start : integer(layout->end, row, INT64_MIN);
    answer->chosen++;
    answer->without_start += layout->start.type == NONE;
    if (start < answer->least)
        answer->least = start;
    if (start > answer->most)
        answer->most = start;
    if (end > answer->last_end)
        answer->last_end = end;
}

/* Adds the rows of these pages to the answer. `needed` says of each column whether a row is chosen
 * only with an integer in it; `others` is set where any row has anything but an integer or nothing.
 * Returns 0, or 1 if only SQLite can read them. */
EXPORT int gputui_add_times(const uint8_t *pages, uint64_t count, const struct question *asked,
                            const uint8_t *needed, uint8_t *others, struct answer *answer)
{
    struct layout layout = {0};
    for (; count; count--, pages += asked->page_bytes) {
        const uint8_t *limit = pages + asked->usable_bytes;
        uint32_t rows = half(pages + 3);
        if (pages[0] != LEAF || LEAF_HEADER + 2 * rows > asked->usable_bytes)
            return 1;
        for (uint32_t row = 0; row < rows; row++) {
            uint32_t cell = half(pages + LEAF_HEADER + 2 * row);
            uint64_t length, number;
            if (cell >= asked->usable_bytes)
                return 1;
            const uint8_t *at = varint(pages + cell, limit, &length);
            if (at)
                at = varint(at, limit, &number);
            /* Of a larger row, a part is elsewhere. */
            if (!at || length > asked->usable_bytes - 35 || length > (uint64_t)(limit - at))
                return 1;
            bool is_same = layout.header && length == layout.length && at[0] == layout.header[0] &&
                           !memcmp(at, layout.header, at[0]);
            if (!is_same && !read_header(asked, needed, at, length, others, &layout))
                return 1;
            add_row(asked, &layout, at, answer);
        }
    }
    return 0;
}
