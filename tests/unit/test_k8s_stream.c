/* Streams over a scripted exec WebSocket: B01, B02, B03, B05, B16, B38, B43, B45 and the queue of
 * handshakes. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/event.h"
#include "k8s/stream.h"
#include "tests/unit/k8s_peer.h"

#define EXEC "/api/v1/namespaces/ns/pods/sandbox-a/exec"
#define SUCCESS "{\\'status\\':\\'Success\\'}"

static struct k8s_peer peer;
static struct space space;
static struct tracker *tracker;
static struct loop *loop;
static struct streams *streams;

/* One stream and what became of it: the loop thread writes under the lock, the test waits. */
struct client {
    struct stream *stream;
    pthread_mutex_t lock;
    struct event changed;
    bool opened, closed;
    struct err why;
    struct buf text;
    const char *id, *box_uid;
    /* what to do */
    const char *say;   /* once open */
    size_t send, sent; /* so many bytes, once open */
    bool close_on_data, pause;
};

/* Unlocks last: whoever then sees that it is closed may free the client. */
static void notify(struct client *client)
{
    event_fire(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

static void push(struct client *client)
{
    static const char zeros[200000];

    while (client->sent < client->send) {
        size_t left = client->send - client->sent;
        size_t len = left < sizeof(zeros) ? left : sizeof(zeros);
        size_t taken = stream_write(client->stream, zeros, len);

        client->sent += taken;
        if (taken < len)
            return;
    }
}

static void on_opened(void *arg)
{
    struct client *client = arg;

    if (client->say != NULL)
        ck_assert_uint_eq(stream_write(client->stream, client->say, strlen(client->say)),
                          strlen(client->say));
    push(client);
    pthread_mutex_lock(&client->lock);
    client->opened = true;
    notify(client);
}

static void on_received(void *arg, const uint8_t *data, size_t len)
{
    struct client *client = arg;

    pthread_mutex_lock(&client->lock);
    ck_assert(buf_append(&client->text, data, len));
    if (client->close_on_data) {
        stream_close(client->stream);
        client->closed = true;
    }
    notify(client);
}

static void on_writable(void *arg)
{
    push(arg);
}

static void on_closed(void *arg, const struct err *why)
{
    struct client *client = arg;

    pthread_mutex_lock(&client->lock);
    client->closed = true;
    client->why = *why;
    notify(client);
}

static void open_task(void *arg)
{
    static const struct stream_handler handler = {on_opened, on_received, on_writable, on_closed};
    struct client *client = arg;

    client->stream = streams_open(streams, client->id, client->box_uid, &handler, client);
    if (client->pause)
        stream_pause(client->stream, 1);
}

static void close_task(void *arg)
{
    struct client *client = arg;

    pthread_mutex_lock(&client->lock);
    if (!client->closed)
        stream_close(client->stream);
    client->closed = true;
    notify(client);
}

static void resume_task(void *arg)
{
    struct client *client = arg;

    stream_pause(client->stream, 0);
}

static void client_open(struct client *client)
{
    if (client->id == NULL)
        client->id = "a";
    if (client->box_uid == NULL)
        client->box_uid = "p1";
    pthread_mutex_init(&client->lock, NULL);
    event_init(&client->changed);
    client->text = BUF_INIT(256 * MIB);
    loop_post(loop, open_task, client);
}

static void client_done(struct client *client)
{
    buf_done(&client->text);
    event_done(&client->changed);
    pthread_mutex_destroy(&client->lock);
}

static void await(struct client *client, const bool *flag)
{
    int64_t deadline_ms = clock_now_ms() + 30000;

    for (;;) {
        uint64_t before = event_count(&client->changed);
        bool there;

        pthread_mutex_lock(&client->lock);
        there = *flag;
        pthread_mutex_unlock(&client->lock);
        if (there)
            return;
        ck_assert_msg(event_block(&client->changed, before, deadline_ms), "did not come");
    }
}

static void note_pod(const char *status)
{
    cleanup_free char *text = xasprintf(
        "{'metadata':{'uid':'p1','labels':{'podsandbox.dev/sandbox-id':'a'}},'spec':{"
        "'nodeName':'n','containers':[{'name':'sandbox','command':['/opt/agent','serve']}]},"
        "'status':%s}",
        status);
    cleanup_json struct json *pod = json_of(text);
    struct box_info info;

    tracker_forget(tracker, "a", "p1");
    tracker_note_pod(tracker, pod, 0, &info);
}

#define HAS_RUN                                                                                    \
    "{'phase':'Running','containerStatuses':[{'name':'sandbox','containerID':'c','state':{'"       \
    "running':{}}}]}"

static void begin(void)
{
    struct access access;
    struct err err;

    ck_assert_int_eq(crypto_start(&err), 0);
    peer_start(&peer);
    ck_assert_int_eq(access_from_kubeconfig(peer.kubeconfig, NULL, false, &access, &err), 0);
    space = (struct space){api_new(&access, &err), "ns", "inst"};
    tracker = tracker_new();
    note_pod("{'phase':'Pending'}");
    loop = loop_new(&err);
    ck_assert_ptr_nonnull(loop);
    streams = streams_new(loop, &space, tracker);
}

static void end(void)
{
    api_stop(space.api);
    streams_free(streams);
    loop_stop(loop);
    tracker_free(tracker);
    api_free(space.api);
    peer_stop(&peer);
}

/* Runs one stream to its end against the steps of a WebSocket. */
static void run(struct client *client, const char *steps)
{
    cleanup_free char *rules = xasprintf("[{'path':'" EXEC "','ws':%s}]", steps);

    peer_script(&peer, rules);
    client_open(client);
    await(client, &client->closed);
}

/* --- data ---------------------------------------------------------------------------------------
 */

START_TEST(test_echo)
{
    struct client client = {.say = "hello"};
    cleanup_free char *log = NULL;

    begin();
    run(&client, "[['message',1,''],['echo',5],['message',3,'{}'],['close',1000]]");
    ck_assert_str_eq(buf_text(&client.text), "hello");
    ck_assert(client.opened);
    log = peer_log(&peer);
    ck_assert_int_eq(strncmp(log,
                             "GET " EXEC
                             "?container=sandbox&stdin=true&stdout=true&stderr=true&tty=false"
                             "&command=%2Fopt%2Fagent&command=attach\n",
                             120),
                     0);
    client_done(&client);
    end();
}
END_TEST

/* B01: all that comes after the status, up to the close, is still output. */
START_TEST(test_b01_data_after_status)
{
    struct client client = {.say = NULL};

    begin();
    run(&client,
        "[['message',1,'a'],['message',3,'{\\'status\\':\\'Success\\'}'],['message',1,'b'],"
        "['message',1,'c'],['close',1000]]");
    ck_assert_str_eq(buf_text(&client.text), "abc");
    client_done(&client);
    end();
}
END_TEST

/* B01, B02: without a status it is never a plain end. */
START_TEST(test_b02_cut)
{
    static const char *const steps[] = {
        "[['message',1,'part'],['close',1000]]",
        "[['message',1,'part'],['close',1011]]",
        "[['message',1,'part'],['cut']]",
        "[['message',1,'part'],['reset']]",
        "[['message',1,{'repeat':'part','times':262144}],['cut']]",
        "[['message',1,'part'],['message',3,'{'],['cut']]",
    };

    begin();
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct client client = {.say = NULL};

        run(&client, steps[i]);
        ck_assert_msg(client.why.code == ERR_STREAM_LOST, "row %zu: %s: %s", i,
                      err_code_name(client.why.code), client.why.msg);
        if (i != 3) /* a reset may overtake data */
            ck_assert_uint_eq(client.text.len, i == 4 ? MIB : 4);
        client_done(&client);
    }
    end();
}
END_TEST

/* B16: the first frames come with the handshake; B06: v4 will do, anything else will not. */
START_TEST(test_b06_protocols)
{
    static const struct {
        const char *protocol;
        bool works;
    } rows[] = {{"v5.channel.k8s.io", true},
                {"v4.channel.k8s.io", true},
                {"channel.k8s.io", false},
                {"", false}};

    begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct client client = {.say = NULL};
        cleanup_free char *rules = xasprintf(
            "[{'path':'" EXEC "','protocol':'%s','ws':[['message',1,''],['message',1,'x'],"
            "['pieces',['01','','61','62']],['close',1000]]}]",
            rows[i].protocol);

        peer_script(&peer, rules);
        client_open(&client);
        await(&client, &client.closed);
        ck_assert_int_eq(client.opened, rows[i].works);
        ck_assert_str_eq(buf_text(&client.text), rows[i].works ? "xab" : "");
        if (!rows[i].works)
            ck_assert_msg(client.why.code != ERR_NONE && client.why.code != ERR_NOT_READY, "%s",
                          err_code_name(client.why.code));
        client_done(&client);
    }
    end();
}
END_TEST

