/* Requests about files and ports that are answered at once, reading and listing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "fake/transfer.h"

/* --- what requests have in common -------------------------------------------------------------
 */

struct disk *disk_of(struct fake_box *box)
{
    if (box->disk.count == 0)
        disk_init(&box->disk, &box->fake->space, box->workdir);
    return &box->disk;
}

void file_error(struct wire *wire, uint32_t channel, const struct err *err)
{
    wire_send_error(wire, channel, err_code_name(err->code), "%s", err->msg);
}

bool file_path(struct wire *wire, uint32_t channel, const struct message *message, uint16_t tag,
               char ret_path[CAP_PATH])
{
    char path[CAP_PATH];
    struct err err;
    int found = message_text(message, tag, path, sizeof(path));

    if (found <= 0)
        (void)err_set(&err, found == 0 ? ERR_INVALID_PATH : ERR_NAME_TOO_LONG,
                      "the path is missing, too long or has a NUL byte");
    else if (disk_path(wire->box->workdir, path, ret_path, &err) == 0)
        return true;
    file_error(wire, channel, &err);
    return false;
}

bool file_mode(struct wire *wire, uint32_t channel, const struct message *message, int *ret_mode)
{
    uint64_t mode = message_u64(message, TAG_MODE, UINT64_MAX);

    *ret_mode = mode == UINT64_MAX ? -1 : (int)mode;
    if (mode == UINT64_MAX || mode <= 07777)
        return true;
    wire_send_error(wire, channel, "invalid_field", "MODE is out of range");
    return false;
}

bool file_matches(struct wire *wire, uint32_t channel, const struct message *message,
                  const struct node *node)
{
    char wanted[DISK_ETAG_LEN], found[DISK_ETAG_LEN] = "";
    int given = message_text(message, TAG_IF_MATCH, wanted, sizeof(wanted));

    if (given == 0)
        return true;
    if (node != NULL)
        disk_etag(node, found);
    if (given > 0 && strcmp(wanted, found) == 0)
        return true;
    wire_send_error(wire, channel, "precondition_failed", "the file is another one or has changed");
    return false;
}

void file_put_etag(struct reply *reply, const struct node *node)
{
    char etag[DISK_ETAG_LEN];

    disk_etag(node, etag);
    field_put_text(&reply->fields, TAG_ETAG, etag);
}

static void put_entry(struct field_writer *fields, const struct node *node)
{
    field_put_text(fields, TAG_TYPE, node->content != NULL ? "f" : "d");
    field_put_u64(fields, TAG_SIZE, node->content != NULL ? node->content->len : 0);
    field_put_u64(fields, TAG_MODE, node->mode);
    field_put_u64(fields, TAG_MTIME_MS, (uint64_t)(node->mtime_ns / 1000000));
}

struct json *file_call(const char *path)
{
    struct json *call = json_new_object();

    json_set_text(call, "path", path);
    return call;
}

void json_set_mode(struct json *call, unsigned mode)
{
    char text[8];

    (void)snprintf(text, sizeof(text), "%04o", mode & 07777u);
    json_set_text(call, "mode", text);
}

static void note(const struct wire *wire, const char *type, struct json *call)
{
    (void)calls_add(wire->box->fake->calls, wire->box->id, type, call);
}

static void answer_etag(struct wire *wire, uint32_t channel, const struct node *node)
{
    struct reply reply;

    reply_init(&reply);
    file_put_etag(&reply, node);
    wire_send_reply(wire, channel, FRAME_RESULT, &reply);
}

/* --- reading ----------------------------------------------------------------------------------
 */

/* A regular file; false: answered. */
static bool need_file(struct wire *wire, uint32_t channel, const char *path,
                      const struct node **ret_node)
{
    struct err err;

    if (disk_need(disk_of(wire->box), path, ret_node, &err) == 0) {
        if ((*ret_node)->content != NULL)
            return true;
        (void)err_set(&err, ERR_IS_DIRECTORY, "%s: it is a directory", path);
    }
    file_error(wire, channel, &err);
    return false;
}

