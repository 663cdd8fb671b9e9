#include "local/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HIGH 64 /* above every number that is given out */
#define EXIT_ABANDONED 126
#define EXIT_NOT_STARTED 127
#define FILES 65536

/* --- the new process ----------------------------------------------------------------------------
 * Between fork and exec in a program of many threads: system calls only. */

static void complain(const char *what)
{
    const char *why = strerrorname_np(errno);

    (void)!write(STDERR_FILENO, what, strlen(what));
    (void)!write(STDERR_FILENO, ": ", 2);
    (void)!write(STDERR_FILENO, why ? why : "?", strlen(why ? why : "?"));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(EXIT_NOT_STARTED);
}

/* Everything else of the server's is closed, so that nothing of it outlives the server here. First
 * all go up, out of each other's way. Returns the gate. */
static int place_descriptors(const struct launch *launch, int gate)
{
    int high[BOX_FD_END];

    for (int i = BOX_FD_LISTEN; i < BOX_FD_END; i++)
        high[i] = fcntl(launch->fds[i], F_DUPFD, HIGH);
    int log = fcntl(launch->log, F_DUPFD, HIGH);
    int kept = fcntl(gate, F_DUPFD, HIGH);
    int null = open("/dev/null", O_RDONLY);
    if (dup2(null, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
        dup2(log, STDERR_FILENO) < 0)
        _exit(EXIT_NOT_STARTED);
    for (int i = BOX_FD_LISTEN; i < BOX_FD_END; i++) {
        if (launch->fds[i] < 0)
            close(i);
        else if (dup2(high[i], i) < 0)
            complain("dup2");
    }
    if (dup2(kept, BOX_FD_END) < 0 || syscall(SYS_close_range, BOX_FD_END + 1, ~0U, 0) < 0)
        complain("close_range");
    return BOX_FD_END;
}

static void reset_signals(void)
{
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t none;

    for (int number = 1; number < NSIG; number++)
        (void)sigaction(number, &plain, NULL); /* two of them cannot be set */
    sigemptyset(&none);
    (void)pthread_sigmask(SIG_SETMASK, &none, NULL);
}

/* What spares the server when memory is short must not spare what runs in sandboxes. */
static void take_part_in_oom(void)
{
    char text[8];
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);

    if (fd >= 0 && read(fd, text, sizeof(text)) > 0 && text[0] == '-')
        (void)!pwrite(fd, "0", 1, 0);
    if (fd >= 0)
        close(fd);
}

static void set_limits(const struct launch *launch)
{
    const struct rlimit pids = {.rlim_cur = launch->pids, .rlim_max = launch->pids};
    const struct rlimit no_core = {.rlim_cur = 0, .rlim_max = 0};
    struct rlimit files;

    (void)setrlimit(RLIMIT_CORE, &no_core);
    take_part_in_oom();
    if (launch->pids > 0)
        (void)setrlimit(RLIMIT_NPROC, &pids);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max > FILES) {
        files = (struct rlimit){.rlim_cur = FILES, .rlim_max = FILES};
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

static void join_groups(const struct text_list *doors)
{
    for (size_t i = 0; i < doors->count; i++) {
        int fd = open(doors->items[i], O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "0", 1) != 1)
            complain(doors->items[i]);
        close(fd);
    }
}

static void become(uid_t uid)
{
    if (geteuid() != 0)
        return;
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        complain("become the user of the sandbox");
}

static _Noreturn void run(const struct launch *launch, int gate, char *const *arguments,
                          char *const *environment)
{
    char go;

    gate = place_descriptors(launch, gate);
    (void)setsid();
    reset_signals();
    umask(022);
    if (read(gate, &go, 1) != 1)
        _exit(EXIT_ABANDONED);
    close(gate);
    join_groups(launch->doors);
    set_limits(launch);
    become(launch->uid);
    if (chdir("/") < 0)
        complain("chdir");
    (void)execve(arguments[0], arguments, environment);
    complain(arguments[0]);
    _exit(EXIT_NOT_STARTED);
}

/* ------------------------------------------------------------------------------------------------
 */

static char **vector_of(const struct text_list *list)
{
    char **vector = xcalloc(list->count + 1, sizeof(*vector));

    if (list->count > 0)
        memcpy(vector, list->items, list->count * sizeof(*vector));
    return vector;
}

int launch_begin(struct launch *launch, struct err *err)
{
    cleanup_free char **arguments = vector_of(launch->arguments);
    cleanup_free char **environment = vector_of(launch->environment);
    int gate[2];

    if (pipe2(gate, O_CLOEXEC) < 0)
        return err_errno(err, ERR_BUSY, errno, "a pipe for a new sandbox");
    pid_t pid = fork();
    if (pid == 0) {
        close(gate[1]);
        run(launch, gate[0], arguments, environment);
    }
    close(gate[0]);
    launch->gate = gate[1];
    if (pid < 0)
        return err_errno(err, ERR_BUSY, errno, "a process for a new sandbox");
    if (!process_identify(pid, &launch->bwrap)) {
        launch->bwrap.pid = pid;
        return err_set(err, ERR_CONTAINER_START, "the process of a new sandbox has ended");
    }
    return 0;
}

int launch_go(struct launch *launch, struct err *err)
{
    if (write(launch->gate, "", 1) != 1)
        return err_errno(err, ERR_CONTAINER_START, errno, "let a new sandbox start");
    return 0;
}

void launch_done(struct launch *launch)
{
    cleanup_fd_close(&launch->gate);
    launch->gate = -1;
}
