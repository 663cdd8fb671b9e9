#pragma once

#include <stddef.h>
#include <stdint.h>

/* Milliseconds on CLOCK_BOOTTIME: for deadlines and durations. */
int64_t clock_now_ms(void);
/* Microseconds on CLOCK_MONOTONIC: for measuring. */
int64_t clock_now_us(void);
/* Milliseconds since 1970 (wall clock): for records and for what people read. */
int64_t clock_wall_ms(void);

#define TIME_TEXT_LEN 32
/* RFC 3339 UTC with milliseconds, e.g. 2026-11-30T11:34:38.123Z. */
void time_format(int64_t wall_ms, char ret_text[TIME_TEXT_LEN]);
/* Accepts what Kubernetes writes (with or without fraction, Z). Returns -1 when malformed and for
 * times before 1970 (Docker writes the year 1 for "never"). */
int64_t time_parse(const char *text);
