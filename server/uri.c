#include "server/uri.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"

int uri_check(const char *raw_uri, struct err *err)
{
    if (strlen(raw_uri) > CAP_URI)
        return err_set(err, ERR_URI_TOO_LONG, "the request target has more than %zu bytes",
                       CAP_URI);
    if (raw_uri[0] != '/')
        return err_set(err, ERR_INVALID_PATH, "the request target must begin with /");
    for (const char *at = raw_uri; *at; at++) {
        unsigned char c = (unsigned char)*at;

        if (c <= ' ' || c == 0x7f || c == '#')
            return err_set(err, ERR_INVALID_PATH,
                           "the request target holds a character that must be encoded");
    }
    return 0;
}

static bool word_in(const char *words, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = words; at && len;) {
        const char *end = strchrnul(at, ' ');

        if ((size_t)(end - at) == len && memcmp(at, word, len) == 0)
            return true;
        at = *end ? end + 1 : NULL;
    }
    return false;
}

/* Decodes TEXT; NULL when its encoding is malformed or a NUL is in it. */
static char *decode(struct str text, size_t *ret_len)
{
    cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);

    if (!url_decode(&out, text, true) || (out.len && memchr(out.ptr, 0, out.len)))
        return NULL;
    return buf_take(&out, ret_len);
}

static int add_param(struct str pair, const char *allowed, struct uri_query *query, struct err *err)
{
    const char *equals = memchr(pair.ptr, '=', pair.len);
    size_t name_len = equals ? (size_t)(equals - pair.ptr) : pair.len;
    struct str value = {equals ? equals + 1 : "", equals ? pair.len - name_len - 1 : 0};
    size_t len;
    cleanup_free char *name = decode((struct str){pair.ptr, name_len}, &len);

    if (!name || !str_is_printable(name, len))
        return err_set(err, ERR_INVALID_REQUEST, "the name of a query parameter is malformed");
    if (!word_in(allowed, name))
        return err_set(err, ERR_INVALID_FIELD, "%.64s: unknown query parameter", name);
    if (uri_query_get(query, name))
        return err_set(err, ERR_INVALID_FIELD, "%.64s: given more than once", name);
    if (query->count == URI_PARAMS)
        return err_set(err, ERR_INVALID_REQUEST, "too many query parameters");
    cleanup_free char *decoded = decode(value, &len);
    if (!decoded)
        return err_set(err, ERR_INVALID_FIELD, "%.64s: malformed encoding, or a NUL", name);
    query->params[query->count++] =
        (struct uri_param){.name = TAKE_PTR(name), .value = TAKE_PTR(decoded), .len = len};
    return 0;
}

int uri_query_parse(const char *raw, const char *allowed, struct uri_query *ret_query,
                    struct err *err)
{
    struct uri_query query = {.count = 0};

    for (const char *at = raw; at;) {
        const char *end = strchrnul(at, '&');
        struct str pair = {at, (size_t)(end - at)};

        if (pair.len && add_param(pair, allowed, &query, err)) {
            uri_query_done(&query);
            return -1;
        }
        at = *end ? end + 1 : NULL;
    }
    *ret_query = query;
    return 0;
}

void uri_query_done(struct uri_query *query)
{
    for (size_t i = 0; i < query->count; i++) {
        free(query->params[i].name);
        free(query->params[i].value);
    }
    query->count = 0;
}

const struct uri_param *uri_query_get(const struct uri_query *query, const char *name)
{
    for (size_t i = 0; i < query->count; i++) {
        if (strcmp(query->params[i].name, name) == 0)
            return &query->params[i];
    }
    return NULL;
}
