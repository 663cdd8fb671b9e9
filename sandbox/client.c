#include "sandbox/client.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandbox/client_impl.h"
#include "sandbox/fields.h"

/* A longer ping is not answered: ours are 8 bytes. */
#define PING_MAX 64

struct client *client_new(uint64_t stream_id, struct link_shared *shared,
                          const struct client_handler *handler, void *arg)
{
    struct client *client = xcalloc(1, sizeof(*client));
    client->stream_id = stream_id;
    client->shared = shared;
    client->handler = handler;
    client->arg = arg;
    buf_init(&client->part, PROTO_MESSAGE_MAX);
    buf_init(&client->queue, CAP_SEND_QUEUE + (size_t)2 * PROTO_MESSAGE_MAX);
    return client;
}

/* --- what the connection itself says ----------------------------------------------------- */

void client_say_hello(struct client *client, const uint8_t token[PROTO_TOKEN_LEN], const char *uid)
{
    struct buf message = BUF_INIT(FRAME_PAYLOAD_MAX);
    fields_put_u64(&message, TAG_VERSION, PROTO_VERSION);
    fields_put(&message, TAG_TOKEN, token, PROTO_TOKEN_LEN);
    fields_put_text(&message, TAG_UID, uid);
    fields_put_text(&message, TAG_SERVER, "podsandboxd");
    client_put_message(client, 0, FRAME_HELLO, message.ptr, message.len);
    buf_wipe(&message);
}

void client_configure(struct client *client, const struct link_configuration *configuration)
{
    struct buf message = BUF_INIT(PROTO_MESSAGE_MAX);
    fields_put_u64(&message, TAG_SEQ, configuration->seq);
    if (configuration->env) {
        fields_put_u64(&message, TAG_ENV_SET, 1);
        for (size_t i = 0; i < configuration->env->count; i++) {
            const struct text_pair *pair = &configuration->env->items[i];
            cleanup_free char *entry = xasprintf("%s=%s", pair->name, pair->value);
            fields_put_text(&message, TAG_ENV, entry);
        }
    }
    if (configuration->workdir)
        fields_put_text(&message, TAG_WORKDIR, configuration->workdir);
    if (configuration->info)
        fields_put_text(&message, TAG_INFO, configuration->info);
    if (configuration->deadline_ms >= 0)
        fields_put_u64(&message, TAG_DEADLINE_MS, (uint64_t)configuration->deadline_ms);
    if (configuration->blob) {
        fields_put_u64(&message, TAG_BLOB_VERSION, configuration->blob_version);
        fields_put(&message, TAG_BLOB, configuration->blob, configuration->blob_len);
    }
    if (message.overflow) {
        struct err err;
        (void)err_set(&err, ERR_TOO_LARGE, "the configuration is larger than %u bytes",
                      PROTO_MESSAGE_MAX);
        client->handler->configured(client->arg, configuration->seq, 0, &err);
    } else {
        client_put_message(client, 0, FRAME_CONFIGURE, message.ptr, message.len);
    }
    buf_wipe(&message);
}

void client_ping(struct client *client)
{
    client_put_frame(client, 0, FRAME_PING, STR(""), STR("podsandb"));
}

int client_broken(struct err *err, const char *what)
{
    return err_set(err, ERR_AGENT_FAILED, "the agent broke the protocol: %s", what);
}

/* Ids are texts to the agent; those of ours are numbers. */
static void read_exec_id(const struct field *field, struct link_hello *hello, uint64_t *ids)
{
    struct str text = {(const char *)field->data, field->len};
    if (str_to_u64(text, INT64_MAX, &ids[hello->exec_count]) && ids[hello->exec_count] > 0)
        hello->exec_count++;
}

