#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "sandbox/call.h"
#include "tests/unit/domain_double.h"
#include "tests/unit/poll_loop.h"
#include "tests/unit/temp_dir.h"

/* The real agent (PID 1 of a PID namespace of its own), over a Unix socket, with the threads that
 * the server has: one for the loop, some workers, and this one as a client. */

#define WAIT_MS 60000

static struct temp_dir dir;
static char *socket_path;
static pid_t agent_pid;
static struct loop *loop;
static struct sandbox *sandbox;
static struct event up;

/* --- the agent --------------------------------------------------------------------------- */

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(path), sizeof(address.sun_path));
    memcpy(address.sun_path, path, strlen(path));
    return address;
}

static void start_agent(void)
{
    struct sockaddr_un address = address_of(socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    agent_pid = fork();
    if (agent_pid == 0) {
        ck_assert_int_ge(dup2(fd, 9), 0);
        execlp("unshare", "unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child",
               "--mount-proc", PODSANDBOX_AGENT, "serve", "--listen-fd", "9", NULL);
        _exit(99);
    }
    close(fd);
}

static void stop_agent(void)
{
    kill(agent_pid, SIGKILL); /* --kill-child: all of it */
    waitpid(agent_pid, NULL, 0);
    unlink(socket_path);
}

static struct stream *driver_open(void *self, const char *id, const char *box_uid,
                                  const struct stream_handler *handler, void *arg)
{
    (void)self;
    (void)id;
    (void)box_uid;
    struct sockaddr_un address = address_of(socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        struct err why;
        (void)err_errno(&why, ERR_NOT_READY, errno, "connect");
        close(fd);
        handler->closed(arg, &why);
        return NULL;
    }
    return poll_stream_new(loop, fd, handler, arg);
}

static const struct driver_ops driver_ops = {.name = "unix", .open = driver_open};
static const struct driver driver = {.ops = &driver_ops};

/* --- the server -------------------------------------------------------------------------- */

static void link_up(void *arg, const struct link_hello *hello)
{
    execs_link_up(arg, hello);
    calls_link_up(arg);
    event_fire(&up);
}

static void link_down(void *arg, const struct err *why)
{
    (void)why;
    execs_link_down(arg);
}

static void link_ended(void *arg, const struct err *why)
{
    (void)arg;
    (void)why;
}

static void link_configured(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why)
{
    (void)arg;
    (void)seq;
    (void)deadline_ms;
    (void)why;
}

static const struct link_handler link_handler = {link_up, link_down, link_ended, link_configured};

static void connect_on_loop(void *arg)
{
    (void)arg;
    struct link_target target = {.driver = &driver,
                                 .loop = loop,
                                 .id = "box",
                                 .uid = "u-1",
                                 .box_uid = "b-1",
                                 .shared = &sandbox->all->link_shared};
    sandbox->link = link_new(&target, &link_handler, sandbox);
    link_start(sandbox->link);
}

static void disconnect_on_loop(void *arg)
{
    struct err why = {.code = ERR_STOPPING};
    (void)arg;
    link_stop(sandbox->link);
    sandbox->link = NULL;
    execs_release(sandbox);
    calls_sandbox_ended(sandbox, &why);
}

static void start_server(void)
{
    struct err err;
    uint64_t seen = event_count(&up);
    loop = loop_new(&err);
    sandbox = domain_new(dir.path, loop, &driver);
    sandbox->all->work = pool_new("work", 3, 10000);
    ck_assert_msg(execs_adopt(sandbox, &err) == 0, "%s", err.msg);
    poll_loop_call(loop, connect_on_loop, NULL);
    ck_assert_msg(event_block(&up, seen, clock_now_ms() + WAIT_MS), "the agent does not answer");
}

static void nothing(void *arg)
{
    (void)arg;
}

static void stop_server(void)
{
    poll_loop_call(loop, disconnect_on_loop, NULL);
    pool_stop(sandbox->all->work);
    poll_loop_call(loop, nothing, NULL);
    domain_free(sandbox);
    loop_stop(loop);
}

static void setup(void)
{
    temp_dir_make(&dir);
    socket_path = temp_path(&dir, "agent");
    event_init(&up);
    start_agent();
    start_server();
}

static void teardown(void)
{
    stop_server();
    stop_agent();
    event_done(&up);
    free(socket_path);
    temp_dir_remove(&dir);
}

/* --- executions -------------------------------------------------------------------------- */

static struct exec *start(struct exec_spec *spec)
{
    struct exec *exec = NULL;
    struct err err;
    ck_assert_msg(exec_start(sandbox, spec, &exec, &err) == 0, "%s", err.msg);
    return exec;
}

static struct exec_spec spec_of(const char *command)
{
    struct exec_spec spec = {
        .timeout_ms = 60000, .max_output = 1 << 20, .disconnect_grace_ms = 10000};
    text_list_add(&spec.cmd, "sh");
    text_list_add(&spec.cmd, "-c");
    text_list_add(&spec.cmd, command);
    spec.workdir = xstrdup("/");
    return spec;
}

static void wait_until(struct exec *exec, bool (*reached)(struct exec *exec))
{
    int64_t deadline = clock_now_ms() + WAIT_MS;
    for (;;) {
        uint64_t seen = event_count(exec_changed(exec));
        if (reached(exec))
            return;
        ck_assert_msg(event_block(exec_changed(exec), seen, deadline), "it takes too long");
    }
}

static struct json *finish(struct exec *exec)
{
    struct json *json = NULL;
    struct err err;
    wait_until(exec, exec_ended);
    ck_assert_msg(exec_json(sandbox->all, "u-1", exec_number(exec), true, &json, &err) == 0, "%s",
                  err.msg);
    exec_unref(exec);
    return json;
}

static struct json *run(const char *command)
{
    struct exec_spec spec = spec_of(command);
    return finish(start(&spec));
}

static void check_text(const struct json *json, const char *path, const char *expected)
{
    const char *text = json_text(json_path(json, path));
    ck_assert_msg(text && strcmp(text, expected) == 0, "%s: got %s, expected %s", path,
                  text ? text : "nothing", expected);
}

/* Output of the first stream as it is, from the journal. */
static void read_output(int64_t number, struct buf *out)
{
    const struct exec_key key = {"u-1", number};
    struct exec_reading reading = {.total = 1};
    struct err err;
    while (out->len < reading.total) {
        const struct exec_range range = {.stream = 1, .offset = out->len, .length = 1 << 20};
        ck_assert_msg(exec_output(sandbox->all, &key, &range, out, &reading, &err) == 0, "%s",
                      err.msg);
    }
}

START_TEST(test_runs)
{
    struct json *json = run("echo out; echo err >&2; exit 3");
    check_text(json, "stdout", "out\n");
    check_text(json, "stderr", "err\n");
    ck_assert_int_eq(json_get_int(json, "exit_code", -1), 3);
    json_free(json);
    json = run("kill -9 $$");
    check_text(json, "signal", "KILL");
    json_free(json);
    struct exec_spec spec = spec_of("x");
    text_list_done(&spec.cmd);
    text_list_add(&spec.cmd, "/no/such/program");
    json = finish(start(&spec));
    ck_assert_int_eq(json_get_int(json, "exit_code", -1), 127);
    check_text(json, "error.code", "command_not_found");
    json_free(json);
    spec = spec_of("true");
    free(spec.workdir);
    spec.workdir = xstrdup("/no/such/directory");
    struct exec *exec = start(&spec);
    struct err err;
    wait_until(exec, exec_ended);
    ck_assert(exec_problem(exec, &err));
    ck_assert_int_eq(err.code, ERR_WORKDIR_NOT_FOUND);
    exec_unref(exec);
}
END_TEST

START_TEST(test_timeout)
{
    struct exec_spec spec = spec_of("echo so far; sleep 600 & wait");
    spec.timeout_ms = 300;
    struct json *json = finish(start(&spec));
    ck_assert(json_get_bool(json, "timed_out", false));
    check_text(json, "stdout", "so far\n");
    check_text(json, "error.code", "timeout");
    json_free(json);
}
END_TEST

/* Bytes in and out, with the stream cut again and again while they are under way. */
START_TEST(test_cat)
{
    enum { TOTAL = 8 << 20 };
    struct err err;
    char *data = xmalloc(TOTAL);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < TOTAL; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data[i] = (char)state;
    }
    struct pipe *pipe = pipe_new(1 << 18);
    struct exec_spec spec = spec_of("cat");
    spec.stdin_kind = EXEC_STDIN_PIPE;
    struct exec *exec = start(&spec);
    ck_assert_int_eq(exec_feed(exec, pipe, &err), 0);
    size_t written = 0, next_cut = _i ? 1 << 20 : SIZE_MAX;
    int64_t deadline = clock_now_ms() + WAIT_MS;
    while (written < TOTAL) {
        uint64_t seen = event_count(pipe_writable(pipe));
        size_t size = pipe_write(pipe, data + written, TOTAL - written);
        written += size;
        if (written >= next_cut) {
            poll_streams_cut(loop);
            next_cut += 1 << 20;
        }
        if (size == 0)
            ck_assert_msg(event_block(pipe_writable(pipe), seen, deadline), "stuck");
    }
    pipe_finish(pipe, NULL);
    int64_t number = exec_number(exec);
    struct json *json = finish(exec);
    ck_assert_int_eq(json_get_int(json, "exit_code", -1), 0);
    ck_assert_int_eq(json_get_int(json, "stdout_bytes", -1), TOTAL);
    json_free(json);
    struct buf out = BUF_INIT(TOTAL);
    read_output(number, &out);
    ck_assert_uint_eq(out.len, TOTAL);
    ck_assert(memcmp(out.ptr, data, TOTAL) == 0);
    buf_done(&out);
    pipe_unref(pipe);
    free(data);
}
END_TEST

