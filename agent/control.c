#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/conn.h"
#include "agent/environment.h"
#include "agent/exec.h"
#include "agent/info.h"

#ifndef PODSANDBOX_VERSION
#define PODSANDBOX_VERSION "0"
#endif
#define BLOB_MAX ((size_t)256 << 10)
#define WORKDIR_MAX 4096

/* --- HELLO --------------------------------------------------------------------------------------
 */

static bool same_token(const uint8_t *a, const uint8_t *b)
{
    volatile uint8_t differs = 0;
    for (size_t i = 0; i < PROTO_TOKEN_LEN; i++)
        differs = (uint8_t)(differs | (a[i] ^ b[i]));
    return differs == 0;
}

/* A name may lead to the container of before, whose sandbox is another one. */
static bool is_meant(const struct agent *agent, const struct message *message)
{
    const char *uid = agent->options.uid;
    struct field said;
    return uid == NULL || (message_find(message, TAG_UID, &said) && said.len == strlen(uid) &&
                           memcmp(said.data, uid, said.len) == 0);
}

static void refuse_hello(struct conn *conn, const char *code, const char *why)
{
    struct reply reply;
    reply_init(&reply);
    reply_error(&reply, code, "%s", why);
    conn_send_reply(conn, 0, FRAME_HELLO_NO, &reply);
    conn_bye(conn, code, why);
}

/* CONN leaves the pending ones and becomes the stream; the one before it is told so. */
static void attach(struct conn *conn)
{
    struct agent *agent = conn->agent;
    struct conn **link = &agent->pending;
    while (*link != conn)
        link = &(*link)->next;
    *link = conn->next;
    agent->pending_count--;
    struct conn *old = agent->conn;
    if (old != NULL) {
        conn_bye(old, "superseded", "another server has attached");
        old->next = agent->pending; /* conn_sweep() frees it there */
        agent->pending = old;
        agent->pending_count++;
    }
    conn->next = NULL;
    conn->greeted = true;
    agent->conn = conn;
    timer_clear(&agent->loop, &conn->hello_timer);
    timer_clear(&agent->loop, &agent->first_hello);
    timer_clear(&agent->loop, &agent->without_server);
    timer_clear(&agent->loop, &agent->end_without_server);
}

static int64_t deadline_left(const struct agent *agent)
{
    if (agent->deadline_ms == 0)
        return 0;
    int64_t left = agent->deadline_ms - now_ms();
    return left > 0 ? left : 1; /* 0 would say that there is none */
}

/* A limit that cannot be read is left out. */
static void put_limit(struct field_writer *fields, uint16_t tag, bool (*read)(uint64_t *ret_value))
{
    uint64_t value = 0;
    if (read(&value))
        field_put_u64(fields, tag, value);
}

/* The limit may have been changed while there was no server. */
static void look_at_cpus(struct agent *agent)
{
    uint64_t milli;
    agent->cpus = cgroup_cpu_limit(&milli) ? (milli + 999) / 1000 : 0;
}

static void send_hello_ok(struct conn *conn, bool fresh)
{
    struct agent *agent = conn->agent;
    look_at_cpus(agent);
    size_t cap = 1024 + agent->blob_len + agent->exec_count * (PROTO_EXEC_ID_MAX + 6);
    uint8_t *room = malloc(cap);
    if (room == NULL) {
        conn_lose(conn);
        return;
    }
    struct field_writer fields = {.ptr = room, .cap = cap};
    field_put_u64(&fields, TAG_VERSION, PROTO_VERSION);
    field_put_text(&fields, TAG_AGENT, PODSANDBOX_VERSION);
    field_put_u64(&fields, TAG_FRESH, fresh);
    field_put_u64(&fields, TAG_CONFIGURED, agent->configured);
    field_put_u64(&fields, TAG_DEADLINE_MS, (uint64_t)deadline_left(agent));
    field_put_u64(&fields, TAG_UPTIME_MS, (uint64_t)(now_ms() - agent->started_ms));
    put_limit(&fields, TAG_MEMORY_LIMIT, cgroup_memory_limit);
    put_limit(&fields, TAG_PIDS_LIMIT, cgroup_pids_limit);
    put_limit(&fields, TAG_CPU_MILLI, cgroup_cpu_limit);
    if (agent->blob != NULL) {
        field_put(&fields, TAG_BLOB, agent->blob, agent->blob_len);
        field_put_u64(&fields, TAG_BLOB_VERSION, agent->blob_version);
    }
    exec_list(agent, &fields);
    conn_send(conn, 0, FRAME_HELLO_OK, fields.ptr, fields.len);
    explicit_bzero(room, cap);
    free(room);
}

static void on_hello(struct conn *conn, const struct message *message)
{
    struct agent *agent = conn->agent;
    struct field token;
    if (conn->greeted)
        return;
    if (message_u64(message, TAG_VERSION, 0) == 0 || !message_find(message, TAG_TOKEN, &token) ||
        token.len != PROTO_TOKEN_LEN) {
        refuse_hello(conn, "invalid_request", "the hello has no version or no token");
        return;
    }
    if (!is_meant(agent, message)) {
        refuse_hello(conn, "not_ready", "this is the agent of another sandbox");
        return;
    }
    bool fresh = !agent->has_token;
    if (fresh) {
        memcpy(agent->token, token.data, PROTO_TOKEN_LEN);
        agent->has_token = true;
    } else if (!same_token(agent->token, token.data)) {
        refuse_hello(conn, "forbidden", "the token is not this sandbox's");
        return;
    }
    attach(conn);
    send_hello_ok(conn, fresh);
}

