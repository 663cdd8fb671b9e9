#include "agent/exec.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct exec *find_id(const struct agent *agent, const char *id)
{
    struct exec *exec = agent->execs;
    while (exec != NULL && strcmp(exec->id, id) != 0)
        exec = exec->next;
    return exec;
}

static struct exec *find_channel(const struct conn *conn, uint32_t channel)
{
    struct exec *exec = conn->agent->execs;
    while (exec != NULL && (exec->conn != conn || exec->channel != channel))
        exec = exec->next;
    return exec;
}

/* --- sending ------------------------------------------------------------------------------------
 */

static bool has_started_to_say(const struct exec *exec)
{
    return !exec->started_sent && (exec->started || exec->joined);
}

static void send_started(struct exec *exec)
{
    struct reply reply;
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_PID, (uint64_t)exec->pid);
    field_put_u64(&reply.fields, TAG_JOINED, exec->joined);
    field_put_u64(&reply.fields, TAG_KEEP, exec->keep);
    field_put_u64(&reply.fields, TAG_STDIN_DONE, exec->in.ring.end);
    field_put_u64(&reply.fields, TAG_OFFSET_OUT, exec->out[0].sent);
    field_put_u64(&reply.fields, TAG_OFFSET_ERR, exec->out[1].sent);
    if (exec->terminal.columns > 0) {
        field_put_u64(&reply.fields, TAG_COLUMNS, exec->terminal.columns);
        field_put_u64(&reply.fields, TAG_ROWS, exec->terminal.rows);
    }
    if (exec->shell.directory != NULL)
        field_put_text(&reply.fields, TAG_CWD, exec->shell.directory);
    conn_send_reply(exec->conn, exec->channel, FRAME_STARTED, &reply);
    exec->started_sent = true;
    input_grant(exec, false);
}

static void stop_following(struct exec *exec)
{
    source_remove(&exec->source);
    exec->conn = NULL;
    exec->joined = false;
    exec->started_sent = false;
}

static void send_result(struct exec *exec)
{
    struct reply reply;
    reply_init(&reply);
    exec_put_result(exec, &reply);
    conn_send_reply(exec->conn, exec->channel, FRAME_RESULT, &reply);
    exec->result_sent = true;
}

static void pump(struct source *source)
{
    struct exec *exec = (struct exec *)(void *)((char *)source - offsetof(struct exec, source));
    if (has_started_to_say(exec)) {
        send_started(exec);
        return;
    }
    bool first = exec->err_first;
    exec->err_first = !first;
    if (output_send(&exec->out[first]) || output_send(&exec->out[!first]))
        return;
    if (exec->ended && exec->out[0].end_sent && exec->out[1].end_sent && !exec->result_sent)
        send_result(exec);
    source_remove(source);
}

void exec_wake(struct exec *exec)
{
    if (exec->exited && exec->out[0].ended && exec->out[1].ended && !exec->ended) {
        exec->ended = true;
        exec_count_oom(exec);
    }
    if (exec->conn != NULL)
        source_wake(exec->conn, &exec->source);
}

/* --- following ----------------------------------------------------------------------------------
 */

/* Whoever followed it before does so no more. False when an offset is beyond the output. */
static bool follow(struct exec *exec, struct conn *conn, uint32_t channel,
                   const struct message *message)
{
    uint64_t offset_out = message_u64(message, TAG_OFFSET_OUT, 0);
    uint64_t offset_err = message_u64(message, TAG_OFFSET_ERR, 0);
    if (offset_out > exec->out[0].ring.end || offset_err > exec->out[1].ring.end)
        return false;
    if (exec->conn != NULL)
        stop_following(exec);
    exec->conn = conn;
    exec->channel = channel;
    exec->result_sent = false;
    exec->source.pump = pump;
    output_follow(&exec->out[0], offset_out);
    output_follow(&exec->out[1], offset_err);
    input_follow(&exec->in);
    exec_wake(exec);
    return true;
}

static bool good_id(const char *id)
{
    if (*id == '\0')
        return false;
    for (; *id != '\0'; id++) {
        if (*id <= ' ' || *id > '~')
            return false;
    }
    return true;
}

void exec_open(struct conn *conn, uint32_t channel, const struct message *message)
{
    struct agent *agent = conn->agent;
    char id[PROTO_EXEC_ID_MAX + 1];
    const char *problem = NULL;
    if (message_text(message, TAG_EXEC_ID, id, sizeof(id)) <= 0 || !good_id(id)) {
        conn_send_error(conn, channel, "invalid_field", "EXEC_ID is missing or malformed");
        return;
    }
    struct exec *exec = find_id(agent, id);
    bool joined = exec != NULL;
    if (!joined && message_u64(message, TAG_JOIN, 0) != 0) {
        conn_send_error(conn, channel, "not_found", "no exec '%s' here", id);
        return;
    }
    if (!joined)
        exec = exec_start(agent, id, message, &problem);
    if (exec == NULL) {
        conn_send_error(conn, channel, problem, "the exec cannot be started: %s", problem);
        return;
    }
    if (follow(exec, conn, channel, message))
        exec->joined = joined;
    else
        conn_send_error(conn, channel, "invalid_field", "an offset is beyond the output");
}

