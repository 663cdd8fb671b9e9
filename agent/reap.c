#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/exec.h"
#include "agent/helper.h"
#include "agent/tree_kill.h"

static size_t add_supervisors(const struct exec *exec, pid_t *pids, size_t count)
{
    for (; exec != NULL; exec = exec->next) {
        if (exec->supervisor > 0)
            pids[count++] = exec->supervisor;
    }
    return count;
}

void reap_strays(struct agent *agent)
{
    pid_t *spared = calloc(agent->exec_count + agent->lingering_count + 2, sizeof(*spared));
    if (spared == NULL)
        return;
    size_t count = add_supervisors(agent->execs, spared, 0);
    count = add_supervisors(agent->lingering, spared, count);
    if (agent->helper.pid > 0)
        spared[count] = agent->helper.pid;
    const struct tree tree = {.root = getpid(), .spared = spared};
    (void)tree_signal(&tree, SIGKILL);
    free(spared);
}

static void reap_all(struct agent *agent)
{
    bool strays = false;
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            break;
        if (pid == agent->helper.pid)
            helper_restart(agent);
        else if (exec_supervisor_reaped(agent, pid) && WIFSIGNALED(status))
            strays = true; /* killed before its work was done: its tree is ours now */
    }
    if (strays)
        reap_strays(agent);
}

static void on_signal(struct watch *watch, uint32_t events)
{
    (void)events;
    struct agent *agent = (struct agent *)(void *)((char *)watch - offsetof(struct agent, signals));
    struct signalfd_siginfo info;
    while (read(watch->fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        /* Only from outside of the PID namespace, which shows as 0: what runs in the sandbox must
         * not end it. */
        if (info.ssi_signo != SIGCHLD && info.ssi_pid == 0)
            agent_end(agent, PROTO_EXIT_TERMINATED, "terminated", "the sandbox was told to end");
    }
    reap_all(agent);
}

int reaper_open(struct agent *agent)
{
    sigset_t mask;
    for (int i = 1; i < NSIG; i++) {
        if (i != SIGKILL && i != SIGSTOP)
            (void)signal(i, i == SIGPIPE ? SIG_IGN : SIG_DFL);
    }
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    if (pthread_sigmask(SIG_SETMASK, &mask, NULL) != 0)
        return -1;
    int fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -1;
    agent->signals = (struct watch){.fd = fd, .ready = on_signal};
    return loop_watch(&agent->loop, &agent->signals, EPOLLIN);
}
