#include "server/upstream_parser.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"

#define IN_BODY 'b' /* as the last byte: no line has begun */

static struct upstream_parser *parser_of(http_parser *http)
{
    return http->data;
}

/* -1, by which a callback stops http_parser. */
static int refuse(struct upstream_parser *parser, const char *why)
{
    parser->broken = true;
    parser->ended = false;
    parser->why = why;
    return -1;
}

/* --- lines --------------------------------------------------------------------------------------
 */

static const char *line_fault(const struct upstream_parser *parser, char c)
{
    char last = parser->last;

    if (last == '\r' && c != '\n')
        return "a CR is not followed by a LF";
    if (parser->headed && c == '\n' && last != '\r')
        return "a line around a chunk ends with a LF alone";
    if (parser->headed && last == IN_BODY && c != '\r' && parser->lines == 0)
        return "a chunk is longer than it says";
    if (!parser->headed && last == '\n' && (c == ' ' || c == '\t'))
        return "a header is folded";
    return c == '\0' ? "there is a NUL in its headers" : NULL;
}

static int check_lines(struct upstream_parser *parser, const char *at, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const char *why = line_fault(parser, at[i]);

        if (why)
            return refuse(parser, why);
        parser->last = at[i];
        if (++parser->lines > UPSTREAM_HEAD_MAX)
            return refuse(parser, "its headers or the lines around a chunk are too long");
    }
    return 0;
}

/* --- fields -------------------------------------------------------------------------------------
 */

/* Without blanks around it. A tab means the same as a blank, and libmicrohttpd takes no tab. */
static bool clean_value(char *value)
{
    size_t len = strlen(value);

    while (len && (value[len - 1] == ' ' || value[len - 1] == '\t'))
        value[--len] = '\0';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)value[i];

        if (c == '\t')
            value[i] = ' ';
        else if (c < 0x20 || c == 0x7f)
            return false;
    }
    return true;
}

static int end_field(struct upstream_parser *parser)
{
    struct upstream_head *head = &parser->head;
    size_t len;

    if (!parser->in_value)
        return 0;
    parser->in_value = false;
    if (head->count == UPSTREAM_FIELDS_MAX)
        return refuse(parser, "it has too many headers");
    struct text_field *field = &head->fields[head->count++];
    field->name = buf_take(&parser->name, &len);
    field->value = buf_take(&parser->value, &len);
    if (!str_is_token(field->name))
        return refuse(parser, "a header's name is not a token");
    return clean_value(field->value) ? 0 : refuse(parser, "a header has control characters");
}

static int on_name(http_parser *http, const char *at, size_t len)
{
    struct upstream_parser *parser = parser_of(http);

    if (parser->headed) /* a trailer */
        return 0;
    if (end_field(parser))
        return -1;
    return buf_append(&parser->name, at, len) ? 0 : refuse(parser, "its headers are too long");
}

static int on_value(http_parser *http, const char *at, size_t len)
{
    struct upstream_parser *parser = parser_of(http);

    if (parser->headed)
        return 0;
    parser->in_value = true;
    return buf_append(&parser->value, at, len) ? 0 : refuse(parser, "its headers are too long");
}

/* --- the head -----------------------------------------------------------------------------------
 */

/* What is not exactly one "chunked" could be framed differently by somebody else. */
static int check_coding(struct upstream_parser *parser)
{
    const struct upstream_head *head = &parser->head;
    unsigned codings = 0;

    for (size_t i = 0; i < head->count; i++) {
        if (strcasecmp(head->fields[i].name, "Transfer-Encoding") != 0)
            continue;
        if (++codings > 1 || strcasecmp(head->fields[i].value, "chunked") != 0)
            return refuse(parser, "its Transfer-Encoding is not chunked");
    }
    if ((codings != 0) != ((parser->http.flags & F_CHUNKED) != 0))
        return refuse(parser, "its Transfer-Encoding is not chunked");
    return 0;
}

static int on_head(http_parser *http)
{
    struct upstream_parser *parser = parser_of(http);
    struct upstream_head *head = &parser->head;
    int status = (int)http->status_code;
    bool empty = parser->to_head || status < 200 || status == 204 || status == 304;
    bool sized = (http->flags & F_CONTENTLENGTH) != 0;

    if (http->http_major != 1 || http->http_minor > 1 || status < 100 || status > 999)
        return refuse(parser, "it has no status line");
    if (end_field(parser) || check_coding(parser))
        return -1;
    if (sized && http->content_length > INT64_MAX)
        return refuse(parser, "its Content-Length is too large");
    head->status = status;
    head->length = sized ? (int64_t)http->content_length : -1;
    /* Some programs send a body after HEAD all the same: it must not become the next answer. */
    head->persistent = http_should_keep_alive(http) && !parser->to_head;
    if (empty)
        head->kind = BODY_EMPTY;
    else if (http->flags & F_CHUNKED)
        head->kind = BODY_CHUNKED;
    else
        head->kind = sized ? BODY_LENGTH : BODY_TO_END;
    http_parser_pause(http, 1);
    return empty ? 1 : 0; /* 1: there is no body */
}