static void read_hello_field(const struct field *field, struct link_hello *hello, uint64_t *ids)
{
    uint64_t value = 0;
    bool number = field_u64(field, &value);
    if (field->tag == TAG_EXEC_ID) {
        read_exec_id(field, hello, ids);
    } else if (field->tag == TAG_BLOB) {
        hello->blob = field->data;
        hello->blob_len = field->len;
    } else if (!number) {
        return;
    } else if (field->tag == TAG_FRESH) {
        hello->fresh = value != 0;
    } else if (field->tag == TAG_CONFIGURED) {
        hello->configured = value != 0;
    } else if (field->tag == TAG_DEADLINE_MS && value <= INT64_MAX) {
        hello->deadline_ms = (int64_t)value;
    } else if (field->tag == TAG_BLOB_VERSION) {
        hello->blob_version = value;
    } else if (field->tag == TAG_UPTIME_MS && value <= INT64_MAX) {
        hello->uptime_ms = (int64_t)value;
    } else if (field->tag == TAG_MEMORY_LIMIT) {
        hello->memory_limit = value;
    } else if (field->tag == TAG_PIDS_LIMIT) {
        hello->pids_limit = value;
    } else if (field->tag == TAG_CPU_MILLI) {
        hello->cpu_milli = value;
    }
}

static size_t count_exec_ids(const void *fields, size_t len)
{
    struct field_reader reader;
    struct field field;
    size_t count = 0;
    field_reader_init(&reader, fields, len);
    while (field_next(&reader, &field))
        count += field.tag == TAG_EXEC_ID;
    return count;
}

static int take_hello(struct client *client, const void *fields, size_t len, struct err *err)
{
    uint64_t version = 0;
    size_t ids = count_exec_ids(fields, len);
    if (client->up)
        return client_broken(err, "a second hello");
    if (!fields_u64(fields, len, TAG_VERSION, &version) || version == 0)
        return client_broken(err, "a hello without a version");
    if (ids > CAP_EXEC_IDS)
        return client_broken(err, "too many executions in the hello");
    cleanup_free uint64_t *exec_ids = xcalloc(ids + 1, sizeof(uint64_t));
    cleanup_free char *agent = fields_text(fields, len, TAG_AGENT);
    struct link_hello hello = {.agent_version = agent ? agent : "", .exec_ids = exec_ids};
    struct field_reader reader;
    struct field field;
    field_reader_init(&reader, fields, len);
    while (field_next(&reader, &field))
        read_hello_field(&field, &hello, exec_ids);
    if (reader.broken)
        return client_broken(err, "a malformed hello");
    client->up = true;
    client->handler->hello(client->arg, &hello);
    return 0;
}

static const struct {
    const char *name;
    enum client_bye kind;
    enum err_code code;
} byes[] = {
    {"superseded", BYE_SUPERSEDED, ERR_CONFLICT},
    {"deadline", BYE_ENDED, ERR_TTL},
    {"terminated", BYE_ENDED, ERR_SANDBOX_GONE},
};

static int take_bye(struct client *client, const void *fields, size_t len)
{
    struct err why;
    cleanup_free char *name = fields_text(fields, len, TAG_ERROR);
    cleanup_free char *message = fields_text(fields, len, TAG_MESSAGE);
    enum client_bye kind = BYE_CUT;
    enum err_code code = ERR_STREAM_LOST;
    for (size_t i = 0; name && i < ARRAY_LEN(byes); i++) {
        if (strcmp(name, byes[i].name) == 0) {
            kind = byes[i].kind;
            code = byes[i].code;
        }
    }
    (void)err_set(&why, code, "the agent ended the stream: %s%s%s", name ? name : "no reason given",
                  message && message[0] ? ": " : "", message ? message : "");
    client->handler->bye(client->arg, &why, kind);
    return 0;
}

static int take_configured(struct client *client, const void *fields, size_t len, struct err *err)
{
    struct err why;
    uint64_t seq, deadline = 0;
    if (!fields_u64(fields, len, TAG_SEQ, &seq))
        return client_broken(err, "a CONFIGURED without SEQ");
    bool failed = fields_error(fields, len, ERR_AGENT_FAILED, &why);
    if (!fields_u64(fields, len, TAG_DEADLINE_MS, &deadline) || deadline > INT64_MAX)
        deadline = 0;
    client->handler->configured(client->arg, seq, (int64_t)deadline, failed ? &why : NULL);
    return 0;
}