/* B01: every byte of a large output, and the true exit code, whatever happens to the stream. */
START_TEST(test_seq_with_cuts)
{
    struct exec_spec spec = spec_of("seq 1 1000000; exit 7");
    struct exec *exec = start(&spec);
    int64_t number = exec_number(exec);
    for (int i = 0; i < 9 && !exec_ended(exec); i++) {
        uint64_t seen = event_count(&up);
        poll_streams_cut(loop);
        ck_assert(event_block(&up, seen, clock_now_ms() + WAIT_MS));
    }
    struct json *json = finish(exec);
    ck_assert_int_eq(json_get_int(json, "exit_code", -1), 7);
    ck_assert_int_eq(json_get_int(json, "stdout_bytes", -1), 6888896);
    json_free(json);
    struct buf out = BUF_INIT(16 << 20);
    read_output(number, &out);
    ck_assert_uint_eq(out.len, 6888896);
    const char *line = out.ptr;
    for (int i = 1; i <= 1000000; i++) {
        char *end;
        ck_assert_uint_eq(strtoul(line, &end, 10), (unsigned)i);
        ck_assert_int_eq(*end, '\n');
        line = end + 1;
    }
    buf_done(&out);
}
END_TEST

static bool has_output(struct exec *exec)
{
    struct json *json = NULL;
    struct err err;
    ck_assert_int_eq(exec_record(exec, false, &json, &err), 0);
    bool has = json_get_int(json, "stdout_bytes", 0) > 0;
    json_free(json);
    return has;
}

