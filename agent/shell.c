#include "agent/shell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/loop.h"
#include "agent/shell_parts.h"
#include "agent/tree_kill.h"

/* --- from PID 1 ---------------------------------------------------------------------------------
 */

/* Of the whole session. An interactive bash does not care for TERM. */
static void hang_up(struct host *host)
{
    shell_close(&host->script);
    shell_close(&host->input);
    if (!host->base.main_ended)
        (void)kill(host->base.main_pid, SIGHUP);
}

/* The session is to end, or a signal is meant for it. */
static void obey(struct host *host, const struct supervisor_order *order)
{
    if (order->signal == 0)
        hang_up(host);
    supervisor_obey(&host->base, order);
}

static void on_order(struct host *host)
{
    struct supervisor_order order;
    int fds[RUN_FDS];
    bool text = false;
    ssize_t count = shell_order_receive(host->base.control, &order, fds, &text);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count != (ssize_t)sizeof(order))
        _exit(0); /* PID 1 ends; it adopts what is left */
    if (text)
        text_begin(host, &order, fds);
    else
        obey(host, &order);
}

/* A signal for a text goes to what it has started; an interrupt to the shell, too. */
static void on_run_order(struct host *host)
{
    struct supervisor_order order;
    ssize_t count = recv(host->run.fds[RUN_CONTROL], &order, sizeof(order), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count != (ssize_t)sizeof(order)) {
        text_stop(host, 0);
        return;
    }
    if (order.signal == 0 || (order.signal == SIGINT && !host->run.begun)) {
        text_stop(host, order.signal == 0 ? order.grace_ms : host->base.grace_ms);
        return;
    }
    if (order.signal != SIGINT) {
        (void)text_signal(host, order.signal);
        return;
    }
    text_interrupt(host, 0);
    text_ask_again(host);
}

/* --- the loop -----------------------------------------------------------------------------------
 */

static void on_shell_end(struct host *host)
{
    struct run *run = &host->run;
    if (!host->base.main_ended)
        return;
    shell_listen(host); /* its last words */
    if (host->phase == PHASE_IDLE) {
        host->phase_until = 0;
        return;
    }
    if (host->phase == PHASE_STARTING)
        supervisor_fail(&host->base, SPAWN_SHELL, 0, false);
    run->status = host->base.report.status;
    if (run->stopping && host->base.killing == 0)
        (void)text_signal(host, SIGKILL);
    text_finish(host);
}

static void on_time(struct host *host)
{
    struct run *run = &host->run;
    int64_t now = now_ms();
    bool passed = host->phase_until != 0 && now >= host->phase_until;
    if (passed && host->phase == PHASE_STARTING) {
        const struct tree all = {.root = getpid()};
        (void)tree_signal(&all, SIGKILL);
        supervisor_fail(&host->base, SPAWN_SHELL, ETIMEDOUT, false);
    }
    if (passed && host->phase == PHASE_IDLE && !host->base.main_ended) {
        const struct supervisor_order end = {.grace_ms = host->base.grace_ms};
        host->base.report.timed_out = true;
        host->phase_until = 0;
        obey(host, &end);
    }
    if (host->phase != PHASE_RUNNING)
        return;
    if (run->timeout_at != 0 && now >= run->timeout_at) {
        run->report.timed_out = true;
        text_stop(host, host->base.grace_ms);
    } else if (run->stopping && now >= run->next_at) {
        text_stop_on(host);
    } else if (!run->stopping && run->again_at != 0 && now >= run->again_at) {
        text_ask_again(host);
    }
}

static int sooner(int wait, int64_t at)
{
    int64_t left = at - now_ms();
    if (at == 0)
        return wait;
    left = left < 0 ? 0 : left;
    left = left > 60000 ? 60000 : left;
    return wait >= 0 && wait < left ? wait : (int)left;
}

static int wait_ms(const struct host *host)
{
    int wait = supervisor_wait_ms(&host->base);
    wait = sooner(wait, host->phase_until);
    if (host->phase == PHASE_RUNNING) {
        wait = sooner(wait, host->run.timeout_at);
        wait = sooner(wait, host->run.stopping ? host->run.next_at : host->run.again_at);
    }
    return wait;
}

static void turn(struct host *host)
{
    struct signalfd_siginfo info;
    struct pollfd fds[4] = {{.fd = host->base.control, .events = POLLIN},
                            {.fd = host->base.signals, .events = POLLIN},
                            {.fd = host->reports[0], .events = POLLIN},
                            {.fd = host->run.fds[RUN_CONTROL], .events = POLLIN}};
    (void)poll(fds, 4, wait_ms(host));
    if (fds[2].revents != 0)
        shell_listen(host);
    if (fds[3].revents != 0 && host->phase == PHASE_RUNNING)
        on_run_order(host);
    if (fds[0].revents != 0)
        on_order(host);
    if (fds[1].revents != 0)
        (void)!read(host->base.signals, &info, sizeof(info));
    supervisor_reap(&host->base);
    on_shell_end(host);
    supervisor_on_time(&host->base);
    on_time(host);
    supervisor_report_end(&host->base);
}

/* --- the start ----------------------------------------------------------------------------------
 */

static bool is_bash(const char *shell)
{
    const char *slash = strrchr(shell, '/');
    return strcmp(slash != NULL ? slash + 1 : shell, "bash") == 0;
}

/* The shell's own descriptors: the script, and nothing. */
static int open_script(struct host *host)
{
    int script[2];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || pipe2(script, O_CLOEXEC) < 0 || pipe2(host->reports, O_CLOEXEC) < 0)
        return -1;
    host->script = script[1];
    if (fcntl(host->reports[0], F_SETFL, O_NONBLOCK) < 0 ||
        fcntl(host->script, F_SETFL, O_NONBLOCK) < 0 || dup2(script[0], 0) < 0 ||
        dup2(null, 1) < 0 || dup2(null, 2) < 0)
        return -1;
    close(script[0]);
    close(null);
    return 0;
}

static void start(struct host *host, const struct agent *agent, const struct exec_spec *spec)
{
    static const char *const quiet[] = {"--norc", "--noprofile", "--noediting", "-i", NULL};
    static const char *const plain[] = {"-i", NULL};
    const char *const *flags = is_bash(spec->args[0]) ? quiet : plain;
    char *args[6] = {spec->args[0]};
    struct exec_spec shell = *spec;
    for (size_t i = 0; flags[i] != NULL; i++)
        args[i + 1] = (char *)(uintptr_t)flags[i];
    shell.args = args;
    if (open_script(host) < 0)
        supervisor_fail(&host->base, SPAWN_SETUP, errno, false);
    supervisor_spawn(&host->base, agent, &shell);
    (void)dup2(1, 0); /* the script has one reader: its end is seen */
    shell_greet(host, flags == quiet);
}

_Noreturn void shell_run(struct agent *agent, const struct exec_spec *spec)
{
    struct host host = {.idle_ms = spec->timeout_ms, .script = -1, .input = -1, .script_end = -1};
    struct exec_spec own = *spec;
    for (int i = 0; i < RUN_FDS; i++)
        host.run.fds[i] = -1;
    supervisor_settle(&host.base, agent, &own);
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    start(&host, agent, &own);
    while (!host.base.childless || !host.base.reported || host.phase == PHASE_RUNNING)
        turn(&host);
    _exit(0);
}
