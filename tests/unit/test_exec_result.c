/* What PID 1 makes of reports that programs of the sandbox can write, too: a session's supervisor
 * may be traced by them. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/exec.h"
#include "tests/unit/suite.h"

static const char *failure(int stage)
{
    static struct exec exec;
    struct supervisor_report report = {.kind = REPORT_FAILED};
    exec = (struct exec){.exit_code = -1, .program = "sh"};
    memcpy(&report.stage, &stage, sizeof(stage));
    exec_failed(&exec, &report);
    ck_assert_ptr_nonnull(exec.error);
    return exec.message;
}

START_TEST(test_stages_that_there_are)
{
    ck_assert_ptr_nonnull(strstr(failure(SPAWN_FORK), "new process: "));
    ck_assert_ptr_nonnull(strstr(failure(SPAWN_TERMINAL), "open a terminal: "));
    ck_assert_ptr_nonnull(strstr(failure(SPAWN_SETUP), "set up the process: "));
    ck_assert_ptr_nonnull(strstr(failure(SPAWN_SESSION), "has ended"));
}
END_TEST

START_TEST(test_stages_that_there_are_not)
{
    static const int stages[] = {0, SPAWN_SESSION + 1, 1 << 20, INT32_MAX, -1, INT32_MIN};
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        ck_assert_ptr_nonnull(strstr(failure(stages[i]), "start the process: "));
}
END_TEST

/* Its supervisor has been waited for, but somebody else holds the other end of its socket. */
START_TEST(test_a_session_without_its_supervisor)
{
    static struct agent agent;
    static struct exec session = {.started = true, .shell.kept = true, .id = "1"};
    struct reply reply;
    const char *problem = NULL;
    session.control.fd = 0;
    agent = (struct agent){.execs = &session};
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_OP, OP_SHELL_RUN);
    field_put_text(&reply.fields, TAG_SESSION, "1");
    field_put_text(&reply.fields, TAG_ARG, "true");
    const struct message message = {.data = reply.room, .len = reply.fields.len};
    ck_assert_ptr_null(exec_start(&agent, "2", &message, &problem));
    ck_assert_str_eq(problem, "session_ended");
}
END_TEST

static void check_ended(const struct exec *exec, int peer)
{
    char byte = 'x';
    ck_assert_int_eq(recv(exec->control.fd, &byte, 1, MSG_DONTWAIT), 1);
    ck_assert_int_eq(byte, 'r');
    ck_assert_int_eq(recv(exec->control.fd, &byte, 1, MSG_DONTWAIT), 0);
    ck_assert_int_eq(send(peer, "r", 1, MSG_NOSIGNAL), -1);
}

/* As above: then its end, and that of its text, are heard of nevertheless. */
START_TEST(test_copies_of_its_sockets_keep_nothing_open)
{
    static struct agent agent;
    static struct exec text = {.supervisor = -1, .shell.host = 77};
    static struct exec session = {.supervisor = 77, .shell.kept = true, .next = &text};
    int pairs[2][2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pairs[i]), 0);
        ck_assert_int_eq(send(pairs[i][1], "r", 1, 0), 1);
    }
    session.control.fd = pairs[0][0];
    text.control.fd = pairs[1][0];
    agent = (struct agent){.execs = &session};
    ck_assert(!exec_supervisor_reaped(&agent, 78));
    ck_assert_int_eq(send(pairs[0][1], "r", 1, MSG_NOSIGNAL), 1);
    ck_assert_int_eq(recv(pairs[0][0], &(char){0}, 1, MSG_DONTWAIT), 1);
    ck_assert(exec_supervisor_reaped(&agent, 77));
    ck_assert_int_eq(session.supervisor, 0);
    check_ended(&session, pairs[0][1]);
    check_ended(&text, pairs[1][1]);
    for (int i = 0; i < 2; i++) {
        (void)close(pairs[i][0]);
        (void)close(pairs[i][1]);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_stages_that_there_are, test_stages_that_there_are_not,
                                  test_a_session_without_its_supervisor,
                                  test_copies_of_its_sockets_keep_nothing_open, NULL};
    return run_suite("exec_result", tests, NULL, NULL);
}
