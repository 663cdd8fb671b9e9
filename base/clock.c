#include "base/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/str.h"

static struct timespec now(clockid_t id)
{
    struct timespec time = {0};
    clock_gettime(id, &time); /* fails only for a clock that does not exist */
    return time;
}

int64_t clock_now_ms(void)
{
    struct timespec time = now(CLOCK_BOOTTIME);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int64_t clock_now_us(void)
{
    struct timespec time = now(CLOCK_MONOTONIC);
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

int64_t clock_wall_ms(void)
{
    struct timespec time = now(CLOCK_REALTIME);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

#define LAST_MS INT64_C(253402300799999) /* the end of the year 9999 */

void time_format(int64_t wall_ms, char ret_text[TIME_TEXT_LEN])
{
    wall_ms = wall_ms < 0 ? 0 : wall_ms > LAST_MS ? LAST_MS : wall_ms;
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm parts = {0};
    gmtime_r(&seconds, &parts);
    size_t len = strftime(ret_text, TIME_TEXT_LEN, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(ret_text + len, TIME_TEXT_LEN - len, ".%03dZ", (int)(wall_ms % 1000));
}

/* LEN digits at TEXT, from MIN to MAX. */
static bool field(const char *text, size_t len, int min, int max, int *ret_value)
{
    uint64_t value;
    if (!str_to_u64((struct str){text, len}, (uint64_t)max, &value) || (int)value < min)
        return false;
    *ret_value = (int)value;
    return true;
}

static int month_days(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap ? 1 : 0);
}

/* "2026-11-30T11:34:38", 19 characters. */
static bool parse_seconds(const char *text, int64_t *ret_seconds)
{
    int year, month, day, hour, minute, second;
    if (text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':')
        return false;
    if (!field(text, 4, 1970, 9999, &year) || !field(text + 5, 2, 1, 12, &month) ||
        !field(text + 8, 2, 1, month_days(year, month), &day))
        return false;
    if (!field(text + 11, 2, 0, 23, &hour) || !field(text + 14, 2, 0, 59, &minute) ||
        !field(text + 17, 2, 0, 59, &second))
        return false;
    struct tm parts = {.tm_year = year - 1900,
                       .tm_mon = month - 1,
                       .tm_mday = day,
                       .tm_hour = hour,
                       .tm_min = minute,
                       .tm_sec = second};
    *ret_seconds = (int64_t)timegm(&parts);
    return true;
}

int64_t time_parse(const char *text)
{
    static const size_t date_len = sizeof("2026-11-30T11:34:38") - 1;
    int64_t seconds;
    if (!text || strnlen(text, date_len) < date_len || !parse_seconds(text, &seconds))
        return -1;
    text += date_len;
    int64_t ms = 0;
    if (*text == '.') {
        size_t digits = strspn(++text, "0123456789");
        if (digits == 0 || digits > 9)
            return -1;
        for (size_t i = 0; i < 3; i++)
            ms = ms * 10 + (i < digits ? text[i] - '0' : 0);
        text += digits;
    }
    if (strcmp(text, "Z") != 0)
        return -1;
    return seconds * 1000 + ms;
}
