#include "tests/unit/net_ws_client.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/caps.h"

void client_lock(struct client *client)
{
    pthread_mutex_lock(&client->lock);
}

void client_unlock(struct client *client)
{
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

static void close_now(struct client *client)
{
    ws_close(client->ws);
    client->ws = NULL;
    client->closed = true;
}

static void on_opened(void *arg, const char *protocol)
{
    struct client *client = arg;
    client_lock(client);
    client->opened = true;
    snprintf(client->protocol, sizeof(client->protocol), "%s", protocol);
    if (client->pause_on_open)
        ws_pause(client->ws, 1);
    if (client->close_on_open)
        close_now(client);
    client_unlock(client);
}

static void on_received(void *arg, const uint8_t *data, size_t len, int first, int last)
{
    struct client *client = arg;
    client_lock(client);
    client->misordered |= client->closed || (first != 0) == client->in_message;
    client->in_message = !last;
    client->pieces++;
    client->bytes += len;
    (void)buf_append(&client->text, data, len); /* the first 64 KiB */
    if (last) {
        client->messages++;
        (void)buf_append_char(&client->text, '|');
    }
    if (client->echo)
        ck_assert_int_eq(ws_send(client->ws, data, len / 2, data + len / 2, len - len / 2), 1);
    if (client->pause_on_message)
        ws_pause(client->ws, 1);
    if (client->close_on_message)
        close_now(client);
    client_unlock(client);
}

static void on_writable(void *arg)
{
    struct client *client = arg;
    client_lock(client);
    client->writable++;
    client_unlock(client);
}

static void on_closed(void *arg, int status, const struct err *why)
{
    struct client *client = arg;
    client_lock(client);
    client->misordered |= client->closed;
    client->closed = true;
    client->status = status;
    client->why = *why;
    client->ws = NULL;
    client_unlock(client);
}

static const struct ws_handler handler = {on_opened, on_received, on_writable, on_closed};

void client_connect_task(void *arg)
{
    struct client *client = arg;
    struct ws *ws =
        ws_connect(client->loop, &client->target, &handler, client, &client->connect_err);
    client_lock(client);
    client->ws = ws;
    client->answered = true;
    client_unlock(client);
}

bool client_await(struct client *client, const bool *flag)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    client_lock(client);
    int code = 0;
    while (!*flag && code == 0)
        code = pthread_cond_timedwait(&client->changed, &client->lock, &until);
    bool set = *flag;
    client_unlock(client);
    return set;
}

/* Waits for a count to reach AT_LEAST. */
bool client_await_count(struct client *client, const int *count, int at_least)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    client_lock(client);
    int code = 0;
    while (*count < at_least && code == 0)
        code = pthread_cond_timedwait(&client->changed, &client->lock, &until);
    bool reached = *count >= at_least;
    client_unlock(client);
    return reached;
}

bool client_await_bytes(struct client *client, size_t at_least)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    client_lock(client);
    int code = 0;
    while (client->bytes < at_least && code == 0)
        code = pthread_cond_timedwait(&client->changed, &client->lock, &until);
    bool reached = client->bytes >= at_least;
    client_unlock(client);
    return reached;
}

void client_init(struct client *client, struct loop *loop, const char *url)
{
    memset(client, 0, sizeof(*client));
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    client->loop = loop;
    buf_init(&client->text, CAP_SMALL);
    client->target.url = url;
    client->target.protocols = "v5.channel.k8s.io, v4.channel.k8s.io";
}

void client_connect(struct client *client)
{
    loop_post(client->loop, client_connect_task, client);
    ck_assert(client_await(client, &client->answered));
}

void client_done(struct client *client)
{
    ck_assert(!client->misordered);
    buf_done(&client->text);
    pthread_mutex_destroy(&client->lock);
    pthread_cond_destroy(&client->changed);
}

struct loop *start_loop(void)
{
    struct err err;
    struct loop *loop = loop_new(&err);
    ck_assert_msg(loop != NULL, "%s", err.msg);
    return loop;
}

void client_close_task(void *arg)
{
    struct client *client = arg;
    client_lock(client);
    if (client->ws)
        close_now(client);
    client_unlock(client);
}

void sender_task(void *arg)
{
    struct sender *sender = arg;
    client_lock(sender->client);
    ck_assert_int_eq(ws_send(sender->client->ws, "\2", 1, sender->data, sender->len), 1);
    client_unlock(sender->client);
}
