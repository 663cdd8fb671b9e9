#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* PAIRS are names and values in turn, NULL at the end; the fields borrow them, so that nobody may
 * write to them. */
static inline size_t fields_of(const char *const *pairs, struct text_field *fields)
{
    size_t count = 0;

    for (; pairs[count * 2]; count++) {
        fields[count].name = (char *)(uintptr_t)pairs[count * 2];
        fields[count].value = (char *)(uintptr_t)pairs[count * 2 + 1];
    }
    return count;
}
