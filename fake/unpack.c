/* OP_UNPACK: the entries of an archive, made one after the other. */
#include <string.h>

#include "agent/entries.h"
#include "fake/transfer.h"

struct unpacking {
    struct disk *disk;
    const char *root;
    char path[CAP_PATH]; /* of the entry that began */
    int mode;
    struct content *content; /* of a file that began */
    struct unpacked *made;
};

static int set_path(struct unpacking *unpacking, const struct field *field, struct err *err)
{
    char plain[CAP_PATH];
    const char *why = entry_path((const char *)field->data, field->len, plain);
    const char *root = unpacking->root[1] == '\0' ? "" : unpacking->root;

    if (why == NULL && strlen(root) + 1 + strlen(plain) >= CAP_PATH)
        why = "the path is too long";
    if (why != NULL)
        return err_set(err, ERR_INVALID_ARCHIVE, "%s", why);
    memcpy(unpacking->path, root, strlen(root));
    unpacking->path[strlen(root)] = '/';
    memcpy(unpacking->path + strlen(root) + 1, plain, strlen(plain) + 1);
    return 0;
}

static int begin_file(struct unpacking *unpacking, uint64_t size, struct err *err)
{
    struct disk_space *space = unpacking->disk->space;

    /* Only looked at: what it takes is taken with its name. */
    if (size > CAP_FAKE_FILES || space_take(space, (size_t)size, err) < 0)
        return err_set(err, ERR_NO_SPACE, "%s: no room for it", unpacking->path);
    space_free(space, (size_t)size);
    unpacking->content = content_new(NULL, (size_t)size);
    memset(unpacking->content->bytes, 0, (size_t)size);
    return 0;
}

static int begin_entry(struct unpacking *unpacking, const struct field_reader *fields,
                       struct err *err)
{
    const struct message message = {.data = (uint8_t *)(uintptr_t)fields->ptr, .len = fields->left};
    struct field path = {.data = NULL}, type = {.data = NULL};
    bool created = false;

    if (!message_find(&message, TAG_PATH, &path) || !message_find(&message, TAG_TYPE, &type) ||
        type.len != 1)
        return err_set(err, ERR_INVALID_REQUEST, "an entry has no PATH or TYPE");
    if (set_path(unpacking, &path, err) < 0)
        return -1;
    unpacking->mode = (int)(message_u64(&message, TAG_MODE, 0644) & 0777);
    if (type.data[0] == 'f')
        return begin_file(unpacking, message_u64(&message, TAG_SIZE, 0), err);
    if (type.data[0] != 'd')
        return err_set(err, ERR_NOT_SUPPORTED, "%s: the fake driver has no links", unpacking->path);
    if (disk_mkdir(unpacking->disk, unpacking->path, unpacking->mode, &created, err) < 0)
        return -1;
    unpacking->made->directories++;
    return 0;
}

static int take_data(struct unpacking *unpacking, const struct entry_item *item, struct err *err)
{
    struct content *content = unpacking->content;

    if (content == NULL || item->offset > content->len || item->len > content->len - item->offset)
        return err_set(err, ERR_INVALID_REQUEST, "%s: it has more than its size", unpacking->path);
    memcpy(content->bytes + item->offset, item->data, item->len);
    unpacking->made->bytes += item->len;
    return 0;
}

static int end_file(struct unpacking *unpacking, uint64_t end, struct err *err)
{
    const struct node *node;
    int rc = 0;

    if (end == ENTRY_WHOLE) {
        rc = disk_write(unpacking->disk, unpacking->path, unpacking->content, unpacking->mode,
                        &node, err);
        unpacking->made->files += rc == 0;
    }
    content_unref(unpacking->content);
    unpacking->content = NULL;
    return rc;
}

static int step(struct unpacking *unpacking, enum entry_event event, const struct entry_item *item,
                struct err *err)
{
    switch (event) {
    case ENTRY_BEGIN:
        return begin_entry(unpacking, &item->fields, err);
    case ENTRY_DATA:
        return take_data(unpacking, item, err);
    case ENTRY_END:
        return end_file(unpacking, item->end, err);
    case ENTRY_MORE:
    case ENTRY_BROKEN:
        break;
    }
    return err_set(err, ERR_INVALID_REQUEST, "the entries make no sense");
}

int archive_unpack(struct disk *disk, const char *root, const struct content *stream,
                   struct unpacked *ret_made, struct err *err)
{
    struct unpacking unpacking = {.disk = disk, .root = root, .made = ret_made};
    const uint8_t *data = stream->bytes;
    size_t len = stream->len;
    struct entry_parser parser;
    struct entry_item item;
    bool created = false;
    int rc = disk_mkdir(disk, root, -1, &created, err);

    *ret_made = (struct unpacked){.files = 0};
    entry_parser_init(&parser);
    while (rc == 0 && len > 0) {
        enum entry_event event = entry_parse(&parser, &data, &len, &item);

        if (event != ENTRY_MORE)
            rc = step(&unpacking, event, &item, err);
    }
    if (rc == 0 && (!entry_parser_between(&parser) || unpacking.content != NULL))
        rc = err_set(err, ERR_SIZE_MISMATCH, "the entries are not whole");
    content_unref(unpacking.content);
    return rc;
}