static int take_own_message(struct client *client, uint8_t type, struct str message,
                            struct err *err)
{
    struct err why;
    switch (type) {
    case FRAME_HELLO_OK:
        return take_hello(client, message.ptr, message.len, err);
    case FRAME_HELLO_NO:
        if (!fields_error(message.ptr, message.len, ERR_FORBIDDEN, &why))
            (void)err_set(&why, ERR_FORBIDDEN, "the agent refused the hello");
        client->handler->refused(client->arg, &why);
        return 0;
    case FRAME_BYE:
        return take_bye(client, message.ptr, message.len);
    case FRAME_CONFIGURED:
        return client->up ? take_configured(client, message.ptr, message.len, err)
                          : client_broken(err, "CONFIGURED before the hello");
    case FRAME_PING:
        if (message.len <= PING_MAX && client_pending(client) < QUEUE_OPEN)
            client_put_frame(client, 0, FRAME_PONG, STR(""), message);
        return 0;
    default: /* PONG, and what a newer agent says */
        return 0;
    }
}

/* --- frames in --------------------------------------------------------------------------- */

static int take_part(struct client *client, struct buf *part, const struct frame *frame,
                     struct err *err)
{
    client->part_bytes += frame->len;
    if (client->part_bytes > (size_t)2 * PROTO_MESSAGE_MAX ||
        !buf_append(part, frame->payload, frame->len))
        return client_broken(err, "a message that is too long");
    return 0;
}

/* The message that ends with FRAME: its payload, or what came in parts, moved to WHOLE. */
static int whole_message(struct client *client, struct buf *part, const struct frame *frame,
                         struct buf *whole, struct str *ret_message, struct err *err)
{
    if (part->len == 0) {
        *ret_message = (struct str){(const char *)frame->payload, frame->len};
        return 0;
    }
    if (take_part(client, part, frame, err))
        return -1;
    client->part_bytes -= part->len;
    *whole = *part;
    *part = BUF_INIT(PROTO_MESSAGE_MAX);
    *ret_message = (struct str){whole->ptr, whole->len};
    return 0;
}

static int take_frame(struct client *client, const struct frame *frame, struct err *err)
{
    cleanup_buf struct buf whole = BUF_INIT(PROTO_MESSAGE_MAX);
    struct str message;
    struct channel *channel = NULL;
    if (frame->channel != 0) {
        channel = client_find_channel(client, frame->channel);
        if (!channel)
            return 0; /* closed before the agent heard of it */
    }
    struct buf *part = channel ? &channel->flow->part : &client->part;
    if (frame->type == FRAME_PART)
        return take_part(client, part, frame, err);
    if (channel && frame->type == FRAME_DATA)
        return client_take_data(channel, frame, err);
    if (channel && frame->type == FRAME_END)
        return client_take_end(channel, frame, err);
    if (channel && frame->type == FRAME_CREDIT)
        return client_take_credit(channel, frame, err);
    if (whole_message(client, part, frame, &whole, &message, err))
        return -1;
    if (!channel)
        return take_own_message(client, frame->type, message, err);
    client_take_message(channel, frame->type, message);
    return 0;
}

int client_receive(struct client *client, const uint8_t *data, size_t len, struct err *err)
{
    if (!client->decoder) {
        client->decoder = xmalloc(sizeof(*client->decoder));
        client->decoder->have = 0;
    }
    struct frame frame;
    enum frame_result result = FRAME_MORE;
    while (!client->closed &&
           (result = frame_decode(client->decoder, &data, &len, &frame)) == FRAME_READY) {
        if (take_frame(client, &frame, err))
            return -1;
    }
    if (result == FRAME_BROKEN)
        return client_broken(err, "a frame that is too long");
    if (client->decoder->have == 0) {
        free(client->decoder);
        client->decoder = NULL;
    }
    return client->overflowed ? err_set(err, ERR_AGENT_FAILED, "the agent does not read") : 0;
}

/* --- the end ----------------------------------------------------------------------------- */

static void lose(struct channel *channel, const struct err *why)
{
    channel_close(channel);
    if (channel->handler->lost)
        channel->handler->lost(channel, why);
}

void client_close(struct client *client, const struct err *why)
{
    client->closed = true;
    while (client->first_waiting)
        lose(client->first_waiting, why);
    while (client->open_count > 0) {
        for (size_t i = 0; i < client->table_size; i++) {
            while (client->table[i])
                lose(client->table[i], why);
        }
    }
}

void client_free(struct client *client)
{
    if (!client)
        return;
    assert(client->open_count == 0 && !client->first_waiting);
    free(client->decoder);
    free(client->table);
    buf_done(&client->part);
    buf_wipe(&client->queue);
    free(client);
}
