#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/upstream_parser.h"

/* What a program behind a preview answers, in pieces of two sizes: the head and the body must come
 * out alike. The first byte chooses them. */

static void require(bool holds)
{
    if (!holds)
        abort();
}

struct outcome {
    struct upstream_parser parser;
    char *data;
    size_t len, used; /* of the body */
    int headed;
};

static void check_head(const struct upstream_head *head)
{
    require(head->status >= 100 && head->status <= 999);
    for (size_t i = 0; i < head->count; i++) {
        require(strpbrk(head->fields[i].value, "\r\n") == NULL);
        require(strpbrk(head->fields[i].name, "\r\n: ") == NULL && *head->fields[i].name != '\0');
    }
    require(head->kind != BODY_LENGTH || head->length >= 0);
    require(head->kind != BODY_TO_END || !head->persistent);
}

/* Memory of its own for each piece, also since a body is taken out in place: a byte too far is
 * seen. */
static size_t parse_piece(struct outcome *outcome, const char *data, size_t len)
{
    struct upstream_parser *parser = &outcome->parser;
    char *room = xmalloc(len);
    struct err err;
    size_t used = 0;

    memcpy(room, data, len);
    if (!outcome->headed) {
        outcome->headed = upstream_parse_head(parser, room, len, &used, &err);
        require(outcome->headed < 0 || used <= len);
        require(outcome->headed != 0 || used == len);
    } else {
        size_t kept = upstream_parse_body(parser, room, len, &used);
        require(kept <= used && used <= len && (used == len || parser->ended || parser->broken));
        if (kept)
            memcpy(outcome->data + outcome->len, room, kept);
        outcome->len += kept;
        outcome->used += used;
    }
    free(room);
    return used;
}

static struct outcome parse(const char *data, size_t len, size_t piece, bool to_head)
{
    struct outcome outcome = {.data = xmalloc(len)};
    struct upstream_parser *parser = &outcome.parser;
    size_t used = 0;

    upstream_parser_init(parser, to_head);
    while (used < len && outcome.headed >= 0 && !parser->ended && !parser->broken)
        used += parse_piece(&outcome, data + used, piece < len - used ? piece : len - used);
    if (outcome.headed > 0)
        check_head(&parser->head);
    return outcome;
}

static void require_alike(const struct outcome *a, const struct outcome *b)
{
    require(a->headed == b->headed);
    if (a->headed <= 0)
        return;
    require(a->parser.ended == b->parser.ended && a->parser.broken == b->parser.broken);
    require(a->len == b->len && (a->parser.broken || a->used == b->used));
    require(memcmp(a->data, b->data, a->len) == 0);
    const struct upstream_head *left = &a->parser.head, *right = &b->parser.head;
    require(left->status == right->status && left->count == right->count &&
            left->kind == right->kind && left->length == right->length &&
            left->persistent == right->persistent);
    for (size_t i = 0; i < left->count; i++)
        require(strcmp(left->fields[i].name, right->fields[i].name) == 0 &&
                strcmp(left->fields[i].value, right->fields[i].value) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;
    const char *data = (const char *)bytes + 1;
    bool to_head = (bytes[0] & 128) != 0;
    struct outcome a = parse(data, size - 1, 1, to_head);
    struct outcome b = parse(data, size - 1, (bytes[0] & 127) * 33 + 2u, to_head);
    require_alike(&a, &b);
    free(a.data);
    free(b.data);
    upstream_parser_done(&a.parser);
    upstream_parser_done(&b.parser);
    return 0;
}
