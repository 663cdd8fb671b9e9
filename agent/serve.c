#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/conn.h"
#include "agent/exec.h"
#include "agent/helper.h"
#include "agent/number.h"
#include "agent/tree_kill.h"

#define BYE_MS 250  /* for `attach` to hand on the last frame */
#define TERM_MS 500 /* between TERM and KILL when all ends */
#define STEP_MS 5
#define OOM_MAX 1000
#define FILES_RESERVED 40
#define OOM_STEP 50

/* --- the end -------------------------------------------------------------------------------------
 */

static void close_controls(struct agent *agent, struct exec *exec)
{
    for (; exec != NULL; exec = exec->next)
        loop_close(&agent->loop, &exec->control);
}

/* Waits for a child or a moment. */
static void wait_step(void)
{
    const struct timespec step = {.tv_nsec = STEP_MS * 1000000L};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    (void)sigtimedwait(&mask, NULL, &step);
}

_Noreturn void agent_end(struct agent *agent, int status, const char *code, const char *why)
{
    pid_t peer = agent->conn != NULL ? agent->conn->peer : 0;
    (void)fprintf(stderr, "podsandbox-agent: %s\n", why);
    if (agent->conn != NULL)
        conn_bye(agent->conn, code, why);
    int64_t until = now_ms() + BYE_MS;
    while (peer > 0 && process_parent(peer) >= 0 && now_ms() < until)
        wait_step();
    (void)kill(-1, SIGTERM);
    /* Our own helpers ignore TERM and end when their sockets close. */
    close_controls(agent, agent->execs);
    close_controls(agent, agent->lingering);
    loop_close(&agent->loop, &agent->helper.watch);
    until = now_ms() + TERM_MS;
    while (now_ms() < until) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD)
            break;
        if (pid == 0)
            wait_step();
    }
    (void)kill(-1, SIGKILL);
    _exit(status);
}

void agent_wipe_secrets(struct agent *agent)
{
    explicit_bzero(agent->token, sizeof(agent->token));
    if (agent->blob != NULL)
        explicit_bzero(agent->blob, agent->blob_len);
    if (agent->conn != NULL)
        explicit_bzero(&agent->conn->decoder, sizeof(agent->conn->decoder));
    for (struct conn *conn = agent->pending; conn != NULL; conn = conn->next)
        explicit_bzero(&conn->decoder, sizeof(conn->decoder));
}

/* --- timers --------------------------------------------------------------------------------------
 */

static void on_deadline(struct timer *timer)
{
    struct agent *agent =
        (struct agent *)(void *)((char *)timer - offsetof(struct agent, deadline));
    agent_end(agent, PROTO_EXIT_DEADLINE, "deadline", "the deadline has passed");
}

static void on_first_hello(struct timer *timer)
{
    struct agent *agent =
        (struct agent *)(void *)((char *)timer - offsetof(struct agent, first_hello));
    agent_end(agent, PROTO_EXIT_NO_HELLO, "terminated", "no server has said hello");
}

static void on_without_server(struct timer *timer)
{
    struct agent *agent =
        (struct agent *)(void *)((char *)timer - offsetof(struct agent, without_server));
    exec_kill_all_unkept(agent);
}

static void on_end_without_server(struct timer *timer)
{
    struct agent *agent =
        (struct agent *)(void *)((char *)timer - offsetof(struct agent, end_without_server));
    agent_end(agent, PROTO_EXIT_NO_HELLO, "terminated", "no server has come back");
}

/* --- the beginning -------------------------------------------------------------------------------
 */

/* The file belongs to root while we are undumpable. No other process is here yet that could use the
 * moment. */
static void open_oom_score(struct agent *agent)
{
    char text[16] = "";
    uint64_t value = 0;
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    agent->oom_fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (agent->oom_fd < 0)
        return;
    (void)!read(agent->oom_fd, text, sizeof(text) - 1);
    bool negative = text[0] == '-';
    if (number_read(text + negative, OOM_MAX, &value, NULL))
        agent->oom_score = negative ? -(int)value : (int)value;
}

static void set_oom_score(const struct agent *agent, int score)
{
    char text[16];
    int len = snprintf(text, sizeof(text), "%d", score > OOM_MAX ? OOM_MAX : score);
    if (agent->oom_fd >= 0)
        (void)!pwrite(agent->oom_fd, text, (size_t)len, 0);
}

pid_t agent_fork_for_command(const struct agent *agent)
{
    set_oom_score(agent, agent->oom_score + OOM_STEP);
    pid_t pid = fork();
    if (pid != 0)
        set_oom_score(agent, agent->oom_score);
    return pid;
}

static void raise_files_limit(struct agent *agent)
{
    if (getrlimit(RLIMIT_NOFILE, &agent->files_limit) < 0) {
        agent->files_limit = (struct rlimit){.rlim_cur = 1024, .rlim_max = 1024};
        agent->files_max = 1024;
        return;
    }
    struct rlimit raised = agent->files_limit;
    raised.rlim_cur = raised.rlim_max > 65536 ? 65536 : raised.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &raised);
    (void)getrlimit(RLIMIT_NOFILE, &raised);
    agent->files_max = raised.rlim_cur;
}

bool agent_is_crowded(const struct agent *agent, int fd)
{
    return fd < 0 || (rlim_t)fd + FILES_RESERVED >= agent->files_max;
}

/* Descriptors 0, 1 and 2 are open from here on, so that no other can take their place. */
static void open_standard(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd < 3);
    if (fd >= 3)
        close(fd);
}

static int fail(const char *what)
{
    (void)fprintf(stderr, "podsandbox-agent: %s: %m\n", what);
    return PROTO_EXIT_FAILED;
}

static int start(struct agent *agent)
{
    open_standard();
    if (loop_init(&agent->loop) < 0)
        return fail("epoll");
    agent->started_ms = now_ms();
    open_oom_score(agent);
    cgroup_open(&agent->cgroup);
    raise_files_limit(agent);
    if (reaper_open(agent) < 0)
        return fail("signals");
    if (helper_start(agent) < 0)
        return fail("helper");
    if (listener_open(agent) < 0)
        return fail("listening socket");
    return 0;
}

int serve(const struct options *options, char *const *environment)
{
    struct agent agent = {
        .options = *options,
        .image_environment = environment,
        .listener.fd = -1,
        .signals.fd = -1,
        .helper.watch.fd = -1,
        .deadline.fire = on_deadline,
        .first_hello.fire = on_first_hello,
        .without_server.fire = on_without_server,
        .end_without_server.fire = on_end_without_server,
    };
    if (getpid() != 1) {
        (void)fprintf(stderr, "podsandbox-agent: serve has to be PID 1 of a PID namespace\n");
        return PROTO_EXIT_FAILED;
    }
    int status = start(&agent);
    if (status != 0)
        return status;
    timer_set(&agent.loop, &agent.first_hello, now_ms() + options->first_hello_ms);
    for (;;) {
        loop_turn(&agent.loop);
        if (agent.conn != NULL)
            conn_flush(agent.conn);
        conn_sweep(&agent);
    }
}
