/* OP_PS: the sandbox's processes and who listens, from /proc. The agent's own processes are left
 * out. gVisor's /proc has fewer fields: those that are not there are not told. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/dirents.h"
#include "agent/number.h"
#include "agent/port.h"
#include "agent/process_stat.h"
#include "agent/worker.h"

#define PROCESSES_MAX 32768
#define COMMAND_MAX 4096
#define ARGS_MAX 256
#define ENTRY_MAX (COMMAND_MAX + ARGS_MAX * 6 + 1024)

struct process {
    pid_t pid, parent;
};

struct known { /* PID 1 has told */
    pid_t pid;
    struct field exec_id; /* data NULL: the helper */
};

struct ps {
    struct worker *worker;
    struct known *known;
    size_t known_count;
    struct process *processes;
    size_t count;
};

/* --- whose they are ------------------------------------------------------------------------------
 */

static void read_known(struct ps *ps)
{
    const struct message *request = &ps->worker->request;
    struct field_reader reader;
    struct field field, id = {.data = NULL};
    uint64_t pid;
    ps->known = calloc(message_count(request, TAG_PID) + 1, sizeof(*ps->known));
    field_reader_init(&reader, request->data, request->len);
    while (ps->known != NULL && field_next(&reader, &field)) {
        if (field.tag == TAG_EXEC_ID)
            id = field;
        if (field.tag != TAG_PID || !field_u64(&field, &pid) || pid > INT32_MAX)
            continue;
        ps->known[ps->known_count++] = (struct known){.pid = (pid_t)pid, .exec_id = id};
        id.data = NULL;
    }
}

static int known_index(const struct ps *ps, pid_t pid)
{
    for (size_t i = 0; i < ps->known_count; i++) {
        if (ps->known[i].pid == pid)
            return (int)i;
    }
    return -1;
}

static int by_pid(const void *a, const void *b)
{
    pid_t first = ((const struct process *)a)->pid, second = ((const struct process *)b)->pid;
    return (first > second) - (first < second);
}

static const struct process *find(const struct ps *ps, pid_t pid)
{
    struct process key = {.pid = pid};
    return ps->count == 0 ? NULL : bsearch(&key, ps->processes, ps->count, sizeof(key), by_pid);
}

static void take_processes(struct ps *ps)
{
    struct dirents dirents;
    struct dirent_entry entry;
    struct process_stat line;
    uint64_t pid;
    int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ps->processes = calloc(PROCESSES_MAX, sizeof(*ps->processes));
    if (fd < 0 || ps->processes == NULL)
        return;
    dirents_init(&dirents, fd);
    while (ps->count < PROCESSES_MAX && dirents_next(&dirents, &entry)) {
        if (!number_read(entry.name, INT32_MAX, &pid, NULL) ||
            !process_stat_read((pid_t)pid, &line))
            continue;
        ps->processes[ps->count++] =
            (struct process){.pid = (pid_t)pid, .parent = (pid_t)line.fields[4]};
    }
    close(fd);
    qsort(ps->processes, ps->count, sizeof(*ps->processes), by_pid);
}

/* Up to the first that PID 1 knows, if any: no farther than there are processes. */
static int owner_of(const struct ps *ps, const struct process *process)
{
    for (size_t steps = 0; process != NULL && steps <= ps->count; steps++) {
        int index = known_index(ps, process->pid);
        if (index >= 0)
            return index;
        process = find(ps, process->parent);
    }
    return -1;
}

/* --- one entry -----------------------------------------------------------------------------------
 */

static bool send_entry(struct worker *worker, const struct field_writer *fields)
{
    uint8_t length[4];
    wire_put_u32(length, (uint32_t)fields->len);
    return worker_write(worker, length, sizeof(length)) &&
           worker_write(worker, fields->ptr, fields->len);
}

