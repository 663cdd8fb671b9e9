#include "agent/spawn.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/environment.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* The new process borrows the memory of its parent, which stands still until it has become the
 * command: no page is copied, and what goes wrong is simply written down. It may call nothing but
 * the kernel. */
#define STACK_SIZE 65536

struct start {
    const struct agent *agent;
    const struct exec_spec *spec;
    char *const *environment;
    struct spawn_error *error;
};

static _Noreturn void fail(const struct start *start, enum spawn_stage stage, int errnum,
                           bool interpreter)
{
    *start->error =
        (struct spawn_error){.stage = stage, .errnum = errnum, .interpreter = interpreter};
    _exit(127);
}

static int enter_workdir(const struct agent *agent, const struct exec_spec *spec)
{
    if (spec->workdir[0] != '/' && agent->workdir != NULL && chdir(agent->workdir) < 0)
        return -1;
    return spec->workdir[0] == '\0' ? 0 : chdir(spec->workdir);
}

/* Tries one file. Returns the errno that says what is wrong with it. */
static int try_file(const char *path, const struct exec_spec *spec, char *const *environment,
                    bool *ret_interpreter)
{
    struct stat status;
    execve(path, spec->args, environment);
    int errnum = errno;
    *ret_interpreter = errnum == ENOENT && stat(path, &status) == 0;
    /* A directory on the PATH is no program, and not the end of the search. */
    if (errnum == EACCES && stat(path, &status) == 0 && S_ISDIR(status.st_mode))
        return EISDIR;
    return errnum;
}

static bool goes_on(int errnum)
{
    return errnum == ENOENT || errnum == ENOTDIR || errnum == EACCES || errnum == EISDIR ||
           errnum == ELOOP || errnum == ENAMETOOLONG || errnum == ENODEV || errnum == ESTALE ||
           errnum == ETIMEDOUT;
}

static _Noreturn void exec_by_path(const struct start *start)
{
    char path[PATH_MAX];
    const struct exec_spec *spec = start->spec;
    const char *name = spec->args[0];
    const char *list = environment_get(start->environment, "PATH");
    bool denied = false, interpreter = false;
    if (name[0] == '\0')
        fail(start, SPAWN_EXEC, ENOENT, false);
    if (strchr(name, '/') != NULL) {
        int errnum = try_file(name, spec, start->environment, &interpreter);
        fail(start, SPAWN_EXEC, errnum == EISDIR ? EACCES : errnum, interpreter);
    }
    if (list == NULL)
        list = DEFAULT_PATH;
    for (;;) {
        size_t len = strcspn(list, ":"), name_len = strlen(name);
        if (len + 1 + name_len < sizeof(path)) {
            /* An empty entry is the workdir, as everywhere. */
            memcpy(path, list, len);
            path[len] = '/';
            memcpy(path + len + (len > 0), name, name_len + 1);
            int errnum = try_file(path, spec, start->environment, &interpreter);
            if (interpreter || !goes_on(errnum))
                fail(start, SPAWN_EXEC, errnum, interpreter);
            denied = denied || errnum == EACCES;
        }
        if (list[len] == '\0')
            break;
        list += len + 1;
    }
    fail(start, SPAWN_EXEC, denied ? EACCES : ENOENT, false);
}

static int become_command(void *arg)
{
    const struct start *start = arg;
    sigset_t none;
    if (setsid() < 0)
        fail(start, SPAWN_SETUP, errno, false);
    if (start->spec->terminal && ioctl(0, TIOCSCTTY, 0) < 0)
        fail(start, SPAWN_SETUP, errno, false);
    (void)setrlimit(RLIMIT_NOFILE, &start->agent->files_limit);
    umask(022);
    (void)signal(SIGPIPE, SIG_DFL); /* all others are at their defaults since the agent began */
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    if (enter_workdir(start->agent, start->spec) < 0)
        fail(start, SPAWN_WORKDIR, errno, false);
    exec_by_path(start);
}

pid_t spawn_command(const struct agent *agent, const struct exec_spec *spec,
                    char *const *environment, struct spawn_error *ret_error)
{
    static _Alignas(16) char stack[STACK_SIZE];
    struct start start = {
        .agent = agent, .spec = spec, .environment = environment, .error = ret_error};
    *ret_error = (struct spawn_error){0};
    return clone(become_command, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
}
