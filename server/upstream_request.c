#include "server/upstream_request.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

/* --- lists -------------------------------------------------------------------------------------
 */

static bool list_has(const char *list, const char *word)
{
    struct str element;

    while (framing_element(&list, &element)) {
        if (element.len == strlen(word) && strncasecmp(element.ptr, word, element.len) == 0)
            return true;
    }
    return false;
}

/* Do the Connection headers name WORD? */
static bool connection_has(const struct text_field *headers, size_t count, const char *word)
{
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(headers[i].name, "Connection") == 0 && list_has(headers[i].value, word))
            return true;
    }
    return false;
}

bool upstream_is_hop(const char *name, const struct text_field *headers, size_t count)
{
    static const char *const names[] = {"Connection",          "Keep-Alive", "Proxy-Connection",
                                        "Proxy-Authorization", "TE",         "Trailer",
                                        "Transfer-Encoding",   "Upgrade",    "Content-Length"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcasecmp(names[i], name) == 0)
            return true;
    }
    return strcasecmp(name, "Host") != 0 && connection_has(headers, count, name);
}

bool upstream_wants_upgrade(const struct text_field *headers, size_t count, int64_t body_length)
{
    return body_length == 0 && framing_header(headers, count, "Upgrade") &&
           connection_has(headers, count, "upgrade");
}

/* --- headers -----------------------------------------------------------------------------------
 */

/* Ours, or what a client must not be able to say. */
static bool is_kept_back(const struct upstream_request *request, const char *name)
{
    return strcasecmp(name, "X-API-Key") == 0 || strcasecmp(name, "Expect") == 0 ||
           strcasecmp(name, "Forwarded") == 0 || strncasecmp(name, "X-Forwarded-", 12) == 0 ||
           (request->own_credentials && strcasecmp(name, "Authorization") == 0);
}

static void put(struct buf *out, const char *name, const char *value)
{
    (void)buf_printf(out, "%s: %s\r\n", name, value); /* `overflow` is looked at in the end */
}

/* Without the cookie that opens a private preview. */
static void put_cookies(struct buf *out, const char *name, const char *value)
{
    const char *separator = "";
    size_t before = out->len;

    (void)buf_printf(out, "%s: ", name);
    while (*value) {
        size_t len = strcspn(value, ";");
        size_t blank = strspn(value, " \t");
        size_t cookie = sizeof(PREVIEW_COOKIE) - 1;
        bool ours = blank + cookie <= len && memcmp(value + blank, PREVIEW_COOKIE, cookie) == 0 &&
                    (value[blank + cookie] == '=' || blank + cookie == len);

        if (!ours && blank < len) {
            (void)buf_printf(out, "%s%.*s", separator, (int)(len - blank), value + blank);
            separator = "; ";
        }
        value += len + (value[len] == ';');
    }
    if (*separator)
        (void)buf_append_str(out, "\r\n");
    else if (!out->overflow)
        out->len = before;
}

static void put_headers(const struct upstream_request *request, struct buf *out)
{
    for (size_t i = 0; i < request->header_count; i++) {
        const struct text_field *field = &request->headers[i];

        if (upstream_is_hop(field->name, request->headers, request->header_count) ||
            is_kept_back(request, field->name))
            continue;
        if (strcasecmp(field->name, "Cookie") == 0)
            put_cookies(out, field->name, field->value);
        else
            put(out, field->name, field->value);
    }
}

static void put_framing(const struct upstream_request *request, struct buf *out)
{
    const char *upgrade = framing_header(request->headers, request->header_count, "Upgrade");

    if (request->upgrade) {
        put(out, "Connection", "Upgrade");
        put(out, "Upgrade", upgrade);
    }
    if (request->body_length < 0)
        put(out, "Transfer-Encoding", "chunked");
    else if (request->body_length ||
             framing_header(request->headers, request->header_count, "Content-Length"))
        (void)buf_printf(out, "Content-Length: %lld\r\n", (long long)request->body_length);
}

int upstream_request_write(const struct upstream_request *request, struct buf *out, struct err *err)
{
    const char *host = framing_header(request->headers, request->header_count, "Host");

    (void)buf_printf(out, "%s %s HTTP/1.1\r\n", request->method, request->target);
    put_headers(request, out);
    put_framing(request, out);
    put(out, "X-Forwarded-For", request->client_address);
    put(out, "X-Forwarded-Proto", request->scheme);
    put(out, "X-Forwarded-Host", host ? host : "");
    (void)buf_append_str(out, "\r\n");
    return out->overflow ? err_set(err, ERR_TOO_LARGE, "the request's headers are too large") : 0;
}
