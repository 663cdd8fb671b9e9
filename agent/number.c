#include "agent/number.h"

#include <stddef.h>

bool number_read(const char *text, uint64_t max, uint64_t *ret_value, const char **ret_end)
{
    uint64_t value = 0;
    const char *ptr = text;
    for (; *ptr >= '0' && *ptr <= '9'; ptr++) {
        uint64_t digit = (uint64_t)(*ptr - '0');
        if (digit > max || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (ptr == text)
        return false;
    *ret_value = value;
    if (ret_end != NULL)
        *ret_end = ptr;
    return true;
}
