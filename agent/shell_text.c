/* What is said to the shell and what it says, and the life of a text. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/loop.h"
#include "agent/number.h"
#include "agent/process_stat.h"
#include "agent/shell_parts.h"
#include "agent/tree_kill.h"

#define READY_MS 10000   /* for a new shell to answer */
#define INTERRUPT_MS 2   /* between two interrupts of a shell that goes on after one, */
#define INTERRUPTS 50    /* at first; */
#define KILL_AGAIN_MS 50 /* later, and between two sweeps while something still lives */
#define GIVE_UP_MS 2000  /* after KILL: the shell itself is ended */
#define INTERRUPTED 130  /* the status of what an interrupt has ended */
#define ASK_MS 100       /* for a text's end, when an interrupt may have taken the line */
#define TICKS_MAX 1000   /* of the clock of /proc a second */

/* --- to the shell -------------------------------------------------------------------------------
 */

static void __attribute__((format(printf, 2, 3))) say(struct host *host, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    /* A shell that has gone is seen by its end; one that reads nothing, by the time. */
    if (host->script >= 0 && len > 0 && len < (int)sizeof(line))
        (void)!write(host->script, line, (size_t)len);
}

/* The backslashes: no alias counts. `command`: no function of the next name does. */
#define REPORT "\\command \\echo %s %c \"$?\" >|/proc/%d/fd/%d"
/* Where a text has made a function of that name, its own report was lost; so it goes, by a special
 * command, which in most shells no function can stand for. */
#define REPORT_SURELY                                                                              \
    "__podsandbox=$?; \\unset -f command; \\command \\echo %s %c \"$__podsandbox\""                \
    " >|/proc/%d/fd/%d; \\unset __podsandbox"

static void say_begin(struct host *host)
{
    const struct run *run = &host->run;
    int self = getpid(), to = host->reports[1];
    say(host,
        "{ " REPORT "; { \\. /proc/%d/fd/%d; } </proc/%d/fd/%d >|/proc/%d/fd/%d 2>|/proc/%d/fd/%d;"
        " " REPORT "; }\n",
        run->nonce, 'b', self, to, self, run->fds[RUN_TEXT], self, run->fds[RUN_IN], self,
        run->fds[RUN_OUT], self, run->fds[RUN_ERR], run->nonce, 'e', self, to);
}

/* A line of its own, and not before the first is taken: an error that ends a text ends its line,
 * and some shells drop what they have read beyond it. */
static void say_end(struct host *host)
{
    say(host, REPORT_SURELY "\n", host->run.nonce, 'a', (int)getpid(), host->reports[1]);
}

static void new_nonce(char nonce[17])
{
    uint64_t value = 0;
    if (syscall(SYS_getrandom, &value, sizeof(value), 0) != (long)sizeof(value))
        value = (uint64_t)now_us();
    (void)snprintf(nonce, 17, "%016llx", (unsigned long long)value);
}

static bool waits_to_be_read(int pipe)
{
    int waiting = 0;
    return ioctl(pipe, FIONREAD, &waiting) < 0 || waiting > 0;
}

/* All but bash: the lines come from a file that a line of their input reads on and on, since an ash
 * that waits for its input itself takes the end of a background job for the input's. After an
 * interrupt or an error they are at their input again, and there is one such line: not more, for
 * some have then dropped what they had read beyond. */
static void fill_input(const struct host *host)
{
    char line[48];
    if (host->input < 0 || waits_to_be_read(host->input))
        return;
    int len = snprintf(line, sizeof(line), "\\. /proc/%d/fd/%d\n", (int)getpid(), host->script_end);
    (void)!write(host->input, line, (size_t)len);
}

static bool read_as_file(struct host *host)
{
    int script[2];
    if (pipe2(script, O_CLOEXEC | O_NONBLOCK) < 0)
        return false;
    host->input = host->script;
    host->script = script[1];
    host->script_end = script[0];
    fill_input(host);
    return true;
}

/* --- what a text has started --------------------------------------------------------------------
 */

size_t text_signal(const struct host *host, int signal)
{
    const struct tree tree = {
        .root = getpid(), .spared = host->run.spared, .head = host->base.main_pid};
    return tree_signal(&tree, signal);
}

static uint64_t cpu_us(const struct host *host)
{
    struct process_stat stat;
    long ticks = sysconf(_SC_CLK_TCK);
    if (host->base.main_ended)
        return host->base.report.cpu_us;
    if (ticks < 1 || ticks > TICKS_MAX || !process_stat_read(host->base.main_pid, &stat) ||
        stat.last < 17)
        return 0;
    return (stat.fields[14] + stat.fields[15] + stat.fields[16] + stat.fields[17]) *
           (1000000 / (uint64_t)ticks);
}