void exec_stream_lost(struct conn *conn)
{
    for (struct exec *exec = conn->agent->execs; exec != NULL; exec = exec->next) {
        if (exec->conn == conn)
            stop_following(exec);
    }
    output_update_all(conn->agent);
}

void exec_list(const struct agent *agent, struct field_writer *fields)
{
    for (const struct exec *exec = agent->execs; exec != NULL; exec = exec->next)
        field_put_text(fields, TAG_EXEC_ID, exec->id);
}

static void list_supervisors(const struct exec *exec, struct field_writer *fields)
{
    for (; exec != NULL; exec = exec->next) {
        if (exec->supervisor > 0) {
            field_put_text(fields, TAG_EXEC_ID, exec->id);
            field_put_u64(fields, TAG_PID, (uint64_t)exec->supervisor);
        }
    }
}

void exec_list_supervisors(const struct agent *agent, struct field_writer *fields)
{
    list_supervisors(agent->execs, fields);
    list_supervisors(agent->lingering, fields);
}

void exec_kill_all_unkept(struct agent *agent)
{
    for (struct exec *exec = agent->execs; exec != NULL; exec = exec->next) {
        if (!exec->keep && !exec->exited)
            exec_order(exec, 0, SCOPE_TREE, exec->grace_ms);
    }
}

/* --- frames of a channel -------------------------------------------------------------------------
 */

/* The result is stored elsewhere: the id is free, and what the tree still does is nobody's
 * business. */
static void forget(struct exec *exec)
{
    struct agent *agent = exec->agent;
    struct exec **link = &agent->execs;
    while (*link != exec)
        link = &(*link)->next;
    *link = exec->next;
    agent->exec_count--;
    stop_following(exec);
    output_free(&exec->out[0]);
    output_free(&exec->out[1]);
    exec->forgotten = true;
    exec->next = agent->lingering;
    agent->lingering = exec;
    agent->lingering_count++;
    exec_release(exec);
    output_update_all(agent);
}

void exec_release(struct exec *exec)
{
    struct agent *agent = exec->agent;
    if (!exec->forgotten || exec->control.fd >= 0 || exec->out[0].watch.fd >= 0 ||
        exec->out[1].watch.fd >= 0)
        return;
    struct exec **link = &agent->lingering;
    while (*link != exec)
        link = &(*link)->next;
    *link = exec->next;
    agent->lingering_count--;
    free(exec->shell.directory);
    free(exec);
}

static void on_signal(struct exec *exec, const struct message *message)
{
    uint64_t signal = message_u64(message, TAG_SIGNAL, 0);
    uint64_t grace_ms = message_u64(message, TAG_GRACE_MS, (uint64_t)exec->grace_ms);
    if (signal > 64)
        return;
    exec_order(exec, (int)signal, SCOPE_GROUP, grace_ms < 86400000 ? (int64_t)grace_ms : 86400000);
}

bool exec_message(struct conn *conn, uint32_t channel, uint8_t type, const struct message *message)
{
    struct exec *exec = find_channel(conn, channel);
    if (exec == NULL)
        return false;
    if (type == FRAME_SIGNAL) {
        on_signal(exec, message);
    } else if (type == FRAME_RESIZE) {
        terminal_resize(&exec->terminal, exec->out[0].watch.fd, message);
    } else if (type == FRAME_COMMIT && exec->result_sent) {
        forget(exec);
    } else if (type == FRAME_CANCEL && !exec->result_sent) {
        conn_send_error(conn, channel, "cancelled", "no longer followed");
        stop_following(exec);
        output_update_all(conn->agent);
    }
    return true;
}

bool exec_frame(struct conn *conn, const struct frame *frame, bool *ret_broken)
{
    struct exec *exec = find_channel(conn, frame->channel);
    struct frame_credit credit;
    struct frame_data data;
    if (exec == NULL)
        return false;
    if (frame->type == FRAME_CREDIT) {
        *ret_broken = !frame_credit_read(frame, &credit);
        if (!*ret_broken && (credit.stream == 1 || credit.stream == 2)) {
            output_credit(&exec->out[credit.stream - 1], credit.done, credit.limit);
            exec_wake(exec);
        }
        return true;
    }
    *ret_broken = !frame_data_read(frame, &data);
    if (!*ret_broken && data.stream == 0 && frame->type == FRAME_DATA)
        *ret_broken = !input_data(exec, &data);
    else if (!*ret_broken && data.stream == 0)
        *ret_broken = !input_end(exec, data.offset);
    return true;
}
