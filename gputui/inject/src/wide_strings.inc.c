/* Strings of wchar_t, as UTF-8. */

#pragma once

#include "known_strings.inc.c"

#include <wchar.h>

static String *intern_wide(const wchar_t *text)
{
    char bytes[NAME_BYTES_MAX + 1];
    uint64_t used = 0;
    if (text == NULL)
        return &empty_storage.string;
    for (; *text != 0; text++) {
        uint32_t c = (uint32_t)*text;
        char encoded[4];
        uint64_t length;
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
            c = 0xFFFD;
        if (c < 0x80) {
            encoded[0] = (char)c;
            length = 1;
        } else if (c < 0x800) {
            encoded[0] = (char)(0xC0 | c >> 6);
            encoded[1] = (char)(0x80 | (c & 0x3F));
            length = 2;
        } else if (c < 0x10000) {
            encoded[0] = (char)(0xE0 | c >> 12);
            encoded[1] = (char)(0x80 | (c >> 6 & 0x3F));
            encoded[2] = (char)(0x80 | (c & 0x3F));
            length = 3;
        } else {
            encoded[0] = (char)(0xF0 | c >> 18);
            encoded[1] = (char)(0x80 | (c >> 12 & 0x3F));
            encoded[2] = (char)(0x80 | (c >> 6 & 0x3F));
            encoded[3] = (char)(0x80 | (c & 0x3F));
            length = 4;
        }
        if (used + length > NAME_BYTES_MAX)
            break;
        memcpy(bytes + used, encoded, length);
        used += length;
    }
    bytes[used] = '\0';
    return intern(bytes, NAME_BYTES_MAX);
}
