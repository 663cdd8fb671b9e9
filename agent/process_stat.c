#include "agent/process_stat.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/number.h"

/* A negative number counts as 0. */
static bool read_field(const char **text, uint64_t *ret_value)
{
    bool negative = **text == '-';
    if (!number_read(*text + negative, INT64_MAX, ret_value, text))
        return false;
    if (negative)
        *ret_value = 0;
    while (**text == ' ')
        *text += 1;
    return true;
}

/* The name in parentheses may hold anything, parentheses too: what follows is after the last. */
static bool parse_stat(const char *text, struct process_stat *stat)
{
    const char *begin = strchr(text, '('), *end = strrchr(text, ')');
    if (begin == NULL || end == NULL || end < begin || strlen(end) < 5)
        return false;
    size_t len = (size_t)(end - begin - 1);
    if (len >= sizeof(stat->name))
        len = sizeof(stat->name) - 1;
    memcpy(stat->name, begin + 1, len);
    stat->name[len] = '\0';
    stat->state = end[2];
    const char *next = end + 4;
    for (stat->last = 3; stat->last < PROCESS_STAT_FIELDS; stat->last++) {
        if (!read_field(&next, &stat->fields[stat->last + 1]))
            break;
    }
    return stat->last >= 5;
}

ssize_t process_file_read(pid_t pid, const char *name, char *data, size_t size)
{
    char path[48];
    size_t have = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    while (have < size) {
        ssize_t count = read(fd, data + have, size - have);
        if (count <= 0)
            break;
        have += (size_t)count;
    }
    close(fd);
    return (ssize_t)have;
}

bool process_stat_read(pid_t pid, struct process_stat *ret_stat)
{
    char text[1024];
    ssize_t len = process_file_read(pid, "stat", text, sizeof(text) - 1);
    if (len <= 0)
        return false;
    text[len] = '\0';
    struct process_stat stat = {.last = 0};
    if (!parse_stat(text, &stat))
        return false;
    *ret_stat = stat;
    return true;
}
