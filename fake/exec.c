/* Executions that are not run: an answer that was prepared, at its time. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "fake/fake_impl.h"
#include "fake/wire.h"

#define INPUT_WINDOW ((uint64_t)256 << 10)

struct fake_exec {
    struct fake_box *box;
    struct fake_exec *next;
    char id[PROTO_EXEC_ID_MAX + 1];
    int64_t call; /* its number among the calls */
    bool keep, service, forever;
    int64_t started_ms;

    struct wire *wire; /* who follows it, or NULL */
    uint32_t channel;
    bool started_sent, joined, result_sent;

    unsigned columns, rows; /* of its terminal, whose input has no end; 0: none */
    bool takes_input, input_ended;
    uint64_t received, granted;
    struct buf input; /* its beginning, for the record */

    char *merged;             /* both streams of REPLY, on a terminal */
    struct fake_reply *reply; /* NULL: a callback is to say, or it runs until it is ended */
    char *url;                /* of that callback */
    struct json *call_json;   /* what that is told */
    struct callback *callback;
    struct timer delay, timeout;

    bool ended;
    int signal; /* that ended it before its reply was due */
    bool timed_out;
    int64_t ended_ms;
    struct outflow out[2];
};

/* --- the end ----------------------------------------------------------------------------------
 */

static void wake(struct fake_exec *exec)
{
    if (exec->wire != NULL)
        wire_wake(exec->wire);
}

static void note_input(struct fake_exec *exec)
{
    struct json *fields = json_new_object();
    struct str input = {buf_text(&exec->input), exec->input.len};

    if (exec->call_json != NULL)
        calls_put_bytes(exec->call_json, "stdin", input, exec->received);
    calls_put_bytes(fields, "stdin", input, exec->received);
    calls_amend(exec->box->fake->calls, exec->call, fields);
}

/* A terminal shows both streams as one. */
static void merge_streams(struct fake_exec *exec)
{
    const struct fake_reply *reply = exec->reply;
    size_t first = reply->out_len[0], second = reply->out_len[1];

    exec->merged = xmalloc(first + second);
    if (first > 0)
        memcpy(exec->merged, reply->out[0], first);
    if (second > 0)
        memcpy(exec->merged + first, reply->out[1], second);
    exec->out[0].bytes = (const uint8_t *)exec->merged;
    exec->out[0].len = first + second;
}

static void end(struct fake_exec *exec)
{
    if (exec->ended)
        return;
    timer_stop(&exec->delay);
    timer_stop(&exec->timeout);
    exec->ended = true;
    exec->box->service_ended = exec->box->service_ended || (exec->service && exec->signal == 0);
    exec->ended_ms = clock_now_ms();
    if (exec->columns > 0)
        note_input(exec);
    for (int i = 0; i < 2 && exec->signal == 0 && exec->columns == 0; i++) {
        exec->out[i].bytes = (const uint8_t *)exec->reply->out[i];
        exec->out[i].len = exec->reply->out_len[i];
    }
    if (exec->signal == 0 && exec->columns > 0)
        merge_streams(exec);
    wake(exec);
}

/* Sooner than its reply says. */
static void end_by_signal(struct fake_exec *exec, int number)
{
    if (exec->ended)
        return;
    exec->signal = number;
    end(exec);
}

/* The whole sandbox goes with this command. */
static void lose_sandbox(struct fake_exec *exec)
{
    struct fake_box *box = exec->box;

    fake_agent_end(box, "terminated", exec->reply->message); /* frees EXEC */
    fake_box_fail(box, ERR_CONTAINER_EXITED);
}

static void on_delay(struct timer *timer)
{
    struct fake_exec *exec = container_of(timer, struct fake_exec, delay);

    if (exec->reply->failure == ERR_SANDBOX_GONE)
        lose_sandbox(exec);
    else
        end(exec);
}

static void on_timeout(struct timer *timer)
{
    struct fake_exec *exec = container_of(timer, struct fake_exec, timeout);

    exec->timed_out = true;
    end_by_signal(exec, SIGTERM);
}

static void proceed(struct fake_exec *exec);

static void on_callback(void *arg, struct fake_reply *reply)
{
    struct fake_exec *exec = arg;

    exec->callback = NULL;
    exec->reply = reply;
    proceed(exec);
}