/* Where the shell is: a name that leads there. */
static size_t find_directory(const struct host *host, char name[PATH_MAX])
{
    char link[32];
    struct stat there, here;
    (void)snprintf(link, sizeof(link), "/proc/%d/cwd", (int)host->base.main_pid);
    ssize_t len = host->base.main_ended ? -1 : readlink(link, name, PATH_MAX - 1);
    if (len <= 0)
        return 0;
    name[len] = '\0';
    bool leads = stat(link, &here) == 0 && stat(name, &there) == 0 && here.st_dev == there.st_dev &&
                 here.st_ino == there.st_ino;
    return leads ? (size_t)len : 0;
}

/* Sends REPORT over CONTROL, with the directory that the shell is in. */
static void report_with_directory(const struct host *host, int control,
                                  struct supervisor_report *report)
{
    char directory[PATH_MAX];
    struct iovec pieces[2] = {{.iov_base = report, .iov_len = sizeof(*report)},
                              {.iov_base = directory, .iov_len = find_directory(host, directory)}};
    struct msghdr packet = {.msg_iov = pieces, .msg_iovlen = 2};
    while (sendmsg(control, &packet, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

void shell_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void idle(struct host *host)
{
    host->phase = PHASE_IDLE;
    host->phase_until = host->idle_ms > 0 ? now_ms() + host->idle_ms : 0;
}

static void report_begin(struct host *host)
{
    struct supervisor_report report = {.kind = REPORT_STARTED, .pid = host->base.main_pid};
    host->run.begun = true;
    report_with_directory(host, host->run.fds[RUN_CONTROL], &report);
}

void text_finish(struct host *host)
{
    struct run *run = &host->run;
    uint64_t cpu = cpu_us(host);
    if (!run->begun && run->stopping) { /* it was stopped before its first command */
        report_begin(host);
        run->status = run->has_status || host->base.main_ended ? run->status : INTERRUPTED << 8;
    }
    run->report.kind = run->begun ? REPORT_EXITED : REPORT_FAILED;
    run->report.stage = SPAWN_SESSION;
    run->report.status = run->status;
    run->report.shell_ended = host->base.main_ended;
    run->report.wall_us = (uint64_t)(now_us() - run->started_us);
    run->report.cpu_us = cpu > run->cpu_before ? cpu - run->cpu_before : 0;
    for (int i = RUN_IN; i < RUN_FDS; i++)
        shell_close(&run->fds[i]); /* first: their end is the output's end */
    report_with_directory(host, run->fds[RUN_CONTROL], &run->report);
    shell_close(&run->fds[RUN_CONTROL]);
    free(run->spared);
    run->spared = NULL;
    idle(host);
}

/* --- stopping a text ----------------------------------------------------------------------------
 */

static void interrupt(struct host *host)
{
    (void)kill(host->base.main_pid, SIGINT);
    (void)kill(host->base.main_pid, SIGCONT);
}

/* The shell stands still meanwhile, or it would go on with the next command. */
void text_interrupt(struct host *host, int also)
{
    (void)kill(host->base.main_pid, SIGSTOP);
    (void)text_signal(host, SIGINT);
    if (also != 0)
        (void)text_signal(host, also);
    interrupt(host);
}

/* By an interrupt, and TERM for what ignores that. */
void text_stop(struct host *host, int64_t grace_ms)
{
    struct run *run = &host->run;
    int64_t now = now_ms();
    run->report.tree_killed = true;
    run->timeout_at = 0;
    if (run->stopping && now + grace_ms >= run->kill_at)
        return;
    run->kill_at = now + grace_ms;
    run->give_up_at = run->kill_at + GIVE_UP_MS;
    run->next_at = now + INTERRUPT_MS;
    if (run->stopping)
        return;
    run->stopping = true;
    text_interrupt(host, grace_ms > 0 ? SIGTERM : 0);
}

void text_ask_again(struct host *host)
{
    struct run *run = &host->run;
    run->again_at = now_ms() + ASK_MS;
    if (!run->ended && host->script >= 0 && !waits_to_be_read(host->script))
        say_end(host);
}

void text_stop_on(struct host *host)
{
    struct run *run = &host->run;
    int64_t now = now_ms();
    size_t living = 1;
    if (now >= run->kill_at) {
        (void)kill(host->base.main_pid, SIGSTOP);
        living = text_signal(host, SIGKILL);
        (void)kill(host->base.main_pid, SIGCONT);
    } else if (run->ended) {
        living = text_signal(host, 0);
    }
    if (run->ended && (living == 0 || now >= run->give_up_at)) {
        text_finish(host);
        return;
    }
    if (!run->ended && now >= run->give_up_at)
        (void)kill(host->base.main_pid, SIGKILL);
    else if (!run->ended && run->interrupts % 2 == 0)
        interrupt(host);
    else
        text_ask_again(host); /* by turns: an interrupt breaks a line that is being read */
    fill_input(host);
    run->interrupts++;
    run->next_at = now + (run->interrupts < INTERRUPTS ? INTERRUPT_MS : KILL_AGAIN_MS);
}

/* --- from the shell -----------------------------------------------------------------------------
 */

static void on_begin(struct host *host)
{
    report_begin(host);
    say_end(host);
}

static void on_ended(struct host *host)
{
    struct run *run = &host->run;
    run->ended = true;
    fill_input(host);
    if (run->stopping)
        text_stop_on(host);
    else
        text_finish(host);
}

/* Asks whether there is a shell, and which. */
static void say_hello(struct host *host)
{
    say(host, "\\command \\echo %s r \"${BASH_VERSION:+1}0\" >|/proc/%d/fd/%d\n", host->run.nonce,
        (int)getpid(), host->reports[1]);
}

static void on_ready(struct host *host, bool bash)
{
    if (!bash && host->input < 0) {
        if (!read_as_file(host))
            supervisor_fail(&host->base, SPAWN_SETUP, errno, false);
        say_hello(host); /* once more, the other way */
        return;
    }
    fill_input(host);
    struct supervisor_report report = {.kind = REPORT_STARTED, .pid = host->base.main_pid};
    report_with_directory(host, host->base.control, &report);
    idle(host);
}

/* NONCE LETTER STATUS, whatever somebody else has written before it on the same line. */
static void on_line(struct host *host)
{
    struct run *run = &host->run;
    uint64_t status;
    const char *line = strstr(host->line, run->nonce), *end = NULL;
    if (line == NULL || line[16] != ' ' || line[17] == '\0' || line[18] != ' ' ||
        !number_read(line + 19, 255, &status, &end) || *end != '\0')
        return;
    if (host->phase == PHASE_STARTING) {
        on_ready(host, status != 0);
        return;
    }
    if (host->phase != PHASE_RUNNING || run->ended)
        return;
    if (line[17] == 'b' && !run->begun)
        on_begin(host);
    if (!run->has_status && run->begun && (line[17] == 'e' || line[17] == 'a'))
        run->status = (int)status << 8;
    run->has_status = run->has_status || line[17] == 'e';
    if (line[17] == 'e')
        run->again_at = now_ms() + ASK_MS;
    if (line[17] == 'a' && (run->begun || run->stopping))
        on_ended(host);
}

/* Of a long line the end is kept. */
static void add_to_line(struct host *host, char byte)
{
    if (host->line_len == sizeof(host->line) - 1) {
        host->line_len /= 2;
        memmove(host->line, host->line + sizeof(host->line) - 1 - host->line_len, host->line_len);
    }
    host->line[host->line_len++] = byte;
}

void shell_listen(struct host *host)
{
    char bytes[256];
    ssize_t count;
    while ((count = read(host->reports[0], bytes, sizeof(bytes))) > 0) {
        for (ssize_t i = 0; i < count; i++) {
            if (bytes[i] != '\n') {
                add_to_line(host, bytes[i]);
                continue;
            }
            host->line[host->line_len] = '\0';
            host->line_len = 0;
            on_line(host);
        }
        if (count < (ssize_t)sizeof(bytes))
            return;
    }
}

/* --- from PID 1 ---------------------------------------------------------------------------------
 */

static void refuse(struct run *run)
{
    struct supervisor_report report = {.kind = REPORT_FAILED, .stage = SPAWN_SESSION};
    (void)send(run->fds[RUN_CONTROL], &report, sizeof(report), MSG_NOSIGNAL);
    for (int i = 0; i < RUN_FDS; i++)
        shell_close(&run->fds[i]);
}

void text_begin(struct host *host, const struct supervisor_order *order, const int fds[RUN_FDS])
{
    const struct tree all = {.root = getpid(), .head = host->base.main_pid};
    struct run run = {.started_us = now_us(), .cpu_before = cpu_us(host)};
    memcpy(run.fds, fds, sizeof(run.fds));
    if (host->phase != PHASE_IDLE || host->base.main_ended || host->base.killing != 0) {
        refuse(&run);
        return;
    }
    run.spared = tree_list(&all);
    run.timeout_at = order->timeout_ms > 0 ? now_ms() + order->timeout_ms : 0;
    new_nonce(run.nonce);
    host->run = run;
    host->phase = PHASE_RUNNING;
    host->phase_until = 0;
    fill_input(host);
    say_begin(host);
}

void shell_greet(struct host *host, bool bash)
{
    new_nonce(host->run.nonce);
    if (bash)
        say(host, "\\set +o history; \\unset HISTFILE\n");
    say_hello(host);
    host->phase_until = now_ms() + READY_MS;
}
