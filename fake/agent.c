/* What podsandbox-agent says on channel 0, said by a box in memory. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "fake/fake_impl.h"
#include "fake/transfer.h"
#include "fake/wire.h"

#define BLOB_MAX ((size_t)256 << 10)
#define HELLO_ROOM 2048

/* --- HELLO ------------------------------------------------------------------------------------
 */

static void refuse_hello(struct wire *wire, enum err_code code, const char *why)
{
    struct reply reply;

    reply_init(&reply);
    reply_error(&reply, err_code_name(code), "%s", why);
    wire_send_reply(wire, 0, FRAME_HELLO_NO, &reply);
    wire_end(wire, code, why);
}

static int64_t deadline_left(const struct fake_box *box)
{
    int64_t left = box->deadline_ms - clock_now_ms();

    if (box->deadline_ms == 0)
        return 0;
    return left > 0 ? left : 1; /* 0 would say that there is none */
}

static void send_hello_ok(struct wire *wire, bool fresh)
{
    const struct fake_box *box = wire->box;
    size_t cap = HELLO_ROOM + box->blob_len + box->exec_count * (PROTO_EXEC_ID_MAX + 6);
    uint8_t *room = xmalloc(cap);
    struct field_writer fields = {.ptr = room, .cap = cap};

    field_put_u64(&fields, TAG_VERSION, PROTO_VERSION);
    field_put_text(&fields, TAG_AGENT, "fake");
    field_put_u64(&fields, TAG_FRESH, fresh);
    field_put_u64(&fields, TAG_CONFIGURED, box->configured);
    field_put_u64(&fields, TAG_DEADLINE_MS, (uint64_t)deadline_left(box));
    field_put_u64(&fields, TAG_UPTIME_MS, (uint64_t)(clock_now_ms() - box->started_ms));
    if (box->blob != NULL) {
        field_put(&fields, TAG_BLOB, box->blob, box->blob_len);
        field_put_u64(&fields, TAG_BLOB_VERSION, box->blob_version);
    }
    fake_exec_list(box, &fields);
    wire_send(wire, 0, FRAME_HELLO_OK, fields.ptr, fields.len);
    free_secret(room, cap);
}

static void attach(struct wire *wire)
{
    struct fake_box *box = wire->box;
    struct wire *old = box->wire;
    struct reply reply;

    if (old != NULL) {
        reply_init(&reply);
        reply_error(&reply, "superseded", "another server has attached");
        wire_send_reply(old, 0, FRAME_BYE, &reply);
        wire_end(old, ERR_STREAM_LOST, "another stream has taken its place");
    }
    wire->greeted = true;
    box->wire = wire;
}

static void on_hello(struct wire *wire, const struct message *message)
{
    struct fake_box *box = wire->box;
    char uid[UID_LEN];
    struct field token;
    bool fresh = !box->has_token;

    if (wire->greeted)
        return;
    if (message_u64(message, TAG_VERSION, 0) == 0 || !message_find(message, TAG_TOKEN, &token) ||
        token.len != PROTO_TOKEN_LEN) {
        refuse_hello(wire, ERR_INVALID_REQUEST, "the hello has no version or no token");
        return;
    }
    if (message_text(message, TAG_UID, uid, sizeof(uid)) <= 0 || strcmp(uid, box->uid) != 0) {
        refuse_hello(wire, ERR_NOT_READY, "this is the agent of another sandbox");
        return;
    }
    if (!fresh && crypto_compare(box->token, token.data, PROTO_TOKEN_LEN) != 0) {
        refuse_hello(wire, ERR_FORBIDDEN, "the token is not this sandbox's");
        return;
    }
    memcpy(box->token, token.data, PROTO_TOKEN_LEN);
    box->has_token = true;
    attach(wire);
    send_hello_ok(wire, fresh);
}

/* --- CONFIGURE --------------------------------------------------------------------------------
 */

static void on_due(struct timer *timer)
{
    struct fake_box *box = container_of(timer, struct fake_box, due_timer);

    (void)calls_add(box->fake->calls, box->id, "deadline", json_new_object());
    fake_agent_end(box, "deadline", "the time of the sandbox is over");
    fake_box_fail(box, ERR_TTL);
}

static void set_deadline(struct fake_box *box, int64_t left_ms)
{
    timer_stop(&box->due_timer);
    box->deadline_ms = left_ms != 0 ? clock_now_ms() + left_ms : 0;
    box->due_timer.fire = on_due;
    if (left_ms != 0)
        timer_start(box->fake->loop, &box->due_timer, left_ms);
}

static const char *check_blob(const struct fake_box *box, const struct message *message)
{
    uint64_t version = message_u64(message, TAG_BLOB_VERSION, 0);
    struct field blob;

    if (!message_find(message, TAG_BLOB, &blob))
        return NULL;
    if (blob.len > BLOB_MAX)
        return "too_large";
    if (version == 0)
        return "invalid_field";
    if (box->blob != NULL && version < box->blob_version)
        return "conflict";
    return NULL;
}

static void take_blob(struct fake_box *box, const struct message *message)
{
    struct field blob;

    if (!message_find(message, TAG_BLOB, &blob))
        return;
    free_secret(box->blob, box->blob_len);
    box->blob = xmalloc(blob.len);
    box->blob_len = blob.len;
    if (blob.len > 0)
        memcpy(box->blob, blob.data, blob.len);
    box->blob_version = message_u64(message, TAG_BLOB_VERSION, 0);
}