static void begin_callback(struct fake_exec *exec)
{
    struct callbacks *callbacks = exec->box->fake->callbacks;

    if (callbacks != NULL) /* else the server stops */
        exec->callback =
            callback_start(callbacks, exec->url, TAKE_PTR(exec->call_json), on_callback, exec);
}

/* Its input is complete, and so it can be answered. */
static void proceed(struct fake_exec *exec)
{
    int64_t left;

    if (exec->ended || exec->forever)
        return;
    if (exec->reply == NULL) {
        begin_callback(exec);
        return;
    }
    left = exec->started_ms + exec->reply->delay_ms - clock_now_ms();
    exec->delay.fire = on_delay;
    if (left > 0 || exec->reply->failure == ERR_SANDBOX_GONE)
        timer_start(exec->box->fake->loop, &exec->delay, left > 0 ? left : 0);
    else
        end(exec);
}

/* --- sending ----------------------------------------------------------------------------------
 */

static void send_started(struct fake_exec *exec)
{
    struct reply reply;

    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_PID, 2);
    field_put_u64(&reply.fields, TAG_JOINED, exec->joined);
    field_put_u64(&reply.fields, TAG_KEEP, exec->keep);
    field_put_u64(&reply.fields, TAG_STDIN_DONE, exec->received);
    field_put_u64(&reply.fields, TAG_OFFSET_OUT, exec->out[0].sent);
    field_put_u64(&reply.fields, TAG_OFFSET_ERR, exec->out[1].sent);
    if (exec->columns > 0) {
        field_put_u64(&reply.fields, TAG_COLUMNS, exec->columns);
        field_put_u64(&reply.fields, TAG_ROWS, exec->rows);
    }
    exec->started_sent = true;
    wire_send_reply(exec->wire, exec->channel, FRAME_STARTED, &reply);
}

static void put_end(const struct fake_exec *exec, struct reply *reply)
{
    const struct fake_reply *said = exec->reply;

    if (exec->signal != 0 || said == NULL) {
        if (exec->timed_out)
            reply_error(reply, err_code_name(ERR_TIMEOUT), "the time is over");
        field_put_u64(&reply->fields, TAG_SIGNAL, (uint64_t)exec->signal);
        return;
    }
    if (said->failure != ERR_NONE)
        reply_error(reply, err_code_name(said->failure), "%s", said->message);
    if (said->failure == ERR_COMMAND_NOT_FOUND)
        field_put_u64(&reply->fields, TAG_EXIT_CODE, 127);
    else if (said->failure == ERR_NOT_EXECUTABLE)
        field_put_u64(&reply->fields, TAG_EXIT_CODE, 126);
    else if (said->failure == ERR_OOM_KILLED)
        field_put_u64(&reply->fields, TAG_SIGNAL, SIGKILL);
    else if (said->failure == ERR_NONE && said->signal != 0)
        field_put_u64(&reply->fields, TAG_SIGNAL, (uint64_t)said->signal);
    else if (said->failure == ERR_NONE)
        field_put_u64(&reply->fields, TAG_EXIT_CODE, (uint64_t)said->exit_code);
}

static void send_result(struct fake_exec *exec)
{
    const struct fake_reply *said = exec->signal == 0 ? exec->reply : NULL;
    bool oom = said != NULL && (said->oom_killed || said->failure == ERR_OOM_KILLED);
    bool timed_out = exec->timed_out || (said != NULL && said->failure == ERR_TIMEOUT);
    struct reply reply;

    reply_init(&reply);
    put_end(exec, &reply);
    field_put_u64(&reply.fields, TAG_TIMED_OUT, timed_out);
    field_put_u64(&reply.fields, TAG_OOM, oom);
    field_put_u64(&reply.fields, TAG_WALL_US, (uint64_t)(exec->ended_ms - exec->started_ms) * 1000);
    field_put_u64(&reply.fields, TAG_CPU_US, 0);
    field_put_u64(&reply.fields, TAG_MAX_RSS, 0);
    field_put_u64(&reply.fields, TAG_TOTAL_OUT, exec->out[0].len);
    field_put_u64(&reply.fields, TAG_TOTAL_ERR, exec->out[1].len);
    exec->result_sent = true;
    wire_send_reply(exec->wire, exec->channel, FRAME_RESULT, &reply);
}