/* B05: any size goes, in messages of at most 32 KiB, and all of it. */
START_TEST(test_b05_large)
{
    struct client client = {.send = 48 * MIB};

    begin();
    run(&client, "[['message',1,''],['echo',50331648],['message',3,'x'],['close',1000]]");
    ck_assert_uint_eq(client.text.len, 48 * MIB);
    ck_assert_int_eq(peer_count(&peer, "oversize"), 0);
    ck_assert_int_eq(peer_count(&peer, "stdin 50331648"), 1);
    client_done(&client);
    end();
}
END_TEST

/* Paused from the first moment: nothing comes until it is resumed. */
START_TEST(test_pause)
{
    struct client client = {.pause = true};

    begin();
    peer_script(&peer, "[{'path':'" EXEC
                       "','ws':[['message',1,{'repeat':'x','times':300000}],['wait']]}]");
    client_open(&client);
    await(&client, &client.opened);
    ck_assert_uint_eq(client.text.len, 0);
    loop_post(loop, resume_task, &client);
    while (true) {
        uint64_t before = event_count(&client.changed);
        size_t len;

        pthread_mutex_lock(&client.lock);
        len = client.text.len;
        pthread_mutex_unlock(&client.lock);
        if (len == 300000)
            break;
        ck_assert(event_block(&client.changed, before, clock_now_ms() + 20000));
    }
    loop_post(loop, close_task, &client);
    await(&client, &client.closed);
    client_done(&client);
    end();
}
END_TEST

