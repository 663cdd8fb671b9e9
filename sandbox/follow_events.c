/* What a follower is told: events, as lines of JSON or as server-sent events; or the bytes alone.
 */
#include <assert.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/json.h"
#include "sandbox/follower.h"

#define TEXT_MAX (4 * FOLLOW_PIECE)

static const char *const stream_names[] = {"stdout", "stderr"};

/* --- one event ----------------------------------------------------------------------------------
 */

/* Its id says where a reader goes on who has had it. Takes the rest of its members. */
static struct json *event_new(struct follower *follower, const char *type)
{
    struct json *event = json_new_object();
    struct follow_position *at = &follower->position;
    at->sequence++;
    cleanup_free char *id =
        xasprintf("%llu:%llu:%llu", (unsigned long long)at->sequence,
                  (unsigned long long)at->offset[0], (unsigned long long)at->offset[1]);
    json_set_text(event, "type", type);
    json_set_text(event, "id", id);
    return event;
}

/* Its last member, not copied once more on its way: there may be gigabytes of it. */
struct event_data {
    struct str bytes;
    bool is_text;
};

static bool print_with_data(const struct json *event, const struct event_data *data,
                            struct buf *out)
{
    if (!json_print(event, out))
        return false;
    if (!data)
        return true;
    out->len--; /* the brace */
    if (!buf_append_str(out, ",\"data\":"))
        return false;
    bool fits = data->is_text ? json_print_text(data->bytes.ptr, data->bytes.len, out)
                              : buf_append_char(out, '"') &&
                                    base64_encode(out, data->bytes.ptr, data->bytes.len) &&
                                    buf_append_char(out, '"');
    return fits && buf_append_char(out, '}');
}

/* Takes EVENT. */
static void event_put_data(struct follower *follower, struct json *event,
                           const struct event_data *data)
{
    struct buf *ready = &follower->ready;
    bool sse = follower->format == FOLLOW_SSE;
    bool fits = !sse || buf_printf(ready, "id: %s\ndata: ", json_get_text(event, "id"));
    fits =
        fits && print_with_data(event, data, ready) && buf_append_str(ready, sse ? "\n\n" : "\n");
    json_free(event);
    follower->last_ms = clock_now_ms();
    if (!fits) {
        struct err why;
        (void)err_set(&why, ERR_INTERNAL, "an event is too large");
        follower_cut(follower, &why);
    }
}

static void event_put(struct follower *follower, struct json *event)
{
    event_put_data(follower, event, NULL);
}

static void put_started(struct follower *follower)
{
    struct json *event = event_new(follower, "started");
    json_set_int(event, "exec", follower->number);
    event_put(follower, event);
}

static void put_gap(struct follower *follower, int stream, uint64_t from, uint64_t to)
{
    struct json *event = event_new(follower, "gap");
    json_set_text(event, "stream", stream_names[stream - 1]);
    json_set_int(event, "from", (int64_t)from);
    json_set_int(event, "to", (int64_t)to);
    event_put(follower, event);
}

static void put_bytes(struct follower *follower, int stream, uint64_t from,
                      const struct chunk *chunk)
{
    const struct piece *piece = &chunk->piece;
    cleanup_buf struct buf text = BUF_INIT(TEXT_MAX);
    struct event_data data = {.bytes = {piece->data, (size_t)(piece->to - piece->from)},
                              .is_text = chunk->is_text};
    if (chunk->is_text && piece->masks.count > 0) {
        bool fits = piece_text(piece, &text);
        assert(fits); /* a mask takes three bytes for one at most */
        data.bytes = (struct str){buf_text(&text), text.len};
    }
    struct json *event = event_new(follower, stream_names[stream - 1]);
    json_set_int(event, "offset", (int64_t)from);
    json_set_text(event, "encoding", chunk->is_text ? "utf-8" : "base64");
    event_put_data(follower, event, &data);
}

static void put_chunk(struct follower *follower, int stream, const struct chunk *chunk)
{
    uint64_t *offset = &follower->position.offset[stream - 1];
    uint64_t from = *offset;
    *offset = chunk->to;
    if (chunk->kind == CHUNK_GAP)
        put_gap(follower, stream, from, chunk->to);
    else
        put_bytes(follower, stream, from, chunk);
}

/* --- the last one -------------------------------------------------------------------------------
 */

static void put_error(struct follower *follower, const struct err *why)
{
    struct json *event = event_new(follower, "error");
    struct json *error = json_set_object(event, "error");
    json_set_text(error, "code", err_code_name(why->code));
    json_set_text(error, "message", why->msg);
    event_put(follower, event);
    follower->over = true;
}

