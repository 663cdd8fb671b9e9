#include "server/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/str.h"

#define MAX_SEGMENTS 12

struct segments {
    struct buf text; /* decoded, each ended by NUL */
    size_t starts[MAX_SEGMENTS];
    size_t count;
};

static int add_segment(struct segments *segments, struct str raw, struct err *err)
{
    if (segments->count == MAX_SEGMENTS)
        return err_set(err, ERR_NOT_FOUND, "no such path");
    size_t start = segments->text.len;
    if (!url_decode(&segments->text, raw, false))
        return err_set(err, ERR_INVALID_PATH, "a path segment is malformed");
    struct str segment = {segments->text.ptr ? segments->text.ptr + start : "",
                          segments->text.len - start};
    /* An encoded slash, dots or NUL would mean another path to whoever decodes it next. */
    if (!segment.len || str_is(segment, ".") || str_is(segment, "..") ||
        memchr(segment.ptr, '/', segment.len) || !str_is_printable(segment.ptr, segment.len))
        return err_set(err, ERR_INVALID_PATH,
                       "a path segment is empty, of dots, or holds a slash, a control character "
                       "or bad UTF-8");
    segments->starts[segments->count++] = start;
    if (!buf_append_char(&segments->text, '\0'))
        return err_set(err, ERR_INVALID_PATH, "the path is too long");
    return 0;
}

static int split_path(const char *raw_path, struct segments *segments, struct err *err)
{
    if (raw_path[0] != '/')
        return err_set(err, ERR_INVALID_PATH, "the path must begin with /");
    for (const char *at = raw_path[1] ? raw_path + 1 : NULL; at;) {
        const char *end = strchrnul(at, '/');

        if (add_segment(segments, (struct str){at, (size_t)(end - at)}, err))
            return -1;
        at = *end ? end + 1 : NULL;
    }
    return 0;
}

static const char *segment_at(const struct segments *segments, size_t index)
{
    return segments->text.ptr + segments->starts[index];
}

/* PATTERN's next segment: its length, and where the one after it begins. */
static size_t pattern_segment(const char *pattern, const char **ret_next)
{
    const char *end = strchrnul(pattern, '/');

    *ret_next = *end ? end + 1 : NULL;
    return (size_t)(end - pattern);
}

static bool path_matches(const char *pattern, const struct segments *segments)
{
    const char *at = pattern[1] ? pattern + 1 : NULL;

    for (size_t i = 0; i < segments->count; i++) {
        if (!at)
            return false;
        const char *here = at;
        size_t len = pattern_segment(here, &at);
        const char *segment = segment_at(segments, i);
        if (here[0] != '{' && (strlen(segment) != len || memcmp(segment, here, len) != 0))
            return false;
    }
    return !at;
}

static void take_params(const char *pattern, const struct segments *segments,
                        struct route_match *match)
{
    const char *at = pattern + 1;
    size_t params = 0;

    for (size_t i = 0; at && i < segments->count && params < ARRAY_LEN(match->params); i++) {
        if (at[0] == '{')
            match->params[params++] = xstrdup(segment_at(segments, i));
        (void)pattern_segment(at, &at);
    }
}

static bool method_serves(const char *route_method, const char *method)
{
    return strcmp(route_method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route_method, "GET") == 0);
}

static void allow_add(char *allow, size_t size, const char *method)
{
    size_t len = strlen(allow);

    (void)snprintf(allow + len, size - len, "%s%s%s", len ? ", " : "", method,
                   strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

static const struct route *look_up(const struct route_table *const *table, const char *method,
                                   const struct segments *segments, struct route_match *match)
{
    for (; *table; table++) {
        for (size_t i = 0; i < (*table)->count; i++) {
            const struct route *route = &(*table)->routes[i];

            if (!path_matches(route->path, segments))
                continue;
            if (method_serves(route->method, method))
                return route;
            allow_add(match->allow, sizeof(match->allow), route->method);
        }
    }
    return NULL;
}

int route_find(const struct route_table *const *tables, const char *method, const char *raw_path,
               struct route_match *ret_match, struct err *err)
{
    struct segments segments = {.text = BUF_INIT(CAP_SMALL)};
    struct route_match match = {.route = NULL};
    int result = split_path(raw_path, &segments, err);

    if (result == 0) {
        match.route = look_up(tables, method, &segments, &match);
        if (match.route)
            take_params(match.route->path, &segments, &match);
        else if (match.allow[0])
            result = err_set(err, ERR_METHOD_NOT_ALLOWED, "%.15s is not one of: %s", method,
                             match.allow);
        else
            result = err_set(err, ERR_NOT_FOUND, "no such path");
        *ret_match = match; /* `allow` of a failure, too */
    }
    buf_done(&segments.text);
    return result;
}

void route_match_done(struct route_match *match)
{
    for (size_t i = 0; i < ARRAY_LEN(match->params); i++) {
        free(match->params[i]);
        match->params[i] = NULL;
    }
}
