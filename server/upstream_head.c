#include "server/upstream_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "server/upstream_request.h"

#define LINE_MAX_BYTES 4096 /* of a chunk's size, with its extensions */
#define TRAILER_MAX_BYTES 16384

/* --- the head ----------------------------------------------------------------------------------
 */

void upstream_head_done(struct upstream_head *head)
{
    for (size_t i = 0; i < head->count; i++) {
        free(head->fields[i].name);
        free(head->fields[i].value);
    }
    free(head->fields);
    *head = (struct upstream_head){.status = 0};
}

static int bad(struct err *err, const char *why)
{
    return err_set(err, ERR_BAD_ANSWER, "the program's answer is not HTTP/1.1: %s", why);
}

/* The length of the head with the empty line that ends it; 0: there is none yet. */
static size_t find_end(const char *data, size_t len)
{
    const char *at = data, *end;

    while ((end = memchr(at, '\n', len - (size_t)(at - data)))) {
        size_t line = (size_t)(end - at);

        if (at != data && (line == 0 || (line == 1 && *at == '\r')))
            return (size_t)(end - data) + 1;
        at = end + 1;
    }
    return 0;
}

/* Without its line end. */
static struct str next_line(const char **at)
{
    const char *end = strchr(*at, '\n');
    struct str line = {*at, (size_t)(end - *at)};

    *at = end + 1;
    if (line.len && line.ptr[line.len - 1] == '\r')
        line.len--;
    return line;
}

static int parse_status(struct str line, int *ret_status, bool *ret_newer, struct err *err)
{
    uint64_t status;

    if (line.len < 12 || memcmp(line.ptr, "HTTP/1.", 7) != 0 ||
        (line.ptr[7] != '0' && line.ptr[7] != '1') || line.ptr[8] != ' ' ||
        !str_to_u64((struct str){line.ptr + 9, 3}, 999, &status) || status < 100 ||
        (line.len > 12 && line.ptr[12] != ' '))
        return bad(err, "it has no status line");
    *ret_newer = line.ptr[7] == '1';
    *ret_status = (int)status;
    return 0;
}

static bool take_value(struct str text, char **ret_value)
{
    while (text.len && (*text.ptr == ' ' || *text.ptr == '\t')) {
        text.ptr++;
        text.len--;
    }
    while (text.len && (text.ptr[text.len - 1] == ' ' || text.ptr[text.len - 1] == '\t'))
        text.len--;
    char *value = xstrndup(text.ptr, text.len);
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)value[i];

        if (c == '\t') {
            value[i] = ' '; /* means the same, and libmicrohttpd takes it */
        } else if (c < 0x20 || c == 0x7f) {
            free(value);
            return false;
        }
    }
    *ret_value = value;
    return true;
}

static int parse_field(struct str line, struct upstream_head *head, struct err *err)
{
    const char *colon = memchr(line.ptr, ':', line.len);

    if (!colon || head->count == UPSTREAM_FIELDS_MAX)
        return bad(err, colon ? "it has too many headers" : "a header has no colon");
    cleanup_free char *name = xstrndup(line.ptr, (size_t)(colon - line.ptr));
    char *value = NULL;
    if (!str_is_token(name))
        return bad(err, "a header's name is not a token");
    if (!take_value((struct str){colon + 1, line.len - strlen(name) - 1}, &value))
        return bad(err, "a header has control characters");
    head->fields[head->count++] = (struct text_field){.name = TAKE_PTR(name), .value = value};
    return 0;
}

static int read_length(struct upstream_head *head, struct err *err)
{
    head->length = -1;
    for (size_t i = 0; i < head->count; i++) {
        uint64_t value;

        if (strcasecmp(head->fields[i].name, "Content-Length") != 0)
            continue;
        if (!str_to_u64(str_of(head->fields[i].value), INT64_MAX, &value) ||
            (head->length >= 0 && (uint64_t)head->length != value))
            return bad(err, "its Content-Length is not one number");
        head->length = (int64_t)value;
    }
    return 0;
}

static bool closes(const struct upstream_head *head)
{
    for (size_t i = 0; i < head->count; i++) {
        if (strcasecmp(head->fields[i].name, "Connection") == 0 &&
            strcasestr(head->fields[i].value, "close"))
            return true;
    }
    return false;
}

static int read_framing(struct upstream_head *head, bool newer, bool to_head, struct err *err)
{
    const char *coding = framing_header(head->fields, head->count, "Transfer-Encoding");
    bool empty = to_head || head->status < 200 || head->status == 204 || head->status == 304;

    if (read_length(head, err))
        return -1;
    /* Some programs send a body after HEAD all the same: it must not become the next answer. */
    head->persistent = newer && !closes(head) && !to_head;
    if (coding && strcasecmp(coding, "chunked") != 0)
        return bad(err, "its Transfer-Encoding is not chunked");
    if (coding && head->length >= 0) { /* somebody may have been meant to be fooled */
        head->length = -1;
        head->persistent = false;
    }
    if (empty)
        head->kind = BODY_EMPTY;
    else if (coding)
        head->kind = BODY_CHUNKED;
    else
        head->kind = head->length >= 0 ? BODY_LENGTH : BODY_TO_END;
    head->persistent = head->persistent && head->kind != BODY_TO_END;
    return 0;
}

/* A cookie for a whole domain would be another sandbox's, too. */
static void drop_domain(char *cookie)
{
    char *to = cookie + strcspn(cookie, ";");

    for (const char *at = to; *at;) {
        size_t len = 1 + strcspn(at + 1, ";");
        const char *name = at + 1 + strspn(at + 1, " ");

        if (strncasecmp(name, "Domain", 6) != 0 || !strchr(" =;", name[6])) {
            memmove(to, at, len);
            to += len;
        }
        at += len;
    }
    *to = '\0';
}