static void put_command(pid_t pid, struct field_writer *fields)
{
    static char text[COMMAND_MAX + 1];
    ssize_t len = process_file_read(pid, "cmdline", text, sizeof(text));
    bool cut = len > COMMAND_MAX;
    size_t end = cut ? COMMAND_MAX : len > 0 ? (size_t)len : 0;
    size_t at = 0, count = 0;
    for (; at < end && count < ARGS_MAX; count++) {
        size_t arg = strnlen(text + at, end - at);
        field_put(fields, TAG_ARG, text + at, arg);
        at += arg + 1;
    }
    if (cut || at < end)
        field_put_u64(fields, TAG_CUT, 1);
}

static void put_times(const struct process_stat *line, struct field_writer *fields)
{
    long ticks = sysconf(_SC_CLK_TCK), page = sysconf(_SC_PAGESIZE);
    struct timespec now;
    if (ticks <= 0 || page <= 0)
        return;
    if (line->last >= 15)
        field_put_u64(fields, TAG_CPU_US,
                      (line->fields[14] + line->fields[15]) * 1000000 / (uint64_t)ticks);
    if (line->last >= 24)
        field_put_u64(fields, TAG_MEMORY, line->fields[24] * (uint64_t)page);
    if (line->last < 22 || clock_gettime(CLOCK_BOOTTIME, &now) < 0)
        return;
    uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    uint64_t began_ms = line->fields[22] * 1000 / (uint64_t)ticks;
    if (began_ms <= now_ms)
        field_put_u64(fields, TAG_AGE_MS, now_ms - began_ms);
}

static bool send_process(const struct ps *ps, const struct process *process)
{
    static uint8_t room[ENTRY_MAX];
    struct field_writer fields = {.ptr = room, .cap = sizeof(room)};
    struct process_stat line;
    int owner = owner_of(ps, process);
    bool own = process->pid == 1 || known_index(ps, process->pid) >= 0 ||
               (owner >= 0 && ps->known[owner].exec_id.data == NULL);
    if (own || !process_stat_read(process->pid, &line))
        return true; /* ours, or it has ended meanwhile */
    bool below_ours = process->parent == 1 || known_index(ps, process->parent) >= 0;
    field_put_text(&fields, TAG_TYPE, "p");
    field_put_u64(&fields, TAG_PID, (uint64_t)process->pid);
    if (!below_ours)
        field_put_u64(&fields, TAG_PPID, (uint64_t)process->parent);
    if (owner >= 0)
        field_put(&fields, TAG_EXEC_ID, ps->known[owner].exec_id.data,
                  ps->known[owner].exec_id.len);
    field_put(&fields, TAG_STATE, &line.state, 1);
    field_put_text(&fields, TAG_NAME, line.name);
    put_times(&line, &fields);
    put_command(process->pid, &fields);
    return send_entry(ps->worker, &fields);
}

static void send_listener(void *arg, const struct port_listener *listener)
{
    struct ps *ps = arg;
    uint8_t room[128];
    char address[INET6_ADDRSTRLEN] = "";
    struct field_writer fields = {.ptr = room, .cap = sizeof(room)};
    int family = listener->count == 1 ? AF_INET : AF_INET6;
    if (inet_ntop(family, listener->words, address, sizeof(address)) == NULL)
        return;
    field_put_text(&fields, TAG_TYPE, "l");
    field_put_u64(&fields, TAG_PORT, listener->port);
    field_put_text(&fields, TAG_ADDRESS, address);
    (void)send_entry(ps->worker, &fields); /* the end fails then, too */
}

static bool send_processes(struct ps *ps)
{
    for (size_t i = 0; i < ps->count; i++) {
        if (!send_process(ps, &ps->processes[i]))
            return false;
    }
    return true;
}

void op_ps(struct worker *worker)
{
    struct ps ps = {.worker = worker};
    struct reply reply;
    read_known(&ps);
    take_processes(&ps);
    bool sent = send_processes(&ps);
    free(ps.known);
    free(ps.processes);
    if (!sent)
        return;
    bool known4 = port_each("/proc/net/tcp", send_listener, &ps);
    bool known6 = port_each("/proc/net/tcp6", send_listener, &ps);
    if (!worker_end(worker))
        return;
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_PORTS, known4 || known6);
    worker_reply(worker, FRAME_RESULT, &reply);
}
