/* A file that is being written: whole or not at all. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "fake/transfer.h"

#define WINDOW ((uint64_t)512 << 10)

struct upload {
    struct message request;
    char path[CAP_PATH];
    int mode;
    struct content *content; /* `cap` bytes of it are paid for */
    size_t cap;
    uint64_t granted;
    bool archive; /* OP_UNPACK: the path is a directory */
};

void upload_free(struct transfer *transfer)
{
    struct upload *upload = TAKE_PTR(transfer->upload);

    if (upload == NULL)
        return;
    space_free(&transfer->box->fake->space, upload->cap);
    content_unref(upload->content);
    message_free(&upload->request);
    free(upload);
}

/* Ends it with that answer; always true, for `return fail(…)`: the stream is not broken. */
static bool fail(struct transfer *transfer, const struct err *err)
{
    file_error(transfer->wire, transfer->channel, err);
    transfer_end(transfer);
    return true;
}

/* What stands under the name may be replaced; false: answered. */
static bool check_target(struct wire *wire, uint32_t channel, const struct message *message,
                         const char *path)
{
    const struct node *node = NULL;
    struct err err;

    if (disk_need(disk_of(wire->box), path, &node, &err) < 0) {
        if (err.code == ERR_FILE_NOT_FOUND)
            return file_matches(wire, channel, message, NULL);
    } else if (node->content == NULL) {
        (void)err_set(&err, ERR_IS_DIRECTORY, "%s: it is a directory", path);
    } else if (message_u64(message, TAG_IF_NONE_MATCH, 0) != 0) {
        (void)err_set(&err, ERR_PRECONDITION_FAILED, "%s: the file is there already", path);
    } else {
        return file_matches(wire, channel, message, node);
    }
    file_error(wire, channel, &err);
    return false;
}

void upload_open(struct wire *wire, uint32_t channel, const struct message *message)
{
    char path[CAP_PATH];
    struct transfer *transfer;
    struct upload *upload;
    bool archive = message_u64(message, TAG_OP, 0) == OP_UNPACK;
    int mode;

    if (!file_mode(wire, channel, message, &mode) ||
        !file_path(wire, channel, message, TAG_PATH, path) ||
        (!archive && !check_target(wire, channel, message, path)) ||
        (transfer = transfer_new(wire, channel)) == NULL)
        return;
    upload = xcalloc(1, sizeof(*upload));
    memcpy(upload->path, path, sizeof(path));
    upload->mode = mode;
    upload->archive = archive;
    upload->content = content_new(NULL, 0);
    upload->granted = PROTO_WINDOW;
    (void)message_copy(&upload->request, message->data, message->len);
    transfer->upload = upload;
}

static int grow(struct transfer *transfer, size_t len, struct err *err)
{
    struct upload *upload = transfer->upload;
    size_t wanted = upload->content->len + len, cap = upload->cap != 0 ? upload->cap : 512;

    if (wanted <= upload->cap)
        return 0;
    while (cap < wanted)
        cap += cap / 2;
    if (space_take(&transfer->box->fake->space, cap - upload->cap, err) < 0)
        return -1;
    upload->cap = cap;
    upload->content = xrealloc(upload->content, sizeof(*upload->content) + cap);
    return 0;
}

bool upload_data(struct transfer *transfer, const struct frame_data *data)
{
    struct upload *upload = transfer->upload;
    uint8_t payload[FRAME_CREDIT_LEN];
    uint64_t have = upload->content->len;
    struct err err;

    if (data->offset > have || data->offset + data->len > upload->granted) {
        (void)err_set(&err, ERR_INVALID_REQUEST, "DATA leaves a hole or passes its limit");
        return fail(transfer, &err);
    }
    if (data->offset + data->len <= have)
        return true;
    size_t known = (size_t)(have - data->offset), len = data->len - known;
    if (grow(transfer, len, &err) < 0)
        return fail(transfer, &err);
    memcpy(upload->content->bytes + have, data->bytes + known, len);
    upload->content->len += len;
    have += len;
    if (have + WINDOW - upload->granted >= WINDOW / 2) {
        upload->granted = have + WINDOW;
        frame_credit_write(payload, 0, have, upload->granted);
        wire_send(transfer->wire, transfer->channel, FRAME_CREDIT, payload, sizeof(payload));
    }
    return true;
}

static void answer(struct transfer *transfer, const struct node *node, bool created)
{
    const struct upload *upload = transfer->upload;
    struct json *call = file_call(upload->path);
    const struct str bytes = {(const char *)node->content->bytes, node->content->len};
    struct reply reply;

    calls_put_bytes(call, "content", bytes, bytes.len);
    json_set_mode(call, node->mode);
    json_set_bool(call, "created", created);
    (void)calls_add(transfer->box->fake->calls, transfer->box->id, "write", call);
    reply_init(&reply);
    file_put_etag(&reply, node);
    field_put_u64(&reply.fields, TAG_SIZE, node->content->len);
    field_put_u64(&reply.fields, TAG_MODE, node->mode);
    field_put_u64(&reply.fields, TAG_CREATED, created);
    wire_send_reply(transfer->wire, transfer->channel, FRAME_RESULT, &reply);
}

/* As the real agent does: what was made before an entry failed stays, and is told. */
static void end_archive(struct transfer *transfer)
{
    struct upload *upload = transfer->upload;
    struct json *call = file_call(upload->path);
    struct unpacked made;
    struct reply reply;
    struct err err;

    reply_init(&reply);
    if (archive_unpack(disk_of(transfer->box), upload->path, upload->content, &made, &err) < 0)
        reply_error(&reply, err_code_name(err.code), "%s", err.msg);
    json_set_int(call, "files", (int64_t)made.files);
    (void)calls_add(transfer->box->fake->calls, transfer->box->id, "unpack", call);
    field_put_u64(&reply.fields, TAG_FILES, made.files);
    field_put_u64(&reply.fields, TAG_DIRECTORIES, made.directories);
    field_put_u64(&reply.fields, TAG_LINKS, 0);
    field_put_u64(&reply.fields, TAG_SIZE, made.bytes);
    wire_send_reply(transfer->wire, transfer->channel, FRAME_RESULT, &reply);
    transfer_end(transfer);
}

bool upload_end(struct transfer *transfer, uint64_t total)
{
    struct upload *upload = transfer->upload;
    struct disk *disk = disk_of(transfer->box);
    uint64_t wanted = message_u64(&upload->request, TAG_SIZE, upload->content->len);
    const struct node *node = NULL;
    struct err err;

    if (total != upload->content->len || wanted != upload->content->len) {
        (void)err_set(&err, ERR_SIZE_MISMATCH, "%zu bytes have arrived of %llu",
                      upload->content->len, (unsigned long long)wanted);
        return fail(transfer, &err);
    }
    if (upload->archive) {
        end_archive(transfer);
        return true;
    }
    if (!check_target(transfer->wire, transfer->channel, &upload->request, upload->path)) {
        transfer_end(transfer);
        return true;
    }
    bool created = disk_find(disk, upload->path) == NULL;
    upload->content = xrealloc(upload->content, sizeof(*upload->content) + upload->content->len);
    space_free(disk->space, upload->cap); /* the name pays for it now */
    upload->cap = 0;
    if (disk_write(disk, upload->path, upload->content, upload->mode, &node, &err) < 0)
        return fail(transfer, &err);
    answer(transfer, node, created);
    transfer_end(transfer);
    return true;
}