static void pump(struct fake_exec *exec, struct wire *wire)
{
    if (!exec->started_sent)
        send_started(exec);
    while (exec->ended && exec->wire == wire && wire_has_room(wire)) {
        bool sent = outflow_send(&exec->out[0], wire, exec->channel, 1);

        if (exec->wire == wire)
            sent = outflow_send(&exec->out[1], wire, exec->channel, 2) || sent;
        if (!sent)
            break;
    }
    if (exec->ended && exec->wire == wire && !exec->result_sent && exec->out[0].end_sent &&
        exec->out[1].end_sent)
        send_result(exec);
}

void fake_exec_pump(struct wire *wire)
{
    struct fake_box *box = wire->box;

    for (struct fake_exec *exec = box->execs; exec != NULL && wire_has_room(wire);
         exec = exec->next) {
        if (exec->wire == wire && !exec->result_sent)
            pump(exec, wire);
    }
}

/* --- the table --------------------------------------------------------------------------------
 */

static struct fake_exec *find_id(const struct fake_box *box, const char *id)
{
    struct fake_exec *exec = box->execs;

    while (exec != NULL && strcmp(exec->id, id) != 0)
        exec = exec->next;
    return exec;
}

static struct fake_exec *find_channel(const struct wire *wire, uint32_t channel)
{
    struct fake_exec *exec = wire->box->execs;

    while (exec != NULL && (exec->wire != wire || exec->channel != channel))
        exec = exec->next;
    return exec;
}

static void exec_free(struct fake_exec *exec)
{
    timer_stop(&exec->delay);
    timer_stop(&exec->timeout);
    callback_cancel(exec->callback);
    fake_reply_unref(exec->reply);
    free(exec->url);
    free(exec->merged);
    json_free(exec->call_json);
    buf_wipe(&exec->input);
    free(exec);
}

static void forget(struct fake_exec *exec)
{
    struct fake_box *box = exec->box;
    struct fake_exec **link = &box->execs;

    while (*link != exec)
        link = &(*link)->next;
    *link = exec->next;
    box->exec_count--;
    exec_free(exec);
}

void fake_exec_free_all(struct fake_box *box)
{
    while (box->execs != NULL)
        forget(box->execs);
}

void fake_exec_list(const struct fake_box *box, struct field_writer *fields)
{
    for (const struct fake_exec *exec = box->execs; exec != NULL; exec = exec->next)
        field_put_text(fields, TAG_EXEC_ID, exec->id);
}

void fake_exec_wire_lost(struct fake_box *box, const struct wire *wire)
{
    for (struct fake_exec *exec = box->execs; exec != NULL; exec = exec->next) {
        if (exec->wire == wire)
            exec->wire = NULL;
    }
}

/* --- starting ---------------------------------------------------------------------------------
 */

static void put_list(struct json *object, const char *name, char *const *texts)
{
    struct json *list = json_set_array(object, name);

    for (; *texts != NULL; texts++)
        json_add_text(list, *texts);
}

static void note_exec(struct fake_exec *exec, const struct message *message, char *const *argv)
{
    struct json *call = json_new_object();
    char workdir[CAP_PATH];
    uint64_t timeout_ms = message_u64(message, TAG_TIMEOUT_MS, 0), number;

    if (str_to_u64(str_of(exec->id), INT64_MAX, &number))
        json_set_int(call, "exec", (int64_t)number);
    put_list(call, "cmd", argv);
    json_set(call, "env", fake_env(message));
    json_set_text(call, "workdir",
                  message_text(message, TAG_WORKDIR, workdir, sizeof(workdir)) > 0
                      ? workdir
                      : exec->box->workdir);
    if (timeout_ms > 0)
        json_set_number(call, "timeout", (double)timeout_ms / 1000.0);
    else
        json_set_null(call, "timeout");
    if (!exec->takes_input)
        json_set_null(call, "stdin");
    if (exec->url != NULL) {
        exec->call_json = json_copy(call);
        json_set_text(exec->call_json, "sandbox", exec->box->id);
    }
    exec->call = calls_add(exec->box->fake->calls, exec->box->id, "exec", call);
}

