#include "agent/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/descriptors.h"
#include "agent/environment.h"
#include "agent/spawn.h"
#include "agent/tree_kill.h"

#define KILL_AGAIN_MS 20     /* between two sweeps while something still lives */
#define KILL_GIVE_UP_MS 5000 /* a process that not even KILL ends is reported as it is, */
#define KILL_LATER_MS 500    /* and looked after less often */

enum { CONTROL_FD, SIGNAL_FD, FD_COUNT };

enum killing { KILL_NOT, KILL_TERM_SENT, KILL_KILL_SENT };

struct supervisor {
    struct pollfd fds[FD_COUNT];
    pid_t main_pid;
    bool main_ended, childless, reported;
    int64_t started_us, ended_us;
    int64_t timeout_at, kill_at, give_up_at; /* now_ms(); 0: never */
    int64_t grace_ms;
    bool terminal;
    enum killing killing;
    struct supervisor_report report; /* what is known of the end */
};

static void send_report(struct supervisor *self, const struct supervisor_report *report)
{
    ssize_t count;
    do {
        count = send(self->fds[CONTROL_FD].fd, report, sizeof(*report), MSG_NOSIGNAL);
    } while (count < 0 && errno == EINTR);
}

static _Noreturn void fail(struct supervisor *self, enum spawn_stage stage, int errnum,
                           bool interpreter)
{
    struct supervisor_report report = {
        .kind = REPORT_FAILED, .stage = stage, .errnum = errnum, .interpreter = interpreter};
    send_report(self, &report);
    _exit(0);
}

/* --- start --------------------------------------------------------------------------------------
 */

/* Keeps 0, 1 and 2 (the command's), the control socket and nothing else; whatever PID 1 holds for
 * the server is not for this process. */
static void settle(struct supervisor *self, struct agent *agent, struct exec_spec *spec)
{
    sigset_t mask;
    agent_wipe_secrets(agent);
    int control = descriptors_arrange(spec->standard, spec->control);
    if (control < 0)
        _exit(1); /* PID 1 sees the socket close */
    for (int i = 0; i < 3; i++)
        spec->standard[i] = i;
    self->fds[CONTROL_FD] = (struct pollfd){.fd = control, .events = POLLIN};
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    /* Nothing but KILL ends it: the command may signal everything that it can reach. */
    sigfillset(&mask);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    int signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0)
        fail(self, SPAWN_SETUP, errno, false);
    self->fds[SIGNAL_FD] = (struct pollfd){.fd = signals, .events = POLLIN};
}

static void start(struct supervisor *self, const struct agent *agent, const struct exec_spec *spec)
{
    struct spawn_error error;
    const struct environment_facts facts = {
        .workdir = agent->workdir,
        .info = agent->info_path,
        .cpus = agent->cpus,
        .terminal = spec->terminal,
    };
    char **environment =
        environment_build(agent->image_environment, agent->environment, spec->environment, &facts);
    if (environment == NULL)
        fail(self, SPAWN_SETUP, ENOMEM, false);
    self->started_us = now_us();
    self->main_pid = spawn_command(agent, spec, environment, &error);
    if (self->main_pid < 0)
        fail(self, SPAWN_FORK, errno, false);
    if (error.stage != 0)
        fail(self, error.stage, error.errnum, error.interpreter);
    /* The pipes belong to the command now: their end must be its end. */
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    struct supervisor_report report = {.kind = REPORT_STARTED, .pid = self->main_pid};
    send_report(self, &report);
    if (spec->timeout_ms > 0)
        self->timeout_at = now_ms() + spec->timeout_ms;
    self->grace_ms = spec->grace_ms;
    self->terminal = spec->terminal;
}

/* --- end ----------------------------------------------------------------------------------------
 */

static uint64_t microseconds(const struct timeval *time)
{
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec;
}

static void account(struct supervisor *self, const struct rusage *usage)
{
    uint64_t rss = (uint64_t)usage->ru_maxrss * 1024;
    self->report.cpu_us += microseconds(&usage->ru_utime) + microseconds(&usage->ru_stime);
    if (rss > self->report.max_rss)
        self->report.max_rss = rss;
}

