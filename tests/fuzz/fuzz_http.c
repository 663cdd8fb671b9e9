#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "server/framing.h"
#include "server/origin.h"
#include "server/route.h"
#include "server/uri.h"

/* A request as a client words it: "METHOD TARGET VERSION", then lines of "NAME: VALUE". */

#define MAX_FIELDS 32

static enum verdict serve(struct request *request)
{
    (void)request;
    return DONE;
}

static const struct route routes[] = {
    {"GET", "/", serve, 0, NULL},
    {"POST", "/v1/sandboxes", serve, 0, "dry_run"},
    {"GET", "/v1/sandboxes/{id}", serve, 0, NULL},
    {"GET", "/v1/sandboxes/{id}/files", serve, 0, "path offset"},
    {"GET", "/v1/sandboxes/{id}/execs/{n}/output", serve, 0, "stream offset follow"},
};
static const struct route_table table = {routes, ARRAY_LEN(routes)};
static const struct route_table *const tables[] = {&table, NULL};

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* What a handler gets must be one plain segment, and texts without a NUL inside. */
static void find(const char *method, char *target)
{
    struct route_match match = {.route = NULL};
    struct uri_query query = {.count = 0};
    struct err err;

    if (uri_check(target, &err))
        return;
    char *mark = strchr(target, '?');
    if (mark)
        *mark++ = '\0';
    if (route_find(tables, method, target, &match, &err) == 0) {
        for (size_t i = 0; i < ARRAY_LEN(match.params) && match.params[i]; i++) {
            const char *param = match.params[i];

            require(param[0] && !strchr(param, '/') && strcmp(param, ".") != 0 &&
                    strcmp(param, "..") != 0 && utf8_valid(param, strlen(param)));
        }
        if (uri_query_parse(mark, match.route->query, &query, &err) == 0) {
            for (size_t i = 0; i < query.count; i++)
                require(strlen(query.params[i].value) == query.params[i].len);
        }
    }
    uri_query_done(&query);
    route_match_done(&match);
}

static void check(const char *version, char *lines)
{
    struct text_field fields[MAX_FIELDS];
    size_t count = 0;
    int64_t length = -2;
    struct err err;

    for (char *line = lines, *next; line && *line && count < MAX_FIELDS; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        *colon++ = '\0';
        fields[count++] = (struct text_field){line, colon + (*colon == ' ')};
    }
    if (framing_check(version, fields, count, &length, &err) == 0)
        require(length >= -1 &&
                !(length >= 0 && framing_header(fields, count, "Transfer-Encoding")));
    const char *host = framing_header(fields, count, "Host");
    bool is_local = host && origin_is_loopback(host);
    require(origin_check(host, NULL, true, &err) == (is_local ? 0 : -1));
    (void)!origin_check(host, framing_header(fields, count, "Origin"), false, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = xstrndup((const char *)data, size);
    char *lines = strchr(text, '\n');
    char *target = strchr(text, ' ');

    if (lines)
        *lines++ = '\0';
    if (target && (!lines || target < lines)) {
        *target++ = '\0';
        char *version = strrchr(target, ' ');
        if (version)
            *version++ = '\0';
        find(text, target);
        check(version ? version : "", lines);
    }
    free(text);
    return 0;
}