bool follow_end_unknown(const struct json *record, struct err *ret_why)
{
    const struct json *error = json_get(record, "error");
    const char *code = json_get_text(error, "code");
    const char *message = json_get_text(error, "message");
    bool lost = code && strcmp(code, err_code_name(ERR_STREAM_LOST)) == 0;
    if (!lost && (!code || strcmp(code, err_code_name(ERR_SANDBOX_GONE)) != 0))
        return false;
    (void)err_set(ret_why, lost ? ERR_STREAM_LOST : ERR_SANDBOX_GONE, "%s", message ? message : "");
    return true;
}

int follower_record(struct follower *follower, struct json **ret_record, struct err *err)
{
    return follower->exec
               ? exec_record(follower->exec, false, ret_record, err)
               : exec_json(follower->all, follower->uid, follower->number, false, ret_record, err);
}

static void put_end(struct follower *follower)
{
    struct json *record = NULL;
    struct err err = {0};
    if (follower_record(follower, &record, &err)) {
        put_error(follower, &err);
        return;
    }
    bool unknown = follow_end_unknown(record, &err);
    struct json *event = event_new(follower, unknown ? "error" : "exit");
    if (unknown)
        json_set(event, "error", json_copy(json_get(record, "error")));
    json_set(event, "result", record);
    event_put(follower, event);
    follower->over = true;
}

/* --- the next one -------------------------------------------------------------------------------
 */

enum follow_turn follow_next_event(struct follower *follower, int64_t *ret_again_ms)
{
    struct follow_look look = {0};
    struct err err = {0};
    if (follower->position.sequence == 0) {
        put_started(follower);
        return FOLLOW_MADE;
    }
    int64_t silent_ms = clock_now_ms() - follower->last_ms;
    bool due = silent_ms >= FOLLOW_HEARTBEAT_MS;
    /* Looked at before the output: what comes later is no reason to forget what is there. */
    bool broken = follower_broken(follower, &err);
    if (broken && err.code != ERR_STREAM_LOST) {
        put_error(follower, &err);
        return FOLLOW_MADE;
    }
    struct err failure = {0};
    const struct chunk_wish wish = {.max = FOLLOW_PIECE, .text = true, .flush = due || broken};
    if (follow_look(follower, &wish, put_chunk, &look, &failure)) {
        put_error(follower, &failure);
    } else if (look.made) {
        return FOLLOW_MADE;
    } else if (!look.open) {
        put_end(follower);
    } else if (broken) {
        put_error(follower, &err);
    } else if (due) {
        event_put(follower, event_new(follower, "heartbeat"));
    } else {
        *ret_again_ms = look.again_ms ? look.again_ms : FOLLOW_HEARTBEAT_MS - silent_ms;
        return FOLLOW_WAIT;
    }
    return FOLLOW_MADE;
}

/* --- bytes alone --------------------------------------------------------------------------------
 */

/* -1: it cannot go on. */
static int take_chunk(struct follower *follower, const struct chunk *chunk, struct err *err)
{
    uint64_t *offset = &follower->position.offset[follower->stream - 1];
    const struct piece *piece = &chunk->piece;
    if (chunk->kind == CHUNK_GAP)
        return err_set(err, ERR_RANGE_NOT_SATISFIABLE,
                       "the bytes from %llu up to %llu are not there any more",
                       (unsigned long long)*offset, (unsigned long long)chunk->to);
    *offset = chunk->to;
    if (!buf_append(&follower->ready, piece->data, (size_t)(piece->to - piece->from)))
        return err_set(err, ERR_BUSY, "no memory for the output");
    return 0;
}

/* BROKEN (may be NULL): why no more will come. */
static enum follow_turn next_of(struct follower *follower, const struct output *output,
                                const struct err *broken, int64_t *ret_again_ms)
{
    const struct chunk_wish wish = {.max = FOLLOW_BYTES};
    uint64_t offset = follower->position.offset[follower->stream - 1];
    struct err err = {0};
    struct chunk chunk;
    enum follow_turn turn = FOLLOW_MADE;
    if (chunk_next(output, offset, &wish, &chunk, &err)) {
        follower_cut(follower, &err);
        return FOLLOW_MADE;
    }
    if (chunk.kind != CHUNK_NONE) {
        if (take_chunk(follower, &chunk, &err))
            follower_cut(follower, &err);
    } else if (!output->open) {
        follower->over = true;
    } else if (broken) {
        follower_cut(follower, broken);
    } else {
        *ret_again_ms = chunk.again_ms;
        turn = FOLLOW_WAIT;
    }
    chunk_done(&chunk);
    return turn;
}

enum follow_turn follow_next_bytes(struct follower *follower, int64_t *ret_again_ms)
{
    struct err why = {0}, err = {0};
    struct output output;
    bool broken = follower_broken(follower, &why);
    if (follower_output(follower, follower->stream, &output, &err)) {
        follower_cut(follower, &err);
        return FOLLOW_MADE;
    }
    enum follow_turn turn = next_of(follower, &output, broken ? &why : NULL, ret_again_ms);
    follower_output_done(follower, &output);
    return turn;
}
