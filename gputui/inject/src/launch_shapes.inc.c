/* Launch shapes: what a launch has beyond its name, interned like strings. Guarded by
 * DECODE_LOCK. */

#pragma once

#include "known_strings.inc.c"

#include <string.h>

enum { SHAPES = 1 << 16, SHAPES_MAX = SHAPES / 4 * 3 };
typedef struct {
    uint32_t name, grid[3], block[3], registers, static_shared, dynamic_shared;
} ShapeKey;
static struct {
    ShapeKey key;
    uint32_t id, published;
} shapes[SHAPES];
static uint32_t shape_count;

static uint32_t shape_id(const ShapeKey *key)
{
    uint64_t at = hash_bytes((const char *)key, sizeof *key) % SHAPES, number;
    while (shapes[at].id != 0 && memcmp(&shapes[at].key, key, sizeof *key) != 0)
        at = (at + 1) % SHAPES;
    if (shapes[at].id == 0) {
        if (shape_count >= SHAPES_MAX)
            return 0;
        shapes[at].key = *key;
        shapes[at].id = ++shape_count;
    }
    if (shapes[at].published != session && reserve(1, &number)) {
        Slot record = {
            .kind = KIND_LAUNCH_SHAPE, .name = key->name, .d = shapes[at].id,
            .start = key->grid[0] | (uint64_t)key->grid[1] << 32,
            .end = key->grid[2] | (uint64_t)key->block[0] << 32,
            .value = key->block[1] | (uint64_t)key->block[2] << 32,
            .a = key->registers, .b = key->static_shared, .c = key->dynamic_shared,
        };
        put(number, &record);
        shapes[at].published = session;
    }
    return shapes[at].id;
}