static void answer_stat(struct wire *wire, uint32_t channel, uint8_t type, const struct node *node)
{
    struct reply reply;

    reply_init(&reply);
    put_entry(&reply.fields, node);
    file_put_etag(&reply, node);
    wire_send_reply(wire, channel, type, &reply);
}

static void read_sent(struct transfer *transfer)
{
    wire_send(transfer->wire, transfer->channel, FRAME_RESULT, NULL, 0);
    transfer_end(transfer);
}

static void open_read(struct wire *wire, uint32_t channel, const struct message *message)
{
    uint64_t offset = message_u64(message, TAG_OFFSET, 0);
    uint64_t length = message_u64(message, TAG_LENGTH, UINT64_MAX);
    char path[CAP_PATH];
    const struct node *node;
    struct transfer *transfer;

    if (!file_path(wire, channel, message, TAG_PATH, path) ||
        !need_file(wire, channel, path, &node) || (transfer = transfer_new(wire, channel)) == NULL)
        return;
    transfer->content = content_ref(node->content);
    if (offset > node->content->len)
        offset = node->content->len;
    if (length > node->content->len - offset)
        length = node->content->len - offset;
    transfer->out = (struct outflow){
        .bytes = node->content->bytes + offset, .len = (size_t)length, .limit = PROTO_WINDOW};
    transfer->sent = read_sent;
    note(wire, "read", file_call(path));
    answer_stat(wire, channel, FRAME_STARTED, node);
}

static void open_stat(struct wire *wire, uint32_t channel, const struct message *message)
{
    char path[CAP_PATH];
    const struct node *node;
    struct err err;

    if (!file_path(wire, channel, message, TAG_PATH, path))
        return;
    if (disk_need(disk_of(wire->box), path, &node, &err) < 0)
        file_error(wire, channel, &err);
    else
        answer_stat(wire, channel, FRAME_RESULT, node);
}

/* --- listing ----------------------------------------------------------------------------------
 */

static void tree_sent(struct transfer *transfer)
{
    struct reply reply;

    reply_init(&reply);
    field_put_text(&reply.fields, TAG_ROOT, transfer->root);
    wire_send_reply(transfer->wire, transfer->channel, FRAME_RESULT, &reply);
    transfer_end(transfer);
}

static bool is_shown(const struct node *node, const char *name, bool files_only, uint64_t depth)
{
    uint64_t level = 1;

    for (const char *at = name; *at != '\0'; at++)
        level += *at == '/';
    if (depth != 0 && level > depth)
        return false;
    if (!files_only)
        return true;
    for (const char *at = name; (at = strstr(at, ".git")) != NULL; at += 4) {
        if ((at == name || at[-1] == '/') && (at[4] == '/' || at[4] == '\0'))
            return false;
    }
    return node->content != NULL;
}

static bool put_node(struct buf *list, const struct node *node, const char *name)
{
    uint8_t room[2 * CAP_PATH];
    struct field_writer fields = {.ptr = room + 4, .cap = sizeof(room) - 4};

    field_put_text(&fields, TAG_PATH, name);
    put_entry(&fields, node);
    wire_put_u32(room, (uint32_t)fields.len);
    return buf_append(list, room, fields.len + 4);
}

static int by_path(const void *a, const void *b)
{
    return strcmp((*(const struct node *const *)a)->path, (*(const struct node *const *)b)->path);
}

/* Files alone come in the order of their whole paths. */
static bool put_below(const struct disk *disk, const char *path, const struct message *message,
                      struct buf *list)
{
    bool files_only = message_u64(message, TAG_FILES_ONLY, 0) != 0, fits = true;
    uint64_t depth = message_u64(message, TAG_DEPTH, 0);
    size_t first = 0, count = disk_below(disk, path, &first), shown = 0;
    size_t prefix = path[1] == '\0' ? 1 : strlen(path) + 1;
    cleanup_free const struct node **nodes = xcalloc(count + 1, sizeof(struct node *));

