#include "local/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "local/driver_impl.h"

#define EXIT_NOT_STARTED 127
#define WORDS_MAX 512

static bool says(const char *path, const char *text)
{
    char found[32];
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, found, sizeof(found) - 1) : -1;

    if (n < 0)
        return false;
    found[n] = '\0';
    found[strcspn(found, "\n")] = '\0';
    return strcmp(found, text) == 0;
}

const char *preflight_forbidden(void)
{
    if (says("/proc/sys/user/max_user_namespaces", "0"))
        return "; user.max_user_namespaces is 0: sysctl -w user.max_user_namespaces=10000";
    if (says("/proc/sys/kernel/unprivileged_userns_clone", "0"))
        return "; kernel.unprivileged_userns_clone is 0: sysctl -w "
               "kernel.unprivileged_userns_clone=1";
    if (says("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"))
        return "; AppArmor forbids it: install a profile that allows userns to bwrap, or sysctl -w "
               "kernel.apparmor_restrict_unprivileged_userns=0";
    return "";
}

/* In the child. The agent's own version is what a sandbox needs and nothing more: static, and from
 * where it is bound. */
static _Noreturn void run(const struct local *local, int words)
{
    uid_t uid = local->uids.count > 0 ? local->uids.first : geteuid();
    int null = open("/dev/null", O_RDWR);

    if (dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        dup2(words, STDERR_FILENO) < 0)
        _exit(EXIT_NOT_STARTED);
    if (local->uids.count > 0 &&
        (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)) {
        static const char problem[] = "the first of --local-uids is no uid that can be taken here";
        (void)!write(STDERR_FILENO, problem, sizeof(problem) - 1);
        _exit(EXIT_NOT_STARTED);
    }
    (void)execl(local->bwrap, "bwrap", "--unshare-all", "--unshare-user", "--disable-userns",
                "--as-pid-1", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--proc",
                "/proc", "--dev", "/dev", "--ro-bind", local->agent, "/agent", "--", "/agent",
                "--version", (char *)NULL);
    _exit(EXIT_NOT_STARTED);
}

static void read_words(int fd, char ret_words[WORDS_MAX])
{
    size_t len = 0;
    ssize_t n;

    while (len < WORDS_MAX - 1 && (n = read(fd, ret_words + len, WORDS_MAX - 1 - len)) > 0)
        len += (size_t)n;
    ret_words[len] = '\0';
    ret_words[strcspn(ret_words, "\n")] = '\0';
}

int preflight_run(const struct local *local, struct err *err)
{
    char words[WORDS_MAX];
    int ends[2], status = 0;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(err, ERR_INTERNAL, errno, "pipe");
    pid_t pid = fork();
    if (pid == 0)
        run(local, ends[1]);
    close(ends[1]);
    read_words(ends[0], words);
    close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return err_errno(err, ERR_INTERNAL, errno, "start bubblewrap");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return err_set(err, ERR_CONFIG, "bubblewrap cannot make a sandbox on this machine: %s%s",
                   *words ? words : "it ended without a word", preflight_forbidden());
}
