#include "agent/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/proto.h"

/* --- packets -------------------------------------------------------------------------------------
 */

static bool send_packet(struct worker *worker, const uint8_t *packet, size_t len)
{
    for (;;) {
        ssize_t count = send(worker->fd, packet, len, MSG_NOSIGNAL);
        if (count >= 0)
            return true;
        if (errno != EINTR) {
            worker->cancelled = true;
            return false;
        }
    }
}

static void send_reply(struct worker *worker, uint8_t type, const struct reply *reply)
{
    uint8_t packet[FRAME_HEADER_LEN + sizeof(reply->room)];
    frame_header_write(packet, worker->channel, type, reply->fields.len);
    memcpy(packet + FRAME_HEADER_LEN, reply->room, reply->fields.len);
    (void)send_packet(worker, packet, FRAME_HEADER_LEN + reply->fields.len);
}

void worker_reply(struct worker *worker, uint8_t type, const struct reply *reply)
{
    if (worker->answered)
        return;
    worker->answered = type == FRAME_RESULT;
    send_reply(worker, type, reply);
}

struct reply *worker_failure(struct worker *worker)
{
    if (worker->answered)
        return NULL;
    worker->answered = worker->failed = true;
    reply_init(&worker->failure);
    return &worker->failure;
}

void worker_error(struct worker *worker, const char *code, const char *format, ...)
{
    int errnum = errno; /* for %m */
    struct reply *failure = worker_failure(worker);
    char text[512];
    va_list args;
    if (failure == NULL)
        return;
    va_start(args, format);
    errno = errnum;
    /* clang 14 does not see va_start() through calls. */
    (void)vsnprintf(text, sizeof(text), format, args); /* NOLINT(clang-analyzer-valist.*) */
    va_end(args);
    reply_error(failure, code, "%s%s%s", worker->subject, worker->subject[0] != '\0' ? ": " : "",
                text);
}

void worker_errno(struct worker *worker)
{
    worker_error(worker, errno_code(errno), "%m");
}

/* Cut at a character border: its end, which tells files apart, stays. */
void worker_about(struct worker *worker, const char *path)
{
    size_t len = strlen(path);
    const char *from = path, *cut = "";
    if (len >= sizeof(worker->subject)) {
        cut = "...";
        from = path + len - (sizeof(worker->subject) - sizeof("..."));
        while (((unsigned char)*from & 0xc0u) == 0x80u)
            from++;
    }
    (void)snprintf(worker->subject, sizeof(worker->subject), "%s%s", cut, from);
}

void worker_refuse(int fd, int errnum)
{
    struct worker worker = {.fd = fd};
    errno = errnum;
    worker_error(&worker, "busy", "new process: %m");
    send_reply(&worker, FRAME_RESULT, &worker.failure);
}

static bool take_credit(struct worker *worker, const struct frame *frame)
{
    struct frame_credit credit;
    if (frame->type != FRAME_CREDIT)
        return false;
    if (frame_credit_read(frame, &credit) && credit.stream == 1 && credit.limit > worker->limit)
        worker->limit = credit.limit;
    return true;
}

/* Receives one packet; 0: none now (only with MSG_DONTWAIT), -1: no more will come. */
static int receive(struct worker *worker, int flags, struct frame *ret_frame)
{
    for (;;) {
        ssize_t count = recv(worker->fd, worker->packet, sizeof(worker->packet), flags);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            return 0;
        if (count < FRAME_HEADER_LEN) {
            worker->cancelled = true;
            return -1;
        }
        ret_frame->channel = wire_u32(worker->packet + 4);
        ret_frame->type = worker->packet[8];
        ret_frame->payload = worker->packet + FRAME_HEADER_LEN;
        ret_frame->len = (size_t)count - FRAME_HEADER_LEN;
        worker->cancelled = worker->cancelled || ret_frame->type == FRAME_CANCEL;
        return 1;
    }
}

bool worker_receive(struct worker *worker, struct frame *ret_frame)
{
    do {
        if (receive(worker, 0, ret_frame) <= 0 || worker->cancelled)
            return false;
    } while (take_credit(worker, ret_frame));
    return true;
}

bool worker_is_cancelled(struct worker *worker)
{
    struct frame frame = {0};
    while (!worker->cancelled && receive(worker, MSG_DONTWAIT, &frame) > 0)
        (void)take_credit(worker, &frame);
    return worker->cancelled;
}

/* --- stream 1 ------------------------------------------------------------------------------------
 */

uint8_t *worker_room(struct worker *worker)
{
    return worker->data + FRAME_HEADER_LEN + FRAME_DATA_HEADER;
}

bool worker_send(struct worker *worker, size_t len)
{
    while (len > 0) {
        struct frame frame = {0};
        if (worker_is_cancelled(worker))
            return false;
        if (worker->limit <= worker->sent) {
            if (receive(worker, 0, &frame) <= 0 || worker->cancelled)
                return false;
            (void)take_credit(worker, &frame);
            continue;
        }
        uint64_t granted = worker->limit - worker->sent;
        size_t count = granted < len ? (size_t)granted : len;
        frame_header_write(worker->data, worker->channel, FRAME_DATA, FRAME_DATA_HEADER + count);
        frame_data_header_write(worker->data + FRAME_HEADER_LEN, 1, worker->sent);
        if (!send_packet(worker, worker->data, FRAME_HEADER_LEN + FRAME_DATA_HEADER + count))
            return false;
        worker->sent += count;
        len -= count;
        if (len > 0)
            memmove(worker_room(worker), worker_room(worker) + count, len);
    }
    return true;
}