    for (size_t i = first; i < first + count; i++) {
        if (is_shown(&disk->nodes[i], disk->nodes[i].path + prefix, files_only, depth))
            nodes[shown++] = &disk->nodes[i];
    }
    if (files_only && shown > 1)
        qsort(nodes, shown, sizeof(struct node *), by_path);
    for (size_t i = 0; i < shown && fits; i++)
        fits = put_node(list, nodes[i], nodes[i]->path + prefix);
    return fits;
}

static void open_tree(struct wire *wire, uint32_t channel, const struct message *message)
{
    cleanup_buf struct buf list = BUF_INIT(CAP_TREE);
    struct disk *disk = disk_of(wire->box);
    char path[CAP_PATH];
    const struct node *node;
    struct transfer *transfer;
    struct err err;

    if (message_u64(message, TAG_DETAILS, 0) != 0) {
        wire_send_error(wire, channel, "not_supported", "the fake driver compares no files");
        return;
    }
    if (!file_path(wire, channel, message, TAG_PATH, path))
        return;
    if (disk_need(disk, path, &node, &err) < 0 ||
        (node->content != NULL &&
         err_set(&err, ERR_NOT_DIRECTORY, "%s: it is no directory", path) < 0) ||
        (!put_below(disk, path, message, &list) &&
         err_set(&err, ERR_TOO_LARGE, "the listing is too large") < 0)) {
        file_error(wire, channel, &err);
        return;
    }
    note(wire, "list", file_call(path));
    transfer = transfer_new(wire, channel);
    if (transfer == NULL)
        return;
    transfer->content = content_new(list.ptr, list.len);
    transfer->root = xstrdup(path);
    transfer->out =
        (struct outflow){.bytes = transfer->content->bytes, .len = list.len, .limit = PROTO_WINDOW};
    transfer->sent = tree_sent;
    wire_wake(wire);
}

/* --- changing ---------------------------------------------------------------------------------
 */

static void open_remove(struct wire *wire, uint32_t channel, const struct message *message)
{
    char path[CAP_PATH];
    struct err err;

    if (!file_path(wire, channel, message, TAG_PATH, path))
        return;
    if (disk_remove(disk_of(wire->box), path, message_u64(message, TAG_RECURSIVE, 0) != 0, &err) <
        0) {
        file_error(wire, channel, &err);
        return;
    }
    note(wire, "remove_file", file_call(path));
    wire_send(wire, channel, FRAME_RESULT, NULL, 0);
}

static void open_move(struct wire *wire, uint32_t channel, const struct message *message)
{
    char from[CAP_PATH], to[CAP_PATH];
    const struct node *node;
    struct json *call;
    struct err err;

    if (!file_path(wire, channel, message, TAG_PATH, from) ||
        !file_path(wire, channel, message, TAG_TO, to))
        return;
    if (disk_move(disk_of(wire->box), from, to, message_u64(message, TAG_OVERWRITE, 0) != 0, &node,
                  &err) < 0) {
        file_error(wire, channel, &err);
        return;
    }
    call = file_call(from);
    json_set_text(call, "to", to);
    note(wire, "move", call);
    answer_etag(wire, channel, node);
}

static void open_mode(struct wire *wire, uint32_t channel, const struct message *message)
{
    struct disk *disk = disk_of(wire->box);
    char path[CAP_PATH];
    const struct node *node;
    struct json *call;
    struct err err;
    int mode;

    if (!file_mode(wire, channel, message, &mode) ||
        !file_path(wire, channel, message, TAG_PATH, path))
        return;
    if (mode < 0) {
        wire_send_error(wire, channel, "invalid_field", "MODE is missing");
        return;
    }
    if (disk_need(disk, path, &node, &err) < 0) {
        file_error(wire, channel, &err);
        return;
    }
    if (!file_matches(wire, channel, message, node))
        return;
    if (disk_set_mode(disk, path, (unsigned)mode, &node, &err) < 0) {
        file_error(wire, channel, &err);
        return;
    }
    call = file_call(path);
    json_set_mode(call, (unsigned)mode);
    note(wire, "mode", call);
    answer_etag(wire, channel, node);
}