/* A service without a rule runs until it is told to end; every other command ends well at once. */
static void choose_answer(struct fake_exec *exec, char *const *argv)
{
    struct script_answer answer;

    script_answer(exec->box->fake->script, exec->box->id, argv, &answer);
    exec->forever = exec->service && answer.reply == NULL && answer.callback == NULL;
    exec->url = answer.callback;
    exec->reply = answer.reply;
    if (exec->reply == NULL && exec->url == NULL && !exec->forever)
        exec->reply = fake_reply_new(ERR_NONE, NULL);
}

/* COLUMNS and ROWS, if there are any. */
static void take_size(struct fake_exec *exec, const struct message *message)
{
    uint64_t columns = message_u64(message, TAG_COLUMNS, 0);
    uint64_t rows = message_u64(message, TAG_ROWS, 0);

    if (columns > 0 && columns <= UINT16_MAX && rows > 0 && rows <= UINT16_MAX) {
        exec->columns = (unsigned)columns;
        exec->rows = (unsigned)rows;
    }
}

static void begin(struct fake_exec *exec, const struct message *message, char *const *argv)
{
    bool shell = message_u64(message, TAG_OP, 0) == OP_SHELL; /* it does nothing by itself */
    uint64_t timeout_ms = shell ? 0 : message_u64(message, TAG_TIMEOUT_MS, 0);

    take_size(exec, message);
    exec->takes_input = message_u64(message, TAG_STDIN, 0) != 0;
    exec->input_ended = !exec->takes_input;
    exec->service = !shell && exec->keep && timeout_ms == 0 && fake_box_serves(exec->box, argv);
    exec->box->service_ended = exec->box->service_ended && !exec->service;
    exec->forever = shell;
    if (!shell)
        choose_answer(exec, argv);
    note_exec(exec, message, argv);
    exec->timeout.fire = on_timeout;
    if (timeout_ms > 0 && timeout_ms <= INT64_MAX / 2)
        timer_start(exec->box->fake->loop, &exec->timeout, (int64_t)timeout_ms);
    if (exec->input_ended || exec->columns > 0)
        proceed(exec);
}

static struct fake_exec *start(struct fake_box *box, const char *id, const struct message *message,
                               const char **ret_problem)
{
    size_t count = 0;
    cleanup_free char **argv = message_texts(message, TAG_ARG, &count);
    struct fake_exec *exec;

    if (argv == NULL || count == 0) {
        *ret_problem = "invalid_field";
        return NULL;
    }
    if (box->exec_count >= PROTO_EXECS) {
        *ret_problem = "busy";
        return NULL;
    }
    exec = xcalloc(1, sizeof(*exec));
    exec->box = box;
    memcpy(exec->id, id, strlen(id) + 1);
    exec->keep = message_u64(message, TAG_KEEP, 0) != 0;
    exec->started_ms = clock_now_ms();
    buf_init(&exec->input, CAP_FAKE_CALL_CONTENT);
    exec->next = box->execs;
    box->execs = exec;
    box->exec_count++;
    begin(exec, message, argv);
    return exec;
}

static void follow(struct fake_exec *exec, struct wire *wire, uint32_t channel,
                   const struct message *message)
{
    exec->wire = wire;
    exec->channel = channel;
    exec->started_sent = exec->result_sent = false;
    outflow_follow(&exec->out[0], message_u64(message, TAG_OFFSET_OUT, 0));
    outflow_follow(&exec->out[1], message_u64(message, TAG_OFFSET_ERR, 0));
    exec->granted = exec->received + PROTO_WINDOW;
    wake(exec);
}

void fake_exec_open(struct wire *wire, uint32_t channel, const struct message *message)
{
    char id[PROTO_EXEC_ID_MAX + 1];
    const char *problem = NULL;

    if (message_text(message, TAG_EXEC_ID, id, sizeof(id)) <= 0) {
        wire_send_error(wire, channel, "invalid_field", "EXEC_ID is missing or malformed");
        return;
    }
    struct fake_exec *exec = find_id(wire->box, id);
    bool joined = exec != NULL;
    if (!joined && message_u64(message, TAG_JOIN, 0) != 0) {
        wire_send_error(wire, channel, "not_found", "no exec '%s' here", id);
        return;
    }
    if (!joined)
        exec = start(wire->box, id, message, &problem);
    if (exec == NULL) {
        wire_send_error(wire, channel, problem, "the exec cannot be started: %s", problem);
        return;
    }
    exec->joined = joined;
    follow(exec, wire, channel, message);
}