START_TEST(test_close_in_callback)
{
    struct client client = {.close_on_data = true};

    begin();
    run(&client, "[['message',1,'x'],['message',1,'y'],['wait']]");
    ck_assert_str_eq(buf_text(&client.text), "x");
    client_done(&client);
    end();
}
END_TEST

/* --- refusals -----------------------------------------------------------------------------------
 */

/* B03, B38: what the kubelet says on the status channel. */
START_TEST(test_b38_status)
{
    static const struct {
        const char *status, *pod;
        enum err_code code;
    } rows[] = {
        {"{\\'status\\':\\'Failure\\',\\'message\\':\\'unable to upgrade connection: container not "
         "found\\'}",
         "{'phase':'Pending'}", ERR_NOT_READY},
        {"{\\'status\\':\\'Failure\\',\\'message\\':\\'unable to upgrade connection: container not "
         "found\\'}",
         HAS_RUN, ERR_SANDBOX_GONE},
        {"{\\'status\\':\\'Failure\\',\\'details\\':{\\'causes\\':[{\\'reason\\':\\'ExitCode\\',\\'"
         "message\\':\\'1\\'}]}}",
         HAS_RUN, ERR_NOT_READY},
    };

    begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct client client = {.say = NULL};
        cleanup_free char *steps = xasprintf(
            "[['message',1,''],['message',2,'no agent here'],['message',3,'%s'],['close',1000]]",
            rows[i].status);

        note_pod(rows[i].pod);
        run(&client, steps);
        ck_assert_msg(client.why.code == rows[i].code, "row %zu: %s: %s", i,
                      err_code_name(client.why.code), client.why.msg);
        client_done(&client);
    }
    end();
}
END_TEST

