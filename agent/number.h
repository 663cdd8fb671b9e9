#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The decimal digits at the start of TEXT, at most MAX. RET_END (may be NULL) is what follows them.
 */
bool number_read(const char *text, uint64_t max, uint64_t *ret_value, const char **ret_end);
