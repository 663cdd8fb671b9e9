#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "agent/exec.h"

static void describe(struct exec *exec, const char *code, int errnum, const char *what)
{
    exec->error = code;
    errno = errnum;
    (void)snprintf(exec->message, sizeof(exec->message), "%s: %m", what);
}

/* A report may come from whoever traces a session's supervisor: the stage is any number. */
static const char *what_failed(enum spawn_stage stage)
{
    static const char *const what[] = {[SPAWN_FORK] = "new process",
                                       [SPAWN_TERMINAL] = "open a terminal",
                                       [SPAWN_SETUP] = "set up the process"};
    size_t index = (size_t)stage;
    bool known = index < sizeof(what) / sizeof(what[0]) && what[index] != NULL;
    return known ? what[index] : "start the process";
}

void exec_failed(struct exec *exec, const struct supervisor_report *report)
{
    int errnum = report->errnum;
    exec->report = *report;
    if (report->stage == SPAWN_SESSION) {
        exec->error = "session_ended";
        (void)snprintf(exec->message, sizeof(exec->message), "the shell of the session has ended");
    } else if (report->stage == SPAWN_SHELL) {
        exec->error = "exec_failed";
        (void)snprintf(exec->message, sizeof(exec->message), "%s %s", exec->program,
                       errnum != 0 ? "did not answer as a shell does" : "ended as it began");
    } else if (report->stage == SPAWN_WORKDIR) {
        describe(exec, "workdir_not_found", errnum, "workdir");
    } else if (report->stage != SPAWN_EXEC) {
        describe(exec, "exec_failed", errnum, what_failed(report->stage));
    } else if (errnum == E2BIG) {
        describe(exec, "argument_too_long", errnum, "exec");
    } else if (report->interpreter) {
        exec->exit_code = 127;
        describe(exec, "command_not_found", errnum, "the interpreter or loader of the program");
    } else if (errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == ENAMETOOLONG) {
        exec->exit_code = 127;
        describe(exec, "command_not_found", errnum, exec->program);
    } else if (errnum == ENOMEM || errnum == EAGAIN || errnum == EMFILE || errnum == ENFILE) {
        describe(exec, "exec_failed", errnum, "exec");
    } else {
        exec->exit_code = 126;
        describe(exec, "not_executable", errnum, exec->program);
    }
}

void exec_exited(struct exec *exec, const struct supervisor_report *report)
{
    exec->report = *report;
    if (report->timed_out) {
        exec->error = "timeout";
        (void)snprintf(exec->message, sizeof(exec->message), "the time is over");
    }
}

void exec_lost(struct exec *exec, const char *why)
{
    exec->error = "exec_failed";
    (void)snprintf(exec->message, sizeof(exec->message), "%s", why);
}

static bool looks_killed(int status)
{
    return (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
           (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL);
}

/* The kernel counts per cgroup: where other execs ran at the same time, the count alone does not
 * say whose process it was. */
void exec_count_oom(struct exec *exec)
{
    uint64_t now = 0;
    if (!exec->oom_readable || !cgroup_oom_kills(&exec->agent->cgroup, &now))
        exec->oom = 2;
    else if (now == exec->oom_before)
        exec->oom = 0;
    else
        exec->oom = exec->alone || (!exec->report.tree_killed && looks_killed(exec->report.status));
}

void exec_put_result(const struct exec *exec, struct reply *reply)
{
    const struct supervisor_report *report = &exec->report;
    struct field_writer *fields = &reply->fields;
    bool ran = report->kind == REPORT_EXITED;
    if (exec->error != NULL)
        reply_error(reply, exec->error, "%s", exec->message);
    if (exec->exit_code >= 0)
        field_put_u64(fields, TAG_EXIT_CODE, (uint64_t)exec->exit_code);
    else if (ran && WIFEXITED(report->status))
        field_put_u64(fields, TAG_EXIT_CODE, (uint64_t)WEXITSTATUS(report->status));
    else if (ran && WIFSIGNALED(report->status))
        field_put_u64(fields, TAG_SIGNAL, (uint64_t)WTERMSIG(report->status));
    field_put_u64(fields, TAG_TIMED_OUT, report->timed_out);
    field_put_u64(fields, TAG_OOM, exec->oom);
    field_put_u64(fields, TAG_WALL_US, report->wall_us);
    field_put_u64(fields, TAG_CPU_US, report->cpu_us);
    field_put_u64(fields, TAG_MAX_RSS, report->max_rss);
    field_put_u64(fields, TAG_TOTAL_OUT, exec->out[0].ring.end);
    field_put_u64(fields, TAG_TOTAL_ERR, exec->out[1].ring.end);
    if (exec->shell.host != 0)
        field_put_u64(fields, TAG_SHELL_ENDED, report->shell_ended || !ran);
    if (exec->shell.host != 0 && exec->shell.directory != NULL)
        field_put_text(fields, TAG_CWD, exec->shell.directory);
}