/* The server goes and comes back while a command runs; nothing of it is lost. */
START_TEST(test_server_killed)
{
    struct exec_spec spec = spec_of("echo begun; read line; seq 1 5000; echo \"$line\"; exit 4");
    spec.keep = true;
    spec.stdin_kind = EXEC_STDIN_BYTES;
    buf_init(&spec.stdin_bytes, 100);
    ck_assert(buf_append_str(&spec.stdin_bytes, "go\n"));
    struct exec *exec = start(&spec);
    while (!has_output(exec))
        usleep(1000); /* output has no event */
    exec_unref(exec);
    stop_server();
    start_server();
    exec = exec_find(sandbox, 1);
    if (exec) {
        wait_until(exec, exec_ended);
        exec_unref(exec);
    }
    struct json *json = NULL;
    struct err err;
    ck_assert_int_eq(exec_json(sandbox->all, "u-1", 1, true, &json, &err), 0);
    ck_assert_int_eq(json_get_int(json, "exit_code", -1), 4);
    const char *text = json_get_text(json, "stdout");
    ck_assert_int_eq(strncmp(text, "begun\n1\n2\n", 10), 0);
    ck_assert_str_eq(text + strlen(text) - 8, "5000\ngo\n");
    json_free(json);
}
END_TEST

START_TEST(test_client_leaves)
{
    struct exec_spec spec = spec_of("sleep 600");
    spec.disconnect_grace_ms = 50;
    struct exec *exec = start(&spec);
    exec_join(exec);
    exec_leave(exec);
    struct json *json = finish(exec);
    check_text(json, "error.code", "cancelled");
    check_text(json, "signal", "TERM");
    json_free(json);
}
END_TEST

