#include "server/framing.h"

#include <string.h>
#include <strings.h>

#include "base/caps.h"

static size_t count_named(const struct text_field *headers, size_t count, const char *name)
{
    size_t found = 0;

    for (size_t i = 0; i < count; i++)
        found += strcasecmp(headers[i].name, name) == 0;
    return found;
}

const char *framing_header(const struct text_field *headers, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(headers[i].name, name) == 0)
            return headers[i].value;
    }
    return NULL;
}

bool framing_element(const char **list, struct str *ret_element)
{
    const char *at = *list + strspn(*list, ", \t");
    size_t len = strcspn(at, ",");

    if (!*at)
        return false;
    *list = at + len;
    while (len && (at[len - 1] == ' ' || at[len - 1] == '\t'))
        len--;
    *ret_element = (struct str){at, len};
    return true;
}

/* Control characters would be another line to somebody else; bytes beyond ASCII are nobody's
 * syntax. */
static bool value_is_clean(const char *value)
{
    for (const char *at = value; *at; at++) {
        unsigned char c = (unsigned char)*at;

        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

/* libmicrohttpd joins a folded value to the name: "Transfer-Encodingchunked". */
static bool is_folded(const char *name)
{
    static const char coding[] = "Transfer-Encoding";

    return strncasecmp(name, coding, sizeof(coding) - 1) == 0 && name[sizeof(coding) - 1] != '\0';
}

static int check_fields(const struct text_field *headers, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!str_is_token(headers[i].name) || is_folded(headers[i].name))
            return err_set(err, ERR_INVALID_REQUEST, "a header's name is not a token");
        if (!value_is_clean(headers[i].value))
            return err_set(err, ERR_INVALID_REQUEST, "header %s has control characters",
                           headers[i].name);
    }
    return 0;
}

static int check_size(const struct text_field *headers, size_t count, struct err *err)
{
    size_t size = 0;

    for (size_t i = 0; i < count; i++)
        size += strlen(headers[i].name) + strlen(headers[i].value);
    return size <= CAP_HEADERS
               ? 0
               : err_set(err, ERR_HEADERS_TOO_LARGE,
                         "the headers have more than %zu bytes together", CAP_HEADERS);
}

static int check_length(const char *length, int64_t *ret_body_length, struct err *err)
{
    uint64_t value;

    if (!str_to_u64(str_of(length), INT64_MAX, &value))
        return err_set(err, ERR_INVALID_REQUEST, "Content-Length is not a number");
    *ret_body_length = (int64_t)value;
    return 0;
}

int framing_check(const char *version, const struct text_field *headers, size_t count,
                  int64_t *ret_body_length, struct err *err)
{
    bool newer = strcmp(version, "HTTP/1.1") == 0;
    const char *length = framing_header(headers, count, "Content-Length");
    const char *coding = framing_header(headers, count, "Transfer-Encoding");
    size_t hosts = count_named(headers, count, "Host");

    if (!newer && strcmp(version, "HTTP/1.0") != 0)
        return err_set(err, ERR_INVALID_REQUEST, "the HTTP version is neither 1.1 nor 1.0");
    if (check_size(headers, count, err) || check_fields(headers, count, err))
        return -1;
    if (hosts > 1 || (newer && hosts != 1))
        return err_set(err, ERR_INVALID_REQUEST, "one Host header is needed, %zu came", hosts);
    if (count_named(headers, count, "Content-Length") > 1 ||
        count_named(headers, count, "Transfer-Encoding") > 1 || (length && coding))
        return err_set(err, ERR_INVALID_REQUEST, "the length of the body is given more than once");
    if (coding) {
        if (!newer || strcasecmp(coding, "chunked") != 0)
            return err_set(err, ERR_INVALID_REQUEST,
                           "the only Transfer-Encoding is chunked, with HTTP/1.1");
        *ret_body_length = -1;
        return 0;
    }
    *ret_body_length = 0;
    return length ? check_length(length, ret_body_length, err) : 0;
}