/* B45: each refused handshake is told apart, in the server's words. */
START_TEST(test_b45_refused)
{
    static const struct {
        int status;
        const char *body, *pod;
        enum err_code code;
        const char *words;
    } rows[] = {
        {404, "{'reason':'NotFound','message':'pods sandbox-a not found'}", HAS_RUN,
         ERR_SANDBOX_GONE, "not found"},
        {400, "{'message':'pod sandbox-a does not have a host assigned'}", "{}", ERR_NOT_READY,
         "host assigned"},
        {400, "{'message':'cannot exec into a container in a completed pod'}", HAS_RUN,
         ERR_SANDBOX_GONE, "completed"},
        {400, "{'message':'Upgrade request required'}", HAS_RUN, ERR_BACKEND, "HTTP 400"},
        {403, "{'message':'cannot create resource pods/exec'}", HAS_RUN, ERR_BACKEND_FORBIDDEN,
         "create"},
        {409, "{'message':'in transition'}", HAS_RUN, ERR_NOT_READY, "in transition"},
        {429, "{'message':'slow down'}", HAS_RUN, ERR_BACKEND_THROTTLED, "slow down"},
        {500, "'container not found (main)'", HAS_RUN, ERR_SANDBOX_GONE, "container not found"},
        {500, "'container not found (main)'", "{}", ERR_NOT_READY, "container not found"},
        {500, "{'message':'error dialing backend: dial tcp'}", HAS_RUN, ERR_BACKEND_UNAVAILABLE,
         "dialing"},
        {503, "'down'", HAS_RUN, ERR_BACKEND_UNAVAILABLE, "down"},
        {301, "''", HAS_RUN, ERR_BACKEND, "301"},
        {200, "{}", HAS_RUN, ERR_BACKEND, "200"},
    };

    begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct client client = {.say = NULL};
        cleanup_free char *rules =
            xasprintf("[{'path':'" EXEC "','status':%d,'body':%s,'headers':{'Retry-After':'0'}}]",
                      rows[i].status, rows[i].body);

        note_pod(rows[i].pod);
        peer_script(&peer, rules);
        client_open(&client);
        await(&client, &client.closed);
        ck_assert(!client.opened);
        ck_assert_msg(client.why.code == rows[i].code, "row %zu: %s: %s", i,
                      err_code_name(client.why.code), client.why.msg);
        ck_assert_msg(strstr(client.why.msg, rows[i].words) != NULL, "row %zu: %s", i,
                      client.why.msg);
        client_done(&client);
    }
    end();
}
END_TEST

START_TEST(test_b43_rotated)
{
    struct client client = {.say = "hi"}, refused = {.say = NULL};

    begin();
    free(write_file(&peer.dir, "token", "T2", 0600));
    peer_script(&peer, "[{'path':'" EXEC "','auth':'Bearer T2','ws':[['echo',2],['close',1000]]},"
                       "{'path':'" EXEC "','status':401,'body':{'message':'who?'}}]");
    client_open(&client);
    await(&client, &client.closed);
    ck_assert_str_eq(buf_text(&client.text), "hi");
    client_done(&client);
    /* Nobody is let in: said once, not tried for ever. */
    peer_script(&peer, "[{'path':'" EXEC "','status':401,'body':{'message':'who?'}}]");
    client_open(&refused);
    await(&refused, &refused.closed);
    ck_assert_int_eq(refused.why.code, ERR_BACKEND_UNAUTHORIZED);
    ck_assert_int_le(peer_count(&peer, "GET "), 4);
    client_done(&refused);
    end();
}
END_TEST

START_TEST(test_unknown_pod)
{
    struct client other = {.id = "b"}, earlier = {.box_uid = "p0"};

    begin();
    peer_script(&peer, "[]");
    client_open(&other);
    await(&other, &other.closed);
    ck_assert_int_eq(other.why.code, ERR_SANDBOX_GONE);
    client_open(&earlier);
    await(&earlier, &earlier.closed);
    ck_assert_int_eq(earlier.why.code, ERR_SANDBOX_GONE);
    ck_assert_int_eq(peer_count(&peer, "GET "), 0);
    client_done(&other);
    client_done(&earlier);
    end();
}
END_TEST

START_TEST(test_no_server)
{
    struct client client = {.say = NULL};

    begin();
    close(peer.input);
    ck_assert_int_eq(waitpid(peer.pid, NULL, 0), peer.pid);
    peer.input = -1;
    client_open(&client);
    await(&client, &client.closed);
    ck_assert_int_eq(client.why.code, ERR_BACKEND_UNAVAILABLE);
    client_done(&client);
    end();
}
END_TEST

/* Never more than 32 handshakes at a time; those that wait get their turn, and can be closed
 * meanwhile. */
START_TEST(test_many)
{
    static struct client clients[80];

    begin();
    peer_script(&peer, "[{'path':'" EXEC "','times':80,'ws':[['message',1,'x'],['wait']]}]");
    memset(clients, 0, sizeof(clients));
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        client_open(&clients[i]);
    loop_post(loop, close_task, &clients[70]);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        if (i != 70)
            await(&clients[i], &clients[i].opened);
        loop_post(loop, close_task, &clients[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        await(&clients[i], &clients[i].closed);
        client_done(&clients[i]);
    }
    end();
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_echo,
                                test_b01_data_after_status,
                                test_b02_cut,
                                test_b06_protocols,
                                test_b05_large,
                                test_pause,
                                test_close_in_callback,
                                test_b38_status,
                                test_b45_refused,
                                test_b43_rotated,
                                test_unknown_pod,
                                test_no_server,
                                test_many,
                                NULL};

    return run_tests("k8s_stream", all);
}
