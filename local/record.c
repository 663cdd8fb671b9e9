#include "local/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/json.h"
#include "local/place.h"

#define RECORD "record"
#define RECORD_NEW "record.new"
#define RECORD_MAX (16 * KIB)

/* --- reading ------------------------------------------------------------------------------------
 */

static bool read_whole(int fd, struct buf *text)
{
    for (;;) {
        char *room = buf_reserve(text, 4 * KIB);
        ssize_t n = room ? read(fd, room, 4 * KIB) : -1;
        if (n <= 0)
            return n == 0;
        buf_grew(text, (size_t)n);
    }
}

static void take(const struct json *json, const char *name, char *ret_text, size_t size)
{
    const char *text = json_get_text(json, name);

    (void)snprintf(ret_text, size, "%s", text ? text : "");
}

static struct process_id take_process(const struct json *json, const char *name)
{
    const struct json *process = json_get(json, name);

    return (struct process_id){
        .pid = (pid_t)json_get_int(process, "pid", 0),
        .started = (uint64_t)json_get_int(process, "started", 0),
    };
}

static const char *const controllers[CGROUP_COUNT] = {
    [CGROUP_MEMORY] = "memory",
    [CGROUP_CPU] = "cpu",
    [CGROUP_CPUACCT] = "cpuacct",
    [CGROUP_PIDS] = "pids",
};

static void take_cgroup(const struct json *json, struct cgroup_paths *ret_paths)
{
    const struct json *cgroup = json_get(json, "cgroup");

    for (int which = 0; which < CGROUP_COUNT; which++)
        take(cgroup, controllers[which], ret_paths->paths[which], CGROUP_PATH_LEN);
}

int record_read(int dir, struct box_record *ret_record, struct err *err)
{
    cleanup_buf struct buf text = BUF_INIT(RECORD_MAX);
    cleanup_json struct json *json = NULL;
    cleanup_fd int fd = openat(dir, RECORD, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return err_errno(err, ERR_BACKEND_NOT_FOUND, errno, "open the record");
    if (!read_whole(fd, &text) ||
        json_parse(buf_text(&text), text.len, JSON_STRICT, &json, NULL) < 0)
        return err_set(err, ERR_BACKEND_NOT_FOUND, "the record is not readable");
    *ret_record = (struct box_record){
        .created_ms = json_get_int(json, "created_ms", 0),
        .storage = (uint64_t)json_get_int(json, "storage", 0),
        .pids = (uint64_t)json_get_int(json, "pids", 0),
        .host_uid = (uid_t)json_get_int(json, "host_uid", 0),
        .bwrap = take_process(json, "bwrap"),
        .agent = take_process(json, "agent"),
    };
    take(json, "instance", ret_record->instance, sizeof(ret_record->instance));
    take(json, "id", ret_record->id, sizeof(ret_record->id));
    take(json, "uid", ret_record->uid, sizeof(ret_record->uid));
    take(json, "owner", ret_record->owner, sizeof(ret_record->owner));
    take(json, "digest", ret_record->digest, sizeof(ret_record->digest));
    take(json, "image", ret_record->image, sizeof(ret_record->image));
    take(json, "image_digest", ret_record->image_digest, sizeof(ret_record->image_digest));
    take(json, "workdir", ret_record->workdir, sizeof(ret_record->workdir));
    take(json, "cpu", ret_record->cpu_limit, sizeof(ret_record->cpu_limit));
    take(json, "boot", ret_record->boot, sizeof(ret_record->boot));
    take(json, "memory", ret_record->memory_limit, sizeof(ret_record->memory_limit));
    take_cgroup(json, &ret_record->cgroup);
    if (!ret_record->id[0] || !ret_record->uid[0])
        return err_set(err, ERR_BACKEND_NOT_FOUND, "the record is not complete");
    return 0;
}

/* --- writing ------------------------------------------------------------------------------------
 */

static void put_process(struct json *json, const char *name, const struct process_id *id)
{
    struct json *process = json_set_object(json, name);

    json_set_int(process, "pid", id->pid);
    json_set_int(process, "started", (int64_t)id->started);
}

static bool print(const struct box_record *record, struct buf *text)
{
    cleanup_json struct json *json = json_new_object();

    json_set_text(json, "instance", record->instance);
    json_set_text(json, "id", record->id);
    json_set_text(json, "uid", record->uid);
    json_set_text(json, "owner", record->owner);
    json_set_text(json, "digest", record->digest);
    json_set_text(json, "image", record->image);
    json_set_text(json, "image_digest", record->image_digest);
    json_set_text(json, "workdir", record->workdir);
    json_set_text(json, "cpu", record->cpu_limit);
    json_set_text(json, "memory", record->memory_limit);
    json_set_text(json, "boot", record->boot);
    json_set_int(json, "created_ms", record->created_ms);
    json_set_int(json, "storage", (int64_t)record->storage);
    json_set_int(json, "pids", (int64_t)record->pids);
    struct json *cgroup = json_set_object(json, "cgroup");
    for (int which = 0; which < CGROUP_COUNT; which++)
        json_set_text(cgroup, controllers[which], record->cgroup.paths[which]);
    json_set_int(json, "host_uid", record->host_uid);
    put_process(json, "bwrap", &record->bwrap);
    put_process(json, "agent", &record->agent);
    return json_print(json, text) && buf_append_char(text, '\n');
}

/* Not synced: after a crash of the machine there is no box either. */
int record_write(int dir, const struct box_record *record, struct err *err)
{
    cleanup_buf struct buf text = BUF_INIT(RECORD_MAX);
    cleanup_fd int fd =
        openat(dir, RECORD_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return place_write_error(err, errno, "make the record of a box");
    if (!print(record, &text))
        return err_set(err, ERR_BACKEND, "the record of a box is too long");
    errno = ENOSPC;
    if (write(fd, buf_text(&text), text.len) != (ssize_t)text.len ||
        renameat(dir, RECORD_NEW, dir, RECORD) < 0)
        return place_write_error(err, errno, "write the record of a box");
    return 0;
}