/* --- CONFIGURE ----------------------------------------------------------------------------------
 */

void agent_set_deadline(struct agent *agent, int64_t left_ms)
{
    if (left_ms == 0) {
        agent->deadline_ms = 0;
        timer_clear(&agent->loop, &agent->deadline);
        return;
    }
    agent->deadline_ms = now_ms() + left_ms;
    timer_set(&agent->loop, &agent->deadline, agent->deadline_ms);
}

/* What a CONFIGURE asks for, prepared completely before any of it is taken over. */
struct change {
    char **environment; /* NULL: stays */
    char *workdir;      /* NULL: stays */
    uint8_t *blob;      /* NULL: stays */
    size_t blob_len;
    uint64_t blob_version;
};

static const char *prepare_blob(const struct agent *agent, const struct message *message,
                                struct change *change)
{
    struct field blob;
    if (!message_find(message, TAG_BLOB, &blob))
        return NULL;
    change->blob_version = message_u64(message, TAG_BLOB_VERSION, 0);
    if (blob.len > BLOB_MAX)
        return "too_large";
    if (change->blob_version == 0)
        return "invalid_field";
    if (agent->blob != NULL && change->blob_version < agent->blob_version)
        return "conflict";
    change->blob = malloc((size_t)blob.len + 1);
    if (change->blob == NULL)
        return "busy";
    change->blob_len = blob.len;
    memcpy(change->blob, blob.data, blob.len);
    return NULL;
}

static const char *prepare_environment(const struct agent *agent, const struct message *message,
                                       struct change *change)
{
    bool replace = message_u64(message, TAG_ENV_SET, 0) != 0;
    size_t count = 0;
    if (!replace && message_count(message, TAG_ENV) == 0)
        return NULL;
    char **added = message_texts(message, TAG_ENV, &count);
    if (added == NULL)
        return errno == EINVAL ? "invalid_field" : "busy";
    if (!environment_well_formed(added)) {
        free(added);
        return "invalid_field";
    }
    change->environment = environment_merge(replace ? NULL : agent->environment, added, NULL);
    free(added);
    return change->environment == NULL ? "busy" : NULL;
}

static const char *prepare_workdir(const struct message *message, struct change *change)
{
    char path[WORKDIR_MAX];
    int found = message_text(message, TAG_WORKDIR, path, sizeof(path));
    if (found == 0)
        return NULL;
    if (found < 0 || path[0] != '/')
        return "invalid_field";
    change->workdir = strdup(path);
    return change->workdir == NULL ? "busy" : NULL;
}

static void change_done(struct change *change)
{
    free(change->environment);
    free(change->workdir);
    free(change->blob);
}

static void take_over(struct agent *agent, struct change *change)
{
    if (change->environment != NULL) {
        free(agent->environment);
        agent->environment = change->environment;
    }
    if (change->workdir != NULL) {
        free(agent->workdir);
        agent->workdir = change->workdir;
    }
    if (change->blob != NULL) {
        if (agent->blob != NULL)
            explicit_bzero(agent->blob, agent->blob_len);
        free(agent->blob);
        agent->blob = change->blob;
        agent->blob_len = change->blob_len;
        agent->blob_version = change->blob_version;
    }
    agent->configured = true;
}

static void on_configure(struct conn *conn, const struct message *message)
{
    struct agent *agent = conn->agent;
    struct change change = {0};
    struct field field;
    struct reply reply;
    uint64_t left_ms = message_u64(message, TAG_DEADLINE_MS, 0);
    const char *problem = prepare_blob(agent, message, &change);
    if (problem == NULL)
        problem = prepare_environment(agent, message, &change);
    if (problem == NULL)
        problem = prepare_workdir(message, &change);
    if (problem == NULL && left_ms > INT64_MAX / 2)
        problem = "invalid_field";

    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_SEQ, message_u64(message, TAG_SEQ, 0));
    if (problem != NULL) {
        change_done(&change);
        reply_error(&reply, problem, "the configuration was not taken");
    } else {
        take_over(agent, &change);
        if (message_find(message, TAG_INFO, &field))
            agent->info_path = info_write(field.data, field.len);
        if (message_find(message, TAG_DEADLINE_MS, &field))
            agent_set_deadline(agent, (int64_t)left_ms);
        field_put_u64(&reply.fields, TAG_DEADLINE_MS, (uint64_t)deadline_left(agent));
    }
    conn_send_reply(conn, 0, FRAME_CONFIGURED, &reply);
}

void control_message(struct conn *conn, uint8_t type, const struct message *message)
{
    if (type == FRAME_HELLO)
        on_hello(conn, message);
    else if (type == FRAME_CONFIGURE)
        on_configure(conn, message);
    else if (type == FRAME_PING)
        conn_send(conn, 0, FRAME_PONG, message->data, message->len);
}
