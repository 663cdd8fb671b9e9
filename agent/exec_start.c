#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/descriptors.h"
#include "agent/environment.h"
#include "agent/exec.h"
#include "agent/exec_kill.h"
#include "agent/shell.h"

#define GRACE_DEFAULT_MS 2000
#define TIME_MAX_MS (INT64_C(1) << 53)
#define LINGERING_MAX 1024

/* --- the supervisor's socket ---------------------------------------------------------------------
 */

void exec_order(struct exec *exec, int signal, enum proto_scope scope, int64_t grace_ms)
{
    struct supervisor_order order = {.signal = signal, .scope = scope, .grace_ms = grace_ms};
    if (exec->control.fd >= 0)
        (void)send(exec->control.fd, &order, sizeof(order), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void main_ended(struct exec *exec)
{
    struct agent *agent = exec->agent;
    exec->exited = true;
    agent->running--;
    if (exec->terminal.fd >= 0)
        close(exec->terminal.fd);
    exec->terminal.fd = -1;
    input_close(agent, &exec->in);
    output_main_ended(&exec->out[0]);
    output_main_ended(&exec->out[1]);
    exec_wake(exec);
}

/* The supervisor ends after its whole tree; earlier only if someone has killed it. */
static void supervisor_gone(struct exec *exec)
{
    struct agent *agent = exec->agent;
    loop_close(&agent->loop, &exec->control);
    if (exec->shell.host != 0) {
        pid_t id = exec->supervisor;
        exec->supervisor = 0;
        exec_kill_done(agent, id);
    }
    if (!exec->exited) {
        const struct supervisor_report ended = {.kind = REPORT_FAILED, .stage = SPAWN_SESSION};
        if (exec->shell.host != 0 && !exec->started) /* it was still on its way */
            exec_failed(exec, &ended);
        else
            exec_lost(exec, "the process that looked after it was killed");
        main_ended(exec); /* its tree ends when the reaper gets to it: exec_supervisor_reaped() */
    }
    exec_release(exec);
}

/* Its socket, and those of the texts that it had, end now: a session's supervisor may be traced,
 * and who has copies of its descriptors would keep them open. What it has said is still read. */
static bool clear_supervisor(struct exec *exec, pid_t pid)
{
    bool was = false;
    for (; exec != NULL; exec = exec->next) {
        bool own = exec->supervisor == pid;
        if ((own || exec->shell.host == pid) && exec->control.fd >= 0)
            (void)shutdown(exec->control.fd, SHUT_RDWR); /* fails when it has ended already */
        if (own)
            exec->supervisor = 0;
        was = was || own;
    }
    return was;
}

bool exec_supervisor_reaped(struct agent *agent, pid_t pid)
{
    bool was = clear_supervisor(agent->execs, pid);
    was = clear_supervisor(agent->lingering, pid) || was;
    exec_kill_done(agent, pid);
    return was;
}

static struct exec *find_host(const struct agent *agent, pid_t host)
{
    struct exec *exec = agent->execs;
    while (exec != NULL && (!exec->shell.kept || exec->supervisor != host))
        exec = exec->next;
    return exec;
}

static void set_directory(struct exec *exec, const char *directory, size_t len)
{
    free(exec->shell.directory);
    exec->shell.directory = len > 0 ? strndup(directory, len) : NULL;
}

/* A session's is where its last text has left it. */
static void take_directory(struct exec *exec, const char *directory, size_t len)
{
    struct exec *host = exec->shell.host != 0 ? find_host(exec->agent, exec->shell.host) : NULL;
    set_directory(exec, directory, len);
    if (host != NULL)
        set_directory(host, directory, len);
}

static void on_report(struct watch *watch, uint32_t events)
{
    (void)events;
    struct exec *exec = (struct exec *)(void *)((char *)watch - offsetof(struct exec, control));
    struct {
        struct supervisor_report report;
        char directory[PATH_MAX];
    } packet;
    ssize_t count = packet_receive(watch->fd, &packet, sizeof(packet));
    const struct supervisor_report report = packet.report;
    if (count < 0 && errno == EAGAIN)
        return;
    if (count < (ssize_t)sizeof(report)) {
        supervisor_gone(exec);
        return;
    }
    if (exec->shell.kept || exec->shell.host != 0)
        take_directory(exec, packet.directory, (size_t)count - sizeof(report));
    if (report.kind == REPORT_STARTED) {
        exec->started = true;
        exec->pid = report.pid;
        exec_wake(exec);
    } else if (!exec->exited && report.kind == REPORT_FAILED) {
        exec_failed(exec, &report);
        main_ended(exec);
    } else if (!exec->exited) {
        exec_exited(exec, &report);
        main_ended(exec);
    }
}

/* --- the pipes
 * ------------------------------------------------------------------------------------ */

struct ends {
    int parent[4], child[4]; /* 0, 1, 2 and the control socket */
};

static void close_all(int fds[4])
{
    for (int i = 0; i < 4; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

static int open_pipe(struct ends *ends, int index)
{
    int pair[2];
    bool input = index == 0;
    if (pipe2(pair, O_CLOEXEC) < 0)
        return -1;
    ends->parent[index] = pair[input];
    ends->child[index] = pair[!input];
    return fcntl(ends->parent[index], F_SETFL, O_NONBLOCK);
}

/* Our end twice: written and read apart. */
static int open_terminal(struct terminal *terminal, struct ends *ends)
{
    if (terminal_open(terminal, &ends->parent[1]) < 0)
        return -1;
    ends->parent[0] = fcntl(ends->parent[1], F_DUPFD_CLOEXEC, 3);
    for (int i = 0; i < 3; i++) {
        ends->child[i] = fcntl(terminal->fd, F_DUPFD_CLOEXEC, 3);
        if (ends->child[i] < 0)
            return -1;
    }
    return ends->parent[0] < 0 ? -1 : 0;
}

static int open_pipes(struct ends *ends, bool input)
{
    if (!input)
        ends->child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (ends->child[0] < 0 && open_pipe(ends, 0) < 0)
        return -1;
    if (!input && ends->parent[0] >= 0) { /* an image without /dev/null: a pipe at its end */
        close(ends->parent[0]);
        ends->parent[0] = -1;
    }
    return open_pipe(ends, 1) < 0 ? -1 : open_pipe(ends, 2);
}

static int open_ends(const struct agent *agent, struct ends *ends, struct terminal *terminal,
                     bool input)
{
    int pair[2];
    *ends = (struct ends){.parent = {-1, -1, -1, -1}, .child = {-1, -1, -1, -1}};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    ends->parent[3] = pair[0];
    ends->child[3] = pair[1];
    if ((terminal->columns > 0 ? open_terminal(terminal, ends) : open_pipes(ends, input)) < 0)
        return -1;
    if (agent_is_crowded(agent, ends->child[2])) {
        errno = EMFILE;
        return -1;
    }
    return 0;
}

/* --- the start
 * ------------------------------------------------------------------------------------ */

struct request {
    struct exec_spec spec;
    char workdir[PATH_MAX];
    char **args, **environment;
    const char *text; /* for a session: the last of the args */
    bool input;
    pid_t host; /* that session's supervisor; else 0 */
};

static int64_t duration(const struct message *message, uint16_t tag, int64_t missing)
{
    uint64_t value = message_u64(message, tag, (uint64_t)missing);
    return value < TIME_MAX_MS ? (int64_t)value : TIME_MAX_MS;
}

static const char *read_request(const struct message *message, struct request *request)
{
    size_t count = 0, arg_count = 0;
    *request = (struct request){
        .spec.timeout_ms = duration(message, TAG_TIMEOUT_MS, 0),
        .spec.grace_ms = duration(message, TAG_GRACE_MS, GRACE_DEFAULT_MS),
        .input = message_u64(message, TAG_STDIN, 0) != 0,
    };
    if (message_text(message, TAG_WORKDIR, request->workdir, sizeof(request->workdir)) < 0)
        return "invalid_field";
    request->args = message_texts(message, TAG_ARG, &arg_count);
    if (request->args == NULL)
        return errno == EINVAL ? "invalid_field" : "busy";
    if (arg_count == 0)
        return "invalid_field";
    request->environment = message_texts(message, TAG_ENV, &count);
    if (request->environment == NULL)
        return errno == EINVAL ? "invalid_field" : "busy";
    if (!environment_well_formed(request->environment))
        return "invalid_field";
    request->spec.shell = message_u64(message, TAG_OP, 0) == OP_SHELL;
    request->text = request->args[arg_count - 1];
    request->spec.args = request->args;
    request->spec.environment = request->environment;
    request->spec.workdir = request->workdir;
    return NULL;
}

static void open_exec(struct exec *exec, struct ends *ends, const struct message *message)
{
    struct agent *agent = exec->agent;
    exec->control = (struct watch){.fd = ends->parent[3], .ready = on_report};
    (void)loop_watch(&agent->loop, &exec->control, EPOLLIN);
    input_open(&exec->in, ends->parent[0]);
    exec->in.total = message_u64(message, TAG_STDIN_TOTAL, UINT64_MAX);
    if (exec->in.total == 0)
        input_close(agent, &exec->in);
    output_open(&exec->out[0], ends->parent[1]);
    output_open(&exec->out[1], ends->parent[2]);
}

/* Whole or not at all: the server could not mask a part of a secret. */
static void name_program(struct exec *exec, const char *name)
{
    size_t len = strlen(name);
    bool shown = len > 0 && len < sizeof(exec->program);
    (void)snprintf(exec->program, sizeof(exec->program), "%s", shown ? name : "exec");
}

/* The text as a file without a name, for the shell to read. */
static int open_text(const char *text)
{
    int fd = (int)syscall(SYS_memfd_create, "command", 1u); /* close-on-exec */
    for (size_t done = 0, len = strlen(text); fd >= 0 && done < len;) {
        ssize_t count = write(fd, text + done, len - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0) {
            close(fd);
            return -1;
        }
        done += (size_t)count;
    }
    return fd;
}

/* To the supervisor of its session's shell, instead of one of its own. */
static int hand_over(struct exec *exec, const struct request *request)
{
    const struct exec *host = find_host(exec->agent, exec->shell.host);
    const struct supervisor_order order = {.timeout_ms = request->spec.timeout_ms};
    const int *standard = request->spec.standard;
    int text = host != NULL ? open_text(request->text) : -1;
    int fds[RUN_FDS] = {request->spec.control, standard[0], standard[1], standard[2], text};
    if (text < 0)
        return errno;
    int errnum = shell_order_send(host->control.fd, &order, fds) < 0 ? errno : 0;
    close(text);
    exec->supervisor = --exec->agent->last_text;
    return errnum;
}

static int hand_on(struct exec *exec, struct request *request)
{
    struct agent *agent = exec->agent;
    if (exec->shell.host != 0)
        return hand_over(exec, request);
    request->spec.terminal = exec->terminal.columns > 0;
    exec->supervisor = agent_fork_for_command(agent);
    if (exec->supervisor == 0 && exec->shell.kept)
        shell_run(agent, &request->spec);
    if (exec->supervisor == 0)
        supervisor_run(agent, &request->spec);
    return exec->supervisor < 0 ? errno : 0;
}

static void run(struct exec *exec, struct request *request, const struct message *message)
{
    struct agent *agent = exec->agent;
    struct ends ends;
    int errnum = 0;
    name_program(exec, request->args[0]);
    agent->running++;
    enum spawn_stage stage = SPAWN_FORK;
    if (open_ends(agent, &ends, &exec->terminal, request->input) < 0) {
        errnum = errno;
        stage = exec->terminal.columns > 0 ? SPAWN_TERMINAL : SPAWN_FORK;
    } else {
        for (int i = 0; i < 3; i++)
            request->spec.standard[i] = ends.child[i];
        request->spec.control = ends.child[3];
        errnum = hand_on(exec, request);
    }
    close_all(ends.child);
    if (errnum == 0) {
        open_exec(exec, &ends, message);
        return;
    }
    close_all(ends.parent);
    exec->supervisor = 0;
    bool ended = exec->shell.host != 0 && (errnum == EPIPE || errnum == ECONNRESET);
    struct supervisor_report report = {.stage = ended ? SPAWN_SESSION : stage, .errnum = errnum};
    exec_failed(exec, &report);
    main_ended(exec);
}

/* Which session a text is for, and that it can take one. */
static const char *find_session(const struct agent *agent, const struct message *message,
                                pid_t *ret_host)
{
    char id[PROTO_EXEC_ID_MAX + 1];
    const struct exec *session = agent->execs;
    if (message_u64(message, TAG_OP, 0) != OP_SHELL_RUN)
        return NULL;
    if (message_text(message, TAG_SESSION, id, sizeof(id)) <= 0)
        return "invalid_field";
    while (session != NULL && (!session->shell.kept || strcmp(session->id, id) != 0))
        session = session->next;
    /* Its supervisor may have been killed, and waited for, before its socket ends. */
    if (session == NULL || !session->started || session->exited || session->control.fd < 0 ||
        session->supervisor == 0)
        return "session_ended";
    *ret_host = session->supervisor;
    for (const struct exec *exec = agent->execs; exec != NULL; exec = exec->next) {
        if (exec->shell.host == *ret_host && !exec->exited)
            return "session_busy";
    }
    return NULL;
}

static struct exec *new_exec(struct agent *agent, const char *id, const struct message *message)
{
    struct exec *exec = calloc(1, sizeof(*exec));
    if (exec == NULL)
        return NULL;
    exec->agent = agent;
    (void)snprintf(exec->id, sizeof(exec->id), "%s", id);
    exec->keep = message_u64(message, TAG_KEEP, 0) != 0;
    exec->grace_ms = duration(message, TAG_GRACE_MS, GRACE_DEFAULT_MS);
    exec->exit_code = -1;
    exec->control.fd = exec->in.watch.fd = exec->terminal.fd = -1;
    (void)terminal_wanted(message, &exec->terminal); /* else it is a command with pipes */
    for (uint8_t i = 0; i < 2; i++) {
        exec->out[i].exec = exec;
        exec->out[i].id = (uint8_t)(i + 1);
        exec->out[i].watch.fd = -1;
    }
    exec->oom_readable = cgroup_oom_kills(&agent->cgroup, &exec->oom_before);
    exec->alone = agent->running == 0;
    for (struct exec *other = agent->execs; other != NULL; other = other->next)
        other->alone = other->alone && other->exited;
    exec->next = agent->execs;
    agent->execs = exec;
    agent->exec_count++;
    return exec;
}

struct exec *exec_start(struct agent *agent, const char *id, const struct message *message,
                        const char **ret_problem)
{
    struct request request;
    struct exec *exec = NULL;
    const char *problem = read_request(message, &request);
    if (problem == NULL)
        problem = find_session(agent, message, &request.host);
    if (problem == NULL &&
        (agent->exec_count >= PROTO_EXECS || agent->lingering_count >= LINGERING_MAX))
        problem = "busy";
    if (problem == NULL)
        exec = new_exec(agent, id, message);
    if (exec != NULL) {
        exec->shell.host = request.host;
        exec->shell.kept = request.spec.shell;
        run(exec, &request, message);
    } else {
        *ret_problem = problem != NULL ? problem : "busy";
    }
    free(request.args);
    free(request.environment);
    return exec;
}