bool worker_write(struct worker *worker, const void *data, size_t len)
{
    const uint8_t *ptr = data;
    while (len > 0) {
        size_t count = FRAME_DATA_MAX - worker->filled;
        if (count > len)
            count = len;
        memcpy(worker_room(worker) + worker->filled, ptr, count);
        worker->filled += count;
        ptr += count;
        len -= count;
        if (worker->filled == FRAME_DATA_MAX) {
            worker->filled = 0;
            if (!worker_send(worker, FRAME_DATA_MAX))
                return false;
        }
    }
    return true;
}

bool worker_flush(struct worker *worker)
{
    size_t left = worker->filled;
    worker->filled = 0;
    return worker_send(worker, left);
}

bool worker_end(struct worker *worker)
{
    uint8_t packet[FRAME_HEADER_LEN + FRAME_DATA_HEADER];
    if (!worker_flush(worker))
        return false;
    frame_header_write(packet, worker->channel, FRAME_END, FRAME_DATA_HEADER);
    frame_data_header_write(packet + FRAME_HEADER_LEN, 1, worker->sent);
    return send_packet(worker, packet, sizeof(packet));
}

/* --- fields --------------------------------------------------------------------------------------
 */

bool worker_path(struct worker *worker, uint16_t tag, char *buffer)
{
    struct field field;
    if (!message_find(&worker->request, tag, &field) || memchr(field.data, 0, field.len) != NULL) {
        worker_error(worker, "invalid_path", "a path is missing or has a NUL byte");
        return false;
    }
    if (field.len >= PATH_MAX) {
        worker_error(worker, "name_too_long", "the path is longer than %d bytes", PATH_MAX - 1);
        return false;
    }
    memcpy(buffer, field.data, field.len);
    buffer[field.len] = '\0';
    if (field.len == 0)
        memcpy(buffer, ".", 2);
    if (tag == TAG_PATH)
        worker_about(worker, buffer);
    if (buffer[0] != '/' && worker->workdir_errno != 0) {
        errno = worker->workdir_errno;
        worker_error(worker, "workdir_not_found", "workdir: %m");
        return false;
    }
    return true;
}

void etag_of(const struct stat *status, char ret_text[ETAG_LEN])
{
    uint64_t mtime =
        (uint64_t)status->st_mtim.tv_sec * 1000000000u + (uint64_t)status->st_mtim.tv_nsec;
    (void)snprintf(ret_text, ETAG_LEN, "%llu-%llu-%llu", (unsigned long long)status->st_ino,
                   (unsigned long long)status->st_size, (unsigned long long)mtime);
}

static const char *type_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "f";
    case S_IFDIR:
        return "d";
    case S_IFLNK:
        return "l";
    case S_IFIFO:
        return "p";
    case S_IFSOCK:
        return "s";
    case S_IFBLK:
        return "b";
    default:
        return "c";
    }
}

void put_entry(struct field_writer *fields, const struct stat *status)
{
    int64_t mtime_ms = (int64_t)status->st_mtim.tv_sec * 1000 + status->st_mtim.tv_nsec / 1000000;
    field_put_text(fields, TAG_TYPE, type_of(status->st_mode));
    field_put_u64(fields, TAG_SIZE, (uint64_t)status->st_size);
    field_put_u64(fields, TAG_MODE, status->st_mode & 07777u);
    field_put_u64(fields, TAG_MTIME_MS, (uint64_t)mtime_ms);
}

void put_etag(struct field_writer *fields, const struct stat *status)
{
    char text[ETAG_LEN];
    etag_of(status, text);
    field_put_text(fields, TAG_ETAG, text);
}

/* --- life ----------------------------------------------------------------------------------------
 */

static bool read_request(struct worker *worker)
{
    struct frame frame;
    do {
        if (!worker_receive(worker, &frame))
            return false;
        uint8_t *data = realloc(worker->request.data, worker->request.len + frame.len + 1);
        if (data == NULL)
            return false;
        memcpy(data + worker->request.len, frame.payload, frame.len);
        worker->request.data = data;
        worker->request.len += frame.len;
    } while (frame.type == FRAME_PART);
    worker->channel = frame.channel;
    return frame.type == FRAME_OPEN;
}

static void enter_workdir(struct worker *worker)
{
    char path[PATH_MAX];
    if (message_text(&worker->request, TAG_WORKDIR, path, sizeof(path)) > 0 && chdir(path) < 0)
        worker->workdir_errno = errno;
}

static void raise_files_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

_Noreturn void worker_run(int fd)
{
    static const struct {
        enum proto_op op;
        void (*run)(struct worker *worker);
    } table[] = {
        {OP_READ, op_read},           {OP_WRITE, op_write},     {OP_STAT, op_stat},
        {OP_REMOVE, op_remove},       {OP_TREE, op_tree},       {OP_MOVE, op_move},
        {OP_MODE, op_mode},           {OP_REPLACE, op_replace}, {OP_MKDIR, op_mkdir},
        {OP_PORT_WAIT, op_port_wait}, {OP_USAGE, op_usage},     {OP_PS, op_ps},
        {OP_PACK, op_pack},           {OP_UNPACK, op_unpack},   {OP_WATCH, op_watch},
    };
    static struct worker worker;
    worker.fd = fd;
    worker.limit = PROTO_WINDOW;
    umask(022);
    raise_files_limit();
    if (!read_request(&worker))
        _exit(0);
    enter_workdir(&worker);
    uint64_t op = message_u64(&worker.request, TAG_OP, 0);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].op == op)
            table[i].run(&worker);
    }
    if (worker.cancelled)
        worker_error(&worker, "cancelled", "the request was cancelled");
    worker_error(&worker, "not_supported", "unknown operation %llu", (unsigned long long)op);
    if (worker.failed)
        send_reply(&worker, FRAME_RESULT, &worker.failure);
    _exit(0);
}
