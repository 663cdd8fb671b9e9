/* OP_PACK: what is below a directory, as one stream. */
#include <stdlib.h>
#include <string.h>

#include "agent/entries.h"
#include "fake/transfer.h"

#define STREAM_MAX (2 * CAP_FAKE_FILES)

static bool put_content(struct buf *stream, const struct content *content)
{
    uint8_t header[ENTRY_CHUNK_HEADER];

    for (size_t at = 0, len; at < content->len; at += len) {
        len = content->len - at < ENTRY_CHUNK_MAX ? content->len - at : ENTRY_CHUNK_MAX;
        entry_chunk_write(header, (uint32_t)len, at);
        if (!buf_append(stream, header, sizeof(header)) ||
            !buf_append(stream, content->bytes + at, len))
            return false;
    }
    entry_chunk_write(header, 0, ENTRY_WHOLE);
    return buf_append(stream, header, sizeof(header));
}

static bool put_node(struct buf *stream, const struct node *node, const char *name)
{
    uint8_t room[2 * CAP_PATH];
    struct field_writer fields = {.ptr = room + 4, .cap = sizeof(room) - 4};

    field_put_text(&fields, TAG_TYPE, node->content != NULL ? "f" : "d");
    field_put_text(&fields, TAG_PATH, name);
    field_put_u64(&fields, TAG_SIZE, node->content != NULL ? node->content->len : 0);
    field_put_u64(&fields, TAG_MODE, node->mode);
    field_put_u64(&fields, TAG_MTIME_S, (uint64_t)(node->mtime_ns / 1000000000));
    field_put_u64(&fields, TAG_MTIME_NS, (uint64_t)(node->mtime_ns % 1000000000));
    wire_put_u32(room, (uint32_t)fields.len);
    return buf_append(stream, room, fields.len + 4) &&
           (node->content == NULL || put_content(stream, node->content));
}

static bool put_all(const struct disk *disk, const struct node *root, struct buf *stream)
{
    size_t first = 0, prefix = root->path[1] == '\0' ? 1 : strlen(root->path) + 1;
    bool fits = true;

    if (root->content != NULL)
        return put_node(stream, root, strrchr(root->path, '/') + 1);
    size_t count = disk_below(disk, root->path, &first);
    for (size_t i = first; i < first + count && fits; i++)
        fits = put_node(stream, &disk->nodes[i], disk->nodes[i].path + prefix);
    return fits;
}

static void pack_sent(struct transfer *transfer)
{
    wire_send(transfer->wire, transfer->channel, FRAME_RESULT, NULL, 0);
    transfer_end(transfer);
}

void archive_open(struct wire *wire, uint32_t channel, const struct message *message)
{
    cleanup_buf struct buf stream = BUF_INIT(STREAM_MAX);
    struct disk *disk = disk_of(wire->box);
    char path[CAP_PATH];
    const struct node *node;
    struct transfer *transfer;
    struct err err;

    if (!file_path(wire, channel, message, TAG_PATH, path))
        return;
    if (disk_need(disk, path, &node, &err) < 0 ||
        (!put_all(disk, node, &stream) &&
         err_set(&err, ERR_TOO_LARGE, "the files are too large for one archive") < 0)) {
        file_error(wire, channel, &err);
        return;
    }
    (void)calls_add(wire->box->fake->calls, wire->box->id, "pack", file_call(path));
    transfer = transfer_new(wire, channel);
    if (transfer == NULL)
        return;
    transfer->content = content_new(stream.ptr, stream.len);
    transfer->out = (struct outflow){
        .bytes = transfer->content->bytes, .len = stream.len, .limit = PROTO_WINDOW};
    transfer->sent = pack_sent;
    wire_send(wire, channel, FRAME_STARTED, NULL, 0);
}