/* --- frames of a channel ----------------------------------------------------------------------
 */

static void grant(struct fake_exec *exec, bool at_once)
{
    uint8_t payload[FRAME_CREDIT_LEN];
    uint64_t limit = exec->received + INPUT_WINDOW;

    if (!at_once && limit - exec->granted < INPUT_WINDOW / 2)
        return;
    exec->granted = limit;
    frame_credit_write(payload, 0, exec->received, limit);
    wire_send(exec->wire, exec->channel, FRAME_CREDIT, payload, sizeof(payload));
}

static bool take_input(struct fake_exec *exec, const struct frame_data *data)
{
    uint64_t stop = data->offset + data->len;

    if (data->offset > exec->received || stop > exec->granted || !exec->takes_input ||
        (exec->input_ended && stop > exec->received))
        return false;
    if (stop <= exec->received)
        return true;
    size_t known = (size_t)(exec->received - data->offset);
    size_t fresh = data->len - known, room = exec->input.max - exec->input.len;
    (void)buf_append(&exec->input, data->bytes + known, fresh < room ? fresh : room);
    exec->received = stop;
    grant(exec, false);
    return true;
}

static bool end_input(struct fake_exec *exec, uint64_t total)
{
    if (total != exec->received || !exec->takes_input)
        return false;
    if (exec->input_ended)
        return true;
    exec->input_ended = true;
    note_input(exec);
    grant(exec, true);
    proceed(exec);
    return true;
}

bool fake_exec_frame(struct wire *wire, const struct frame *frame, bool *ret_broken)
{
    struct fake_exec *exec = find_channel(wire, frame->channel);
    struct frame_credit credit;
    struct frame_data data;

    if (exec == NULL)
        return false;
    if (frame->type == FRAME_CREDIT) {
        *ret_broken = !frame_credit_read(frame, &credit);
        if (!*ret_broken && (credit.stream == 1 || credit.stream == 2))
            outflow_credit(&exec->out[credit.stream - 1], credit.limit);
        return true;
    }
    *ret_broken = !frame_data_read(frame, &data);
    if (!*ret_broken && data.stream == 0 && frame->type == FRAME_DATA)
        *ret_broken = !take_input(exec, &data);
    else if (!*ret_broken && data.stream == 0)
        *ret_broken = !end_input(exec, data.offset);
    return true;
}

static void on_signal(struct fake_exec *exec, const struct message *message)
{
    uint64_t number = message_u64(message, TAG_SIGNAL, 0);
    struct field grace;

    if (message_find(message, TAG_GRACE_MS, &grace))
        end_by_signal(exec, SIGTERM);
    else if (number > 0 && number <= 64)
        end_by_signal(exec, (int)number);
}

bool fake_exec_message(struct wire *wire, uint32_t channel, uint8_t type,
                       const struct message *message)
{
    struct fake_exec *exec = find_channel(wire, channel);

    if (exec == NULL)
        return false;
    if (type == FRAME_RESIZE) {
        take_size(exec, message);
    } else if (type == FRAME_SIGNAL) {
        on_signal(exec, message);
    } else if (type == FRAME_COMMIT && exec->result_sent) {
        forget(exec);
    } else if (type == FRAME_CANCEL && !exec->result_sent) {
        exec->wire = NULL;
        wire_send_error(wire, channel, "cancelled", "no longer followed");
    }
    return true;
}

/* OP_KILL: a command has nothing below it, so its end is the end of all. */
void fake_exec_kill(struct wire *wire, uint32_t channel, const struct message *message)
{
    uint64_t number = message_u64(message, TAG_SIGNAL, 0);
    char id[PROTO_EXEC_ID_MAX + 1];
    struct fake_exec *exec;

    if (message_text(message, TAG_EXEC_ID, id, sizeof(id)) <= 0 || number > 64) {
        wire_send_error(wire, channel, "invalid_field", "EXEC_ID or SIGNAL");
        return;
    }
    exec = find_id(wire->box, id);
    if (number != 0 && (exec == NULL || exec->ended)) {
        wire_send_error(wire, channel, "conflict", "it has ended");
        return;
    }
    if (exec != NULL)
        end_by_signal(exec, number != 0 ? (int)number : SIGTERM);
    wire_send(wire, channel, FRAME_RESULT, NULL, 0);
}
