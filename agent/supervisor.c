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
#include "agent/supervisor_parts.h"
#include "agent/tree_kill.h"

#define KILL_AGAIN_MS 20     /* between two sweeps while something still lives */
#define KILL_GIVE_UP_MS 5000 /* a process that not even KILL ends is reported as it is, */
#define KILL_LATER_MS 500    /* and looked after less often */

enum killing { KILL_NOT, KILL_TERM_SENT, KILL_KILL_SENT };

/* Of all that it has adopted. */
static void signal_tree(int signal)
{
    const struct tree tree = {.root = getpid()};
    (void)tree_signal(&tree, signal);
}

void supervisor_report(struct supervisor *self, const struct supervisor_report *report)
{
    ssize_t count;
    do {
        count = send(self->control, report, sizeof(*report), MSG_NOSIGNAL);
    } while (count < 0 && errno == EINTR);
}

_Noreturn void supervisor_fail(struct supervisor *self, enum spawn_stage stage, int errnum,
                               bool interpreter)
{
    struct supervisor_report report = {
        .kind = REPORT_FAILED, .stage = stage, .errnum = errnum, .interpreter = interpreter};
    supervisor_report(self, &report);
    _exit(0);
}

/* --- start --------------------------------------------------------------------------------------
 */

/* Keeps 0, 1 and 2 (the command's), the control socket and nothing else; whatever PID 1 holds for
 * the server is not for this process. */
void supervisor_settle(struct supervisor *self, struct agent *agent, struct exec_spec *spec)
{
    sigset_t mask;
    agent_wipe_secrets(agent);
    int control = descriptors_arrange(spec->standard, spec->control);
    if (control < 0)
        _exit(1); /* PID 1 sees the socket close */
    for (int i = 0; i < 3; i++)
        spec->standard[i] = i;
    self->control = control;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    /* Nothing but KILL ends it: the command may signal everything that it can reach. */
    sigfillset(&mask);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    int signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0)
        supervisor_fail(self, SPAWN_SETUP, errno, false);
    self->signals = signals;
}

void supervisor_spawn(struct supervisor *self, const struct agent *agent,
                      const struct exec_spec *spec)
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
        supervisor_fail(self, SPAWN_SETUP, ENOMEM, false);
    self->started_us = now_us();
    self->main_pid = spawn_command(agent, spec, environment, &error);
    if (self->main_pid < 0)
        supervisor_fail(self, SPAWN_FORK, errno, false);
    if (error.stage != 0)
        supervisor_fail(self, error.stage, error.errnum, error.interpreter);
    self->grace_ms = spec->grace_ms;
    self->terminal = spec->terminal;
}

static void start(struct supervisor *self, const struct agent *agent, const struct exec_spec *spec)
{
    supervisor_spawn(self, agent, spec);
    /* The pipes belong to the command now: their end must be its end. */
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    struct supervisor_report report = {.kind = REPORT_STARTED, .pid = self->main_pid};
    supervisor_report(self, &report);
    if (spec->timeout_ms > 0)
        self->timeout_at = now_ms() + spec->timeout_ms;
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

void supervisor_reap(struct supervisor *self)
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
    signal_tree(SIGKILL);
    self->kill_at = now + (now < self->give_up_at ? KILL_AGAIN_MS : KILL_LATER_MS);
}

void supervisor_kill(struct supervisor *self, int64_t grace_ms)
{
    int64_t kill_at = now_ms() + grace_ms;
    self->report.tree_killed = true;
    self->timeout_at = 0;
    if (self->killing == KILL_NOT && grace_ms > 0) {
        signal_tree(SIGTERM);
        if (self->terminal) /* a shell that talks with somebody ignores TERM */
            signal_tree(SIGHUP);
        self->killing = KILL_TERM_SENT;
        self->kill_at = kill_at;
    } else if (grace_ms <= 0) {
        kill_now(self);
    } else if (self->killing == KILL_TERM_SENT && kill_at < self->kill_at) {
        self->kill_at = kill_at;
    }
}

void supervisor_obey(struct supervisor *self, const struct supervisor_order *order)
{
    if (order->signal == 0)
        supervisor_kill(self, order->grace_ms);
    else if (order->scope == SCOPE_TREE)
        signal_tree(order->signal);
    else if (!self->main_ended)
        (void)kill(order->scope == SCOPE_PROCESS ? self->main_pid : -self->main_pid, order->signal);
}

static void on_order(struct supervisor *self)
{
    struct supervisor_order order;
    ssize_t count = recv(self->control, &order, sizeof(order), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count != (ssize_t)sizeof(order))
        _exit(0); /* PID 1 ends; it adopts what is left */
    supervisor_obey(self, &order);
}

/* A normal end leaves the background children alone; an end by force is one when nothing is left.
 */
void supervisor_report_end(struct supervisor *self)
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
    supervisor_report(self, &self->report);
}

void supervisor_on_time(struct supervisor *self)
{
    int64_t now = now_ms();
    if (self->timeout_at != 0 && now >= self->timeout_at && !self->main_ended) {
        self->report.timed_out = true;
        supervisor_kill(self, self->grace_ms);
    }
    if (self->killing != KILL_NOT && now >= self->kill_at && !self->childless)
        kill_now(self);
}

int supervisor_wait_ms(const struct supervisor *self)
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
    supervisor_settle(&self, agent, &own);
    start(&self, agent, &own);
    while (!self.childless || !self.reported) {
        struct pollfd fds[2] = {{.fd = self.control, .events = POLLIN},
                                {.fd = self.signals, .events = POLLIN}};
        (void)poll(fds, 2, supervisor_wait_ms(&self));
        if (fds[0].revents != 0)
            on_order(&self);
        if (fds[1].revents != 0)
            (void)!read(self.signals, &info, sizeof(info));
        supervisor_reap(&self);
        supervisor_on_time(&self);
        supervisor_report_end(&self);
    }
    _exit(0);
}