static void reap(struct supervisor *self)
{
    struct rusage usage;
    int status;
    for (;;) {
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid < 0 && errno == EINTR)
            continue;
        self->childless = pid < 0 && errno == ECHILD;
        if (pid <= 0)
            return;
        account(self, &usage);
        if (pid == self->main_pid && !self->main_ended) {
            self->main_ended = true;
            self->ended_us = now_us();
            self->report.status = status;
        }
    }
}

static void kill_now(struct supervisor *self)
{
    int64_t now = now_ms();
    if (self->killing != KILL_KILL_SENT)
        self->give_up_at = now + KILL_GIVE_UP_MS;
    self->killing = KILL_KILL_SENT;
    tree_signal(getpid(), SIGKILL, NULL);
    self->kill_at = now + (now < self->give_up_at ? KILL_AGAIN_MS : KILL_LATER_MS);
}

static void kill_begin(struct supervisor *self, int64_t grace_ms)
{
    int64_t kill_at = now_ms() + grace_ms;
    self->report.tree_killed = true;
    self->timeout_at = 0;
    if (self->killing == KILL_NOT && grace_ms > 0) {
        tree_signal(getpid(), SIGTERM, NULL);
        if (self->terminal) /* a shell that talks with somebody ignores TERM */
            tree_signal(getpid(), SIGHUP, NULL);
        self->killing = KILL_TERM_SENT;
        self->kill_at = kill_at;
    } else if (grace_ms <= 0) {
        kill_now(self);
    } else if (self->killing == KILL_TERM_SENT && kill_at < self->kill_at) {
        self->kill_at = kill_at;
    }
}

static void on_order(struct supervisor *self)
{
    struct supervisor_order order;
    ssize_t count = recv(self->fds[CONTROL_FD].fd, &order, sizeof(order), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count != (ssize_t)sizeof(order))
        _exit(0); /* PID 1 ends; it adopts what is left */
    if (order.signal == 0)
        kill_begin(self, order.grace_ms);
    else if (order.scope == SCOPE_TREE)
        tree_signal(getpid(), order.signal, NULL);
    else if (!self->main_ended)
        (void)kill(order.scope == SCOPE_PROCESS ? self->main_pid : -self->main_pid, order.signal);
}

/* A normal end leaves the background children alone; an end by force is one when nothing is left.
 */
static void report_end(struct supervisor *self)
{
    bool given_up = self->give_up_at != 0 && now_ms() >= self->give_up_at;
    if (self->reported || !self->main_ended)
        return;
    if (self->killing != KILL_NOT && !self->childless && !given_up)
        return;
    self->report.kind = REPORT_EXITED;
    self->report.wall_us = (uint64_t)(self->ended_us - self->started_us);
    self->reported = true;
    self->timeout_at = 0;
    send_report(self, &self->report);
}

static void on_time(struct supervisor *self)
{
    int64_t now = now_ms();
    if (self->timeout_at != 0 && now >= self->timeout_at && !self->main_ended) {
        self->report.timed_out = true;
        kill_begin(self, self->grace_ms);
    }
    if (self->killing != KILL_NOT && now >= self->kill_at && !self->childless)
        kill_now(self);
}

static int wait_ms(const struct supervisor *self)
{
    int64_t at = self->timeout_at;
    if (self->killing != KILL_NOT && (at == 0 || self->kill_at < at))
        at = self->kill_at;
    if (at == 0)
        return -1;
    int64_t left = at - now_ms();
    if (left < 0)
        return 0;
    return left > 60000 ? 60000 : (int)left;
}

_Noreturn void supervisor_run(struct agent *agent, const struct exec_spec *spec)
{
    struct supervisor self = {0};
    struct exec_spec own = *spec;
    struct signalfd_siginfo info;
    settle(&self, agent, &own);
    start(&self, agent, &own);
    while (!self.childless || !self.reported) {
        (void)poll(self.fds, FD_COUNT, wait_ms(&self));
        if (self.fds[CONTROL_FD].revents != 0)
            on_order(&self);
        if (self.fds[SIGNAL_FD].revents != 0)
            (void)!read(self.fds[SIGNAL_FD].fd, &info, sizeof(info));
        reap(&self);
        on_time(&self);
        report_end(&self);
    }
    _exit(0);
}