static void open_mkdir(struct wire *wire, uint32_t channel, const struct message *message)
{
    char path[CAP_PATH];
    struct reply reply;
    struct err err;
    bool created = false;
    int mode;

    if (!file_mode(wire, channel, message, &mode) ||
        !file_path(wire, channel, message, TAG_PATH, path))
        return;
    if (disk_mkdir(disk_of(wire->box), path, mode, &created, &err) < 0) {
        file_error(wire, channel, &err);
        return;
    }
    note(wire, "mkdir", file_call(path));
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_CREATED, created);
    wire_send_reply(wire, channel, FRAME_RESULT, &reply);
}

/* --- replacing --------------------------------------------------------------------------------
 */

static size_t count_matches(const struct content *content, const struct field *old)
{
    const uint8_t *at = content->bytes, *end = content->bytes + content->len;
    size_t count = 0;

    while ((at = memmem(at, (size_t)(end - at), old->data, old->len)) != NULL) {
        count++;
        at += old->len;
    }
    return count;
}

static struct content *replaced(const struct content *content, const struct field *old,
                                const struct field *new, size_t count)
{
    struct content *result =
        content_new(NULL, content->len - count * old->len + count * (size_t) new->len);
    const uint8_t *from = content->bytes, *end = content->bytes + content->len;
    uint8_t *to = result->bytes;

    for (; count > 0; count--) {
        const uint8_t *match = memmem(from, (size_t)(end - from), old->data, old->len);

        memcpy(to, from, (size_t)(match - from));
        to += match - from;
        memcpy(to, new->data, new->len);
        to += new->len;
        from = match + old->len;
    }
    memcpy(to, from, (size_t)(end - from));
    return result;
}

static void refuse_count(struct wire *wire, uint32_t channel, const char *path, size_t count)
{
    struct reply reply;

    reply_init(&reply);
    reply_error(&reply, "conflict", "%.512s: the text is there %zu times", path, count);
    field_put_u64(&reply.fields, TAG_COUNT, count);
    wire_send_reply(wire, channel, FRAME_RESULT, &reply);
}

/* False, with ERR, when the result would not fit. */
static bool write_replaced(struct wire *wire, const struct node **node, const struct field *old,
                           const struct field *new, size_t count, struct err *err)
{
    struct disk *disk = disk_of(wire->box);
    size_t more = new->len > old->len ? count *(size_t)(new->len - old->len) : 0;
    cleanup_free char *path = xstrdup((*node)->path);

    if (more > disk->space->max)
        return err_set(err, ERR_NO_SPACE, "%s: the result would be too large", path) == 0;
    struct content *content = replaced((*node)->content, old, new, count);
    int result = disk_write(disk, path, content, -1, node, err);
    content_unref(content);
    return result == 0;
}

static void open_replace(struct wire *wire, uint32_t channel, const struct message *message)
{
    struct field old = {0}, new = {.data = (const uint8_t *)""};
    uint64_t wanted = message_u64(message, TAG_COUNT, 0);
    char path[CAP_PATH];
    const struct node *node;
    struct json *call;
    struct reply reply;
    struct err err;

    if (!file_path(wire, channel, message, TAG_PATH, path) ||
        !need_file(wire, channel, path, &node))
        return;
    if (!message_find(message, TAG_OLD, &old) || old.len == 0) {
        wire_send_error(wire, channel, "invalid_field", "OLD is missing or empty");
        return;
    }
    (void)message_find(message, TAG_NEW, &new);
    if (!file_matches(wire, channel, message, node))
        return;
    size_t count = count_matches(node->content, &old);
    if (count == 0 || (wanted != 0 && wanted != count)) {
        refuse_count(wire, channel, path, count);
        return;
    }
    if (!write_replaced(wire, &node, &old, &new, count, &err)) {
        file_error(wire, channel, &err);
        return;
    }
    call = file_call(path);
    calls_put_bytes(call, "old", (struct str){(const char *)old.data, old.len}, old.len);
    calls_put_bytes(call, "new", (struct str){(const char *)new.data, new.len}, new.len);
    json_set_int(call, "count", (int64_t)count);
    note(wire, "replace", call);
    reply_init(&reply);
    file_put_etag(&reply, node);
    field_put_u64(&reply.fields, TAG_COUNT, count);
    wire_send_reply(wire, channel, FRAME_RESULT, &reply);
}

