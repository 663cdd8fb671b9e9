#include "agent/exec_kill.h"

#include <stdlib.h>
#include <string.h>

#include "agent/exec.h"

#define ENDINGS_MAX 1024

/* Somebody waits for the end of a tree. */
struct ending {
    struct ending *next;
    struct conn *conn;
    uint32_t channel;
    pid_t supervisor;
};

static struct exec *find_in(struct exec *exec, const char *id)
{
    while (exec != NULL && strcmp(exec->id, id) != 0)
        exec = exec->next;
    return exec;
}

static struct exec *find(const struct agent *agent, const char *id)
{
    struct exec *exec = find_in(agent->execs, id);
    return exec != NULL ? exec : find_in(agent->lingering, id);
}

static void done(struct conn *conn, uint32_t channel)
{
    conn_send(conn, channel, FRAME_RESULT, NULL, 0);
}

/* Nothing of it is left when its supervisor, which adopts all of it, has been waited for. What a
 * text has left in the background is its session's. */
static void end_tree(struct exec *exec, struct conn *conn, uint32_t channel, int64_t grace_ms)
{
    struct agent *agent = conn->agent;
    if (exec == NULL || exec->supervisor == 0) {
        done(conn, channel);
        return;
    }
    struct ending *ending = agent->ending_count < ENDINGS_MAX ? malloc(sizeof(*ending)) : NULL;
    if (ending == NULL) {
        conn_send_error(conn, channel, "busy", "too many are being ended at once");
        return;
    }
    *ending = (struct ending){
        .next = agent->endings, .conn = conn, .channel = channel, .supervisor = exec->supervisor};
    agent->endings = ending;
    agent->ending_count++;
    exec_order(exec, 0, SCOPE_TREE, grace_ms);
}

void exec_kill_open(struct conn *conn, uint32_t channel, const struct message *message)
{
    char id[PROTO_EXEC_ID_MAX + 1];
    uint64_t signal = message_u64(message, TAG_SIGNAL, 0);
    uint64_t scope = message_u64(message, TAG_SCOPE, SCOPE_GROUP);
    uint64_t grace_ms = message_u64(message, TAG_GRACE_MS, 0);
    if (message_text(message, TAG_EXEC_ID, id, sizeof(id)) <= 0 || signal > 64 ||
        scope > SCOPE_TREE || grace_ms > 86400000) {
        conn_send_error(conn, channel, "invalid_field", "EXEC_ID, SIGNAL, SCOPE or GRACE_MS");
        return;
    }
    struct exec *exec = find(conn->agent, id);
    if (signal == 0) {
        end_tree(exec, conn, channel, (int64_t)grace_ms);
    } else if (exec == NULL || exec->supervisor == 0 || (exec->exited && scope != SCOPE_TREE)) {
        conn_send_error(conn, channel, "conflict", "it has ended");
    } else {
        exec_order(exec, (int)signal, (enum proto_scope)scope, 0);
        done(conn, channel);
    }
}

/* Takes out those of CONN (of one CHANNEL, or all of them), or else those that wait for SUPERVISOR.
 */
static void take_out(struct agent *agent, const struct conn *conn, const uint32_t *channel,
                     pid_t supervisor, bool tell)
{
    struct ending **link = &agent->endings;
    while (*link != NULL) {
        struct ending *ending = *link;
        bool match = conn != NULL
                         ? ending->conn == conn && (channel == NULL || ending->channel == *channel)
                         : ending->supervisor == supervisor;
        if (!match) {
            link = &ending->next;
            continue;
        }
        *link = ending->next;
        agent->ending_count--;
        if (tell)
            done(ending->conn, ending->channel);
        free(ending);
        link = &agent->endings; /* a stream that was lost by this has taken its own out */
    }
}

static bool is_ours(const struct conn *conn, uint32_t channel)
{
    const struct ending *ending = conn->agent->endings;
    while (ending != NULL && (ending->conn != conn || ending->channel != channel))
        ending = ending->next;
    return ending != NULL;
}

bool exec_kill_message(struct conn *conn, uint32_t channel, uint8_t type)
{
    if (!is_ours(conn, channel))
        return false;
    if (type == FRAME_CANCEL) {
        conn_send_error(conn, channel, "cancelled", "no longer waited for");
        take_out(conn->agent, conn, &channel, 0, false);
    }
    return true;
}

void exec_kill_stream_lost(const struct conn *conn)
{
    take_out(conn->agent, conn, NULL, 0, false);
}

void exec_kill_done(struct agent *agent, pid_t supervisor)
{
    take_out(agent, NULL, NULL, supervisor, true);
}
