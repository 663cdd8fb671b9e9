#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/upstream_head.h"

/* What a program behind a preview answers: its head, and its body in pieces of two sizes, which
 * must come out alike. The first byte chooses them. */

static void require(bool holds)
{
    if (!holds)
        abort();
}

struct outcome {
    char *data;
    size_t len, used;
    bool ended, broken;
};

static struct outcome decode(const struct upstream_head *head, const char *data, size_t len,
                             size_t piece)
{
    struct outcome outcome = {.data = xmalloc(len)};
    struct upstream_body body;

    upstream_body_init(&body, head);
    while (outcome.used < len && !body.ended && !body.broken) {
        size_t count = piece < len - outcome.used ? piece : len - outcome.used, used;

        /* in place, on memory of its own: a byte too far is seen */
        char *room = xmalloc(count);
        memcpy(room, data + outcome.used, count);
        size_t kept = upstream_body_decode(&body, room, count, &used);
        require(kept <= used && used <= count && (used == count || body.ended || body.broken));
        memcpy(outcome.data + outcome.len, room, kept);
        outcome.len += kept;
        outcome.used += used;
        free(room);
    }
    outcome.ended = body.ended;
    outcome.broken = body.broken;
    return outcome;
}

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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct upstream_head head;
    struct err err;
    size_t len;

    if (size == 0)
        return 0;
    const char *data = (const char *)bytes + 1;
    if (upstream_head_parse(data, size - 1, (bytes[0] & 128) != 0, &head, &len, &err) || !len)
        return 0;
    require(len <= size - 1);
    check_head(&head);
    struct outcome a = decode(&head, data + len, size - 1 - len, 1);
    struct outcome b = decode(&head, data + len, size - 1 - len, (bytes[0] & 127) + 2u);
    require(a.len == b.len && a.used == b.used && a.ended == b.ended && a.broken == b.broken &&
            memcmp(a.data, b.data, a.len) == 0);
    free(a.data);
    free(b.data);
    upstream_head_done(&head);
    return 0;
}