/* --- the body -----------------------------------------------------------------------------------
 */

static int on_body(http_parser *http, const char *at, size_t len)
{
    struct upstream_parser *parser = parser_of(http);

    if (check_lines(parser, parser->framed, (size_t)(at - parser->framed)))
        return -1;
    if (parser->to != at)
        memmove(parser->to, at, len);
    parser->to += len;
    parser->framed = at + len;
    parser->last = IN_BODY;
    parser->lines = 0;
    return 0;
}

static int on_end(http_parser *http)
{
    parser_of(http)->ended = true;
    http_parser_pause(http, 1);
    return 0;
}

static const http_parser_settings callbacks = {
    .on_header_field = on_name,
    .on_header_value = on_value,
    .on_headers_complete = on_head,
    .on_body = on_body,
    .on_message_complete = on_end,
};

/* How much of DATA it took; until the head or the message ends, or it is broken. */
static size_t run(struct upstream_parser *parser, const char *data, size_t len)
{
    http_parser_pause(&parser->http, 0);
    if (!len) /* to http_parser, the end of the connection */
        return 0;
    size_t used = http_parser_execute(&parser->http, &callbacks, data, len);
    enum http_errno code = HTTP_PARSER_ERRNO(&parser->http);
    if (code != HPE_OK && code != HPE_PAUSED && !parser->broken)
        (void)refuse(parser, http_errno_description(code));
    return used;
}

/* --- from outside -------------------------------------------------------------------------------
 */

void upstream_parser_init(struct upstream_parser *parser, bool to_head)
{
    *parser = (struct upstream_parser){.to_head = to_head, .head = {.length = -1}};
    http_parser_init(&parser->http, HTTP_RESPONSE);
    parser->http.data = parser;
    buf_init(&parser->name, UPSTREAM_HEAD_MAX);
    buf_init(&parser->value, UPSTREAM_HEAD_MAX);
}

void upstream_parser_done(struct upstream_parser *parser)
{
    upstream_head_done(&parser->head);
    buf_done(&parser->name);
    buf_done(&parser->value);
}

/* Returns whether the head is complete. */
static bool run_head(struct upstream_parser *parser, const char *data, size_t len, size_t *ret_used)
{
    size_t used = run(parser, data, len);
    bool complete = HTTP_PARSER_ERRNO(&parser->http) == HPE_PAUSED;

    if (complete && used < len) /* it stops before the last line feed */
        used += run(parser, data + used, 1);
    if (!parser->broken)
        (void)check_lines(parser, data, used);
    *ret_used = used;
    return complete;
}

int upstream_parse_head(struct upstream_parser *parser, const char *data, size_t len,
                        size_t *ret_used, struct err *err)
{
    size_t room = UPSTREAM_HEAD_MAX - parser->lines, used = 0;
    bool complete = false;

    if (!parser->head.fields)
        parser->head.fields = xcalloc(UPSTREAM_FIELDS_MAX, sizeof(*parser->head.fields));
    if (len && parser->lines == 0 && (*data == '\r' || *data == '\n'))
        (void)refuse(parser, "it has no status line"); /* http_parser skips it */
    else if (!parser->broken)
        complete = run_head(parser, data, len < room ? len : room, &used);
    if (!parser->broken && !complete && parser->lines == UPSTREAM_HEAD_MAX)
        (void)refuse(parser, "its headers are too long");
    if (parser->broken)
        return err_set(err, ERR_BAD_ANSWER, "the program's answer is not HTTP/1.1: %s",
                       parser->why);
    *ret_used = used;
    if (!complete)
        return 0;
    upstream_head_clean(&parser->head);
    parser->headed = true;
    parser->lines = 0;
    return 1;
}

size_t upstream_parse_body(struct upstream_parser *parser, char *data, size_t len, size_t *ret_used)
{
    *ret_used = 0;
    if (parser->ended || parser->broken)
        return 0;
    parser->to = data;
    parser->framed = data;
    size_t used = run(parser, data, len);
    const char *end = data + used;
    if (!parser->broken)
        (void)check_lines(parser, parser->framed, (size_t)(end - parser->framed));
    *ret_used = used;
    return (size_t)(parser->to - data);
}