static void drop_hops(struct upstream_head *head)
{
    struct text_field *all = head->fields;
    size_t count = head->count, kept = 0;

    head->fields = xcalloc(count + 1, sizeof(*head->fields));
    for (size_t i = 0; i < count; i++) {
        bool agreed = head->status == 101 && strcasecmp(all[i].name, "Upgrade") == 0;

        if (strcasecmp(all[i].name, "Set-Cookie") == 0)
            drop_domain(all[i].value);
        if (agreed || !upstream_is_hop(all[i].name, all, count))
            head->fields[kept++] = (struct text_field){xstrdup(all[i].name), xstrdup(all[i].value)};
    }
    for (size_t i = 0; i < count; i++) {
        free(all[i].name);
        free(all[i].value);
    }
    free(all);
    head->count = kept;
}

static int parse_lines(const char *at, bool to_head, struct upstream_head *head, struct err *err)
{
    bool newer = false;
    struct str line = next_line(&at);

    if (parse_status(line, &head->status, &newer, err))
        return -1;
    for (line = next_line(&at); line.len; line = next_line(&at)) {
        if (parse_field(line, head, err))
            return -1;
    }
    return read_framing(head, newer, to_head, err);
}

int upstream_head_parse(const char *data, size_t len, bool to_head, struct upstream_head *ret_head,
                        size_t *ret_len, struct err *err)
{
    size_t end = find_end(data, len);
    struct upstream_head head = {.length = -1};

    *ret_len = 0;
    if (!end)
        return len >= UPSTREAM_HEAD_MAX ? bad(err, "its headers are too long") : 0;
    if (end > UPSTREAM_HEAD_MAX)
        return bad(err, "its headers are too long");
    if (memchr(data, '\0', end))
        return bad(err, "there is a NUL in its headers");
    cleanup_free char *text = xstrndup(data, end);
    head.fields = xcalloc(UPSTREAM_FIELDS_MAX, sizeof(*head.fields));
    if (parse_lines(text, to_head, &head, err)) {
        upstream_head_done(&head);
        return -1;
    }
    drop_hops(&head);
    *ret_head = head;
    *ret_len = end;
    return 0;
}

/* --- the body ----------------------------------------------------------------------------------
 */

enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER };

void upstream_body_init(struct upstream_body *body, const struct upstream_head *head)
{
    *body = (struct upstream_body){.kind = head->kind};
    if (head->kind == BODY_LENGTH)
        body->left = (uint64_t)head->length;
    body->ended = head->kind == BODY_EMPTY || (head->kind == BODY_LENGTH && head->length == 0);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void begin_line(struct upstream_body *body, unsigned state)
{
    body->state = state;
    body->line = 0;
}

static void size_is_read(struct upstream_body *body)
{
    begin_line(body, body->left ? CHUNK_DATA : CHUNK_TRAILER);
}

static void take_size(struct upstream_body *body, char c)
{
    int digit = hex_digit(c);

    if (digit >= 0 && body->line < 15) { /* 60 bits */
        body->left = body->left * 16 + (unsigned)digit;
        body->line++;
    } else if (digit < 0 && body->line && (c == '\r' || c == ';' || c == ' ' || c == '\t')) {
        begin_line(body, CHUNK_EXTENSION);
    } else if (c == '\n' && body->line) {
        size_is_read(body);
    } else {
        body->broken = true;
    }
}

/* A byte of the framing. */
static void take_framing(struct upstream_body *body, char c)
{
    switch (body->state) {
    case CHUNK_SIZE:
        take_size(body, c);
        break;
    case CHUNK_EXTENSION:
        if (c == '\n')
            size_is_read(body);
        else
            body->broken = ++body->line > LINE_MAX_BYTES;
        break;
    case CHUNK_DATA_END:
        if (c == '\n')
            begin_line(body, CHUNK_SIZE);
        else
            body->broken = c != '\r' || body->line++ > 0;
        break;
    default: /* the trailer: `left` counts all of it, `line` what the line has but a CR */
        if (c == '\n' && body->line == 0)
            body->ended = true;
        else if (c == '\n')
            body->line = 0;
        else if (c != '\r')
            body->line++;
        body->broken = ++body->left > TRAILER_MAX_BYTES;
    }
}

static size_t decode_chunks(struct upstream_body *body, char *data, size_t len, size_t *ret_used)
{
    size_t used = 0, kept = 0;

    while (used < len && !body->ended && !body->broken) {
        if (body->state != CHUNK_DATA) {
            take_framing(body, data[used++]);
            continue;
        }
        size_t count = len - used < body->left ? len - used : (size_t)body->left;
        memmove(data + kept, data + used, count);
        kept += count;
        used += count;
        body->left -= count;
        if (!body->left)
            begin_line(body, CHUNK_DATA_END);
    }
    *ret_used = used;
    return kept;
}

size_t upstream_body_decode(struct upstream_body *body, char *data, size_t len, size_t *ret_used)
{
    *ret_used = 0;
    if (body->ended || body->broken)
        return 0;
    if (body->kind == BODY_CHUNKED)
        return decode_chunks(body, data, len, ret_used);
    if (body->kind == BODY_LENGTH) {
        if (len > body->left)
            len = (size_t)body->left;
        body->left -= len;
        body->ended = body->left == 0;
    }
    *ret_used = len;
    return len;
}