START_TEST(test_many_at_once)
{
    enum { COUNT = 150 };
    struct exec *execs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        char command[64];
        snprintf(command, sizeof(command), "echo %d; exit %d", i, i);
        struct exec_spec spec = spec_of(command);
        execs[i] = start(&spec);
        if (i % 40 == 20)
            poll_streams_cut(loop);
    }
    for (int i = 0; i < COUNT; i++) {
        char text[16];
        struct json *json = finish(execs[i]);
        snprintf(text, sizeof(text), "%d\n", i);
        check_text(json, "stdout", text);
        ck_assert_int_eq(json_get_int(json, "exit_code", -1), i);
        json_free(json);
    }
}
END_TEST

/* --- files --------------------------------------------------------------------------------- */

static void wait_for_call(struct call *call)
{
    int64_t deadline = clock_now_ms() + WAIT_MS;
    for (;;) {
        uint64_t seen = event_count(call_changed(call));
        struct err err = {0};
        enum call_state state = call_state(call, &err);
        ck_assert_msg(state != CALL_FAILED, "%s: %s", err_code_name(err.code), err.msg);
        if (state == CALL_DONE)
            return;
        ck_assert(event_block(call_changed(call), seen, deadline));
    }
}

static void write_file(const char *path, const char *data, size_t len)
{
    struct err err;
    struct pipe *pipe = pipe_new(1 << 18);
    struct call *call = call_new(OP_WRITE);
    call_put_text(call, TAG_PATH, path);
    call_upload(call, pipe);
    ck_assert_int_eq(call_start(sandbox, call, &err), 0);
    int64_t deadline = clock_now_ms() + WAIT_MS;
    for (size_t at = 0; at < len;) {
        uint64_t seen = event_count(pipe_writable(pipe));
        size_t size = pipe_write(pipe, data + at, len - at);
        at += size;
        if (size == 0)
            ck_assert(event_block(pipe_writable(pipe), seen, deadline));
    }
    pipe_finish(pipe, NULL);
    wait_for_call(call);
    uint64_t size = 0;
    ck_assert(call_result_u64(call, TAG_SIZE, &size));
    ck_assert_uint_eq(size, len);
    call_unref(call);
    pipe_unref(pipe);
}

static void read_file(const char *path, struct buf *out)
{
    struct err err;
    struct pipe *pipe = pipe_new(1 << 18);
    struct call *call = call_new(OP_READ);
    call_put_text(call, TAG_PATH, path);
    call_download(call, pipe);
    ck_assert_int_eq(call_start(sandbox, call, &err), 0);
    int64_t deadline = clock_now_ms() + WAIT_MS;
    for (;;) {
        uint64_t seen = event_count(pipe_readable(pipe));
        char *at = buf_reserve(out, 65536);
        ck_assert_ptr_nonnull(at);
        size_t size = pipe_read(pipe, at, 65536);
        buf_grew(out, size);
        enum pipe_state state = pipe_state(pipe, &err);
        ck_assert_msg(state != PIPE_FAILED, "%s", err.msg);
        if (state == PIPE_ENDED)
            break;
        if (size == 0)
            ck_assert(event_block(pipe_readable(pipe), seen, deadline));
    }
    wait_for_call(call);
    call_unref(call);
    pipe_unref(pipe);
}

START_TEST(test_files)
{
    enum { TOTAL = 20 << 20 };
    char *data = xmalloc(TOTAL);
    cleanup_free char *path = temp_path(&dir, "file with a \"name\"\n");
    for (size_t i = 0; i < TOTAL; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    write_file(path, data, TOTAL);
    struct buf got = BUF_INIT(TOTAL + 65536);
    read_file(path, &got);
    ck_assert_uint_eq(got.len, TOTAL);
    ck_assert(memcmp(got.ptr, data, TOTAL) == 0);
    write_file(path, "", 0);
    buf_reset(&got);
    read_file(path, &got);
    ck_assert_uint_eq(got.len, 0);
    buf_done(&got);
    free(data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agent_stream");
    TCase *tcase = tcase_create("agent_stream");
    tcase_set_timeout(tcase, 110);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_runs);
    tcase_add_test(tcase, test_timeout);
    tcase_add_loop_test(tcase, test_cat, 0, 2);
    tcase_add_test(tcase, test_seq_with_cuts);
    tcase_add_test(tcase, test_server_killed);
    tcase_add_test(tcase, test_client_leaves);
    tcase_add_test(tcase, test_many_at_once);
    tcase_add_test(tcase, test_files);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