/* --- ports and usage --------------------------------------------------------------------------
 */

static void answer_ready(struct wire *wire, uint32_t channel, bool ready)
{
    struct reply reply;

    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_READY, ready);
    wire_send_reply(wire, channel, FRAME_RESULT, &reply);
}

static void on_wait_over(struct timer *timer)
{
    struct transfer *transfer = container_of(timer, struct transfer, timer);

    answer_ready(transfer->wire, transfer->channel, false);
    transfer_end(transfer);
}

/* Whatever was started serves its port; one that has ended at once never will. */
static void open_port_wait(struct wire *wire, uint32_t channel, const struct message *message)
{
    uint64_t timeout_ms = message_u64(message, TAG_TIMEOUT_MS, 0);
    struct transfer *transfer;

    if (!wire->box->service_ended) {
        answer_ready(wire, channel, true);
        return;
    }
    transfer = transfer_new(wire, channel);
    if (transfer == NULL)
        return;
    transfer->timer.fire = on_wait_over;
    timer_start(wire->loop, &transfer->timer,
                timeout_ms < INT32_MAX ? (int64_t)timeout_ms : INT32_MAX);
}

static void open_usage(struct wire *wire, uint32_t channel)
{
    const struct disk *disk = &wire->box->disk;
    struct reply reply;
    uint64_t bytes = 0;

    for (size_t i = 0; i < disk->count; i++)
        bytes += disk->nodes[i].content != NULL ? disk->nodes[i].content->len : 0;
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_MEMORY, bytes);
    field_put_u64(&reply.fields, TAG_CPU_US, 0);
    field_put_u64(&reply.fields, TAG_PIDS, 1 + wire->box->exec_count);
    field_put_u64(&reply.fields, TAG_OOM_KILLS, 0);
    field_put_u64(&reply.fields, TAG_DISK, bytes);
    wire_send_reply(wire, channel, FRAME_RESULT, &reply);
}

void file_open(struct wire *wire, uint32_t channel, uint64_t op, const struct message *message)
{
    static const struct {
        enum proto_op op;
        void (*open)(struct wire *wire, uint32_t channel, const struct message *message);
    } table[] = {
        {OP_READ, open_read},           {OP_WRITE, upload_open},    {OP_STAT, open_stat},
        {OP_REMOVE, open_remove},       {OP_TREE, open_tree},       {OP_MOVE, open_move},
        {OP_MODE, open_mode},           {OP_REPLACE, open_replace}, {OP_MKDIR, open_mkdir},
        {OP_PORT_WAIT, open_port_wait}, {OP_PACK, archive_open},    {OP_UNPACK, upload_open},
    };

    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (table[i].op == op) {
            table[i].open(wire, channel, message);
            return;
        }
    }
    if (op == OP_PORT_CLOSE)
        wire_send(wire, channel, FRAME_RESULT, NULL, 0);
    else if (op == OP_USAGE)
        open_usage(wire, channel);
    else if (op == OP_DIAL)
        wire_send_error(wire, channel, "not_supported",
                        "nothing listens in a sandbox of the fake driver: its programs do not run");
    else
        wire_send_error(wire, channel, "not_supported",
                        "the fake driver has no operation %llu of an agent",
                        (unsigned long long)op);
}
