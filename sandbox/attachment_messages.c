/* What somebody who is attached is told: the output as it comes, what changes, and the end. */
#include <string.h>

#include "agent/frame.h"
#include "base/caps.h"
#include "base/json.h"
#include "sandbox/attachment_data.h"
#include "sandbox/exec_parts.h"

/* --- records ------------------------------------------------------------------------------------
 */

static bool put_header(struct buf *ready, enum attachment_record kind, size_t len)
{
    uint8_t header[ATTACHMENT_RECORD_HEADER] = {(uint8_t)kind};
    wire_put_u32(header + 1, (uint32_t)len);
    return buf_append(ready, header, sizeof(header));
}

/* Takes MESSAGE. */
static void put_text(struct follower *follower, struct json *message)
{
    struct buf text = BUF_INIT(ATTACHMENT_RECORD_MAX);
    struct buf *ready = &follower->ready;
    bool fits = json_print(message, &text) && put_header(ready, ATTACHMENT_TEXT, text.len) &&
                buf_append(ready, text.ptr, text.len);
    json_free(message);
    buf_done(&text);
    if (!fits)
        follower_cut(follower, &(struct err){ERR_INTERNAL, "a message is too large"});
}

static void put_bytes(struct follower *follower, int stream, const struct piece *piece)
{
    struct buf *ready = &follower->ready;
    size_t len = (size_t)(piece->to - piece->from);
    uint8_t channel = (uint8_t)stream;
    if (!put_header(ready, ATTACHMENT_BYTES, len + 1) || !buf_append(ready, &channel, 1) ||
        !buf_append(ready, piece->data, len))
        follower_cut(follower, &(struct err){ERR_BUSY, "no memory for the output"});
}

static struct json *message_new(const char *type)
{
    struct json *message = json_new_object();
    json_set_text(message, "type", type);
    return message;
}

/* --- messages -----------------------------------------------------------------------------------
 */

static void set_size(struct json *message, const struct attachment_view *view)
{
    if (view->columns) {
        json_set_int(message, "cols", view->columns);
        json_set_int(message, "rows", view->rows);
    }
}

static void note(struct attachment *attachment, const struct attachment_view *view)
{
    attachment->said_writer = view->writer;
    attachment->said_columns = view->columns;
    attachment->said_rows = view->rows;
}

static void put_started(struct follower *follower, const struct attachment_view *view)
{
    struct json *message = message_new("started");
    json_set_int(message, "id", follower->number);
    json_set_bool(message, "tty", view->columns > 0);
    set_size(message, view);
    json_set_bool(message, "writer", view->writer);
    json_set_int(message, "offset", (int64_t)follower->position.offset[0]);
    if (!view->columns)
        json_set_int(message, "stderr_offset", (int64_t)follower->position.offset[1]);
    follower->attachment->greeted = true;
    note(follower->attachment, view);
    put_text(follower, message);
}

/* False: nothing has changed. */
static bool put_change(struct follower *follower)
{
    struct attachment *attachment = follower->attachment;
    struct attachment_view view;
    attachment_look(attachment, &view);
    if (!attachment->greeted) {
        put_started(follower, &view);
        return true;
    }
    bool writer = view.writer != attachment->said_writer;
    bool size = view.columns != attachment->said_columns || view.rows != attachment->said_rows;
    if (writer) {
        struct json *message = message_new("writer");
        json_set_bool(message, "writer", view.writer);
        put_text(follower, message);
    }
    if (size) {
        struct json *message = message_new("resized");
        set_size(message, &view);
        put_text(follower, message);
    }
    note(attachment, &view);
    return writer || size;
}

static void put_chunk(struct follower *follower, int stream, const struct chunk *chunk)
{
    uint64_t *offset = &follower->position.offset[stream - 1];
    if (chunk->kind == CHUNK_GAP) {
        struct json *message = message_new("gap");
        json_set_text(message, "stream", stream == 1 ? "stdout" : "stderr");
        json_set_int(message, "from", (int64_t)*offset);
        json_set_int(message, "to", (int64_t)chunk->to);
        put_text(follower, message);
    } else {
        put_bytes(follower, stream, &chunk->piece);
    }
    *offset = chunk->to;
}

/* How it ended; that it is not known how is no exit. */
static void put_end(struct follower *follower)
{
    struct json *record = NULL;
    struct err err = {0};
    if (follower_record(follower, &record, &err)) {
        follower_cut(follower, &err);
        return;
    }
    if (follow_end_unknown(record, &err)) {
        json_free(record);
        follower_cut(follower, &err);
        return;
    }
    struct json *message = message_new("exit");
    for (const struct json *member = json_first(record); member; member = json_next(member))
        json_set(message, json_key(member), json_copy(member));
    json_free(record);
    put_text(follower, message);
    follower->over = true;
}

/* --- the next one -------------------------------------------------------------------------------
 */

enum follow_turn follow_next_message(struct follower *follower, int64_t *ret_again_ms)
{
    const struct chunk_wish wish = {.max = FOLLOW_PIECE};
    struct follow_look look = {.made = false};
    struct err why = {0}, failure = {0};
    if (put_change(follower))
        return FOLLOW_MADE;
    /* Looked at before the output: what comes later is no reason to forget what is there. */
    bool broken = follower_broken(follower, &why);
    if (broken && why.code != ERR_STREAM_LOST) {
        follower_cut(follower, &why);
    } else if (follow_look(follower, &wish, put_chunk, &look, &failure)) {
        follower_cut(follower, &failure);
    } else if (look.made) {
        return FOLLOW_MADE;
    } else if (!look.open) {
        put_end(follower);
    } else if (broken) {
        follower_cut(follower, &why);
    } else {
        *ret_again_ms = look.again_ms;
        return FOLLOW_WAIT;
    }
    return FOLLOW_MADE;
}