/* NAME=value entries as an object. */
struct json *fake_env(const struct message *message)
{
    struct json *env = json_new_object();
    cleanup(text_map_done) struct text_map map = {.items = NULL};
    size_t count = 0;
    cleanup_free char **entries = message_texts(message, TAG_ENV, &count);

    for (size_t i = 0; entries != NULL && i < count; i++) {
        char *equals = strchr(entries[i], '=');

        if (equals != NULL) {
            *equals = '\0';
            text_map_set(&map, entries[i], equals + 1);
        }
    }
    for (size_t i = 0; i < map.count; i++)
        json_set_text(env, map.items[i].name, map.items[i].value);
    return env;
}

/* A sandbox has started when it is told what it is. */
static void note_start(struct fake_box *box, const struct message *message)
{
    struct json *call = json_new_object();

    json_set_text(call, "image", box->image);
    json_set(call, "env", fake_env(message));
    json_set_text(call, "workdir", box->workdir);
    json_set_int(call, "secrets", (int64_t)box->secrets);
    json_set_text(call, "owner", box->owner);
    (void)calls_add(box->fake->calls, box->id, "start", call);
}

static void on_configure(struct wire *wire, const struct message *message)
{
    struct fake_box *box = wire->box;
    char workdir[CAP_PATH];
    int has_workdir = message_text(message, TAG_WORKDIR, workdir, sizeof(workdir));
    uint64_t left_ms = message_u64(message, TAG_DEADLINE_MS, 0);
    const char *problem = check_blob(box, message);
    struct field field;
    struct reply reply;

    if (problem == NULL &&
        (has_workdir < 0 || (has_workdir > 0 && workdir[0] != '/') || left_ms > INT64_MAX / 2))
        problem = "invalid_field";
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_SEQ, message_u64(message, TAG_SEQ, 0));
    if (problem != NULL) {
        reply_error(&reply, problem, "the configuration was not taken");
        wire_send_reply(wire, 0, FRAME_CONFIGURED, &reply);
        return;
    }
    take_blob(box, message);
    if (has_workdir > 0) {
        free(box->workdir);
        box->workdir = xstrdup(workdir);
    }
    if (message_find(message, TAG_DEADLINE_MS, &field))
        set_deadline(box, (int64_t)left_ms);
    if (!box->configured)
        note_start(box, message);
    box->configured = true;
    field_put_u64(&reply.fields, TAG_DEADLINE_MS, (uint64_t)deadline_left(box));
    wire_send_reply(wire, 0, FRAME_CONFIGURED, &reply);
}

/* --- frames -----------------------------------------------------------------------------------
 */

static void on_open(struct wire *wire, uint32_t channel, const struct message *message)
{
    uint64_t op = message_u64(message, TAG_OP, 0);

    if (op == OP_EXEC || op == OP_SHELL || op == OP_SHELL_RUN)
        fake_exec_open(wire, channel, message);
    else if (op == OP_KILL)
        fake_exec_kill(wire, channel, message);
    else
        file_open(wire, channel, op, message);
}

static void on_own_message(struct wire *wire, uint8_t type, const struct message *message)
{
    if (type == FRAME_HELLO)
        on_hello(wire, message);
    else if (type == FRAME_CONFIGURE)
        on_configure(wire, message);
    else if (type == FRAME_PING)
        wire_send(wire, 0, FRAME_PONG, message->data, message->len);
}

bool fake_agent_message(struct wire *wire, uint32_t channel, uint8_t type,
                        const struct message *message)
{
    if (channel == 0)
        on_own_message(wire, type, message);
    else if (type == FRAME_OPEN)
        on_open(wire, channel, message);
    else if (!fake_exec_message(wire, channel, type, message) && type == FRAME_CANCEL)
        fake_transfer_cancel(wire, channel);
    return true;
}

bool fake_agent_frame(struct wire *wire, const struct frame *frame)
{
    bool broken = false;

    if (!fake_exec_frame(wire, frame, &broken))
        (void)fake_transfer_frame(wire, frame, &broken); /* else its channel has ended */
    return !broken;
}

void fake_agent_pump(struct wire *wire)
{
    fake_exec_pump(wire);
    if (wire->box != NULL)
        fake_transfers_pump(wire);
}

void fake_agent_wire_lost(struct fake_box *box, const struct wire *wire)
{
    fake_exec_wire_lost(box, wire);
    fake_transfers_lost(box, wire);
}

void fake_agent_end(struct fake_box *box, const char *code, const char *why)
{
    struct reply reply;

    box->ended = true;
    set_deadline(box, 0);
    if (box->wire != NULL) {
        reply_init(&reply);
        reply_error(&reply, code, "%s", why);
        wire_send_reply(box->wire, 0, FRAME_BYE, &reply);
    }
    while (box->wires != NULL)
        wire_end(box->wires, ERR_SANDBOX_GONE, why);
    fake_exec_free_all(box);
    fake_transfers_lost(box, NULL);
    disk_done(&box->disk);
    free_secret(box->blob, box->blob_len);
    box->blob = NULL;
    box->blob_len = 0;
}
