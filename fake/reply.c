#include "fake/reply.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/mem.h"

#define DELAY_MAX_MS INT64_C(86400000)

struct failure_body {
    char *code, *message;
};

struct body {
    int64_t exit_code;
    char *signal;
    char *out[2];
    int encoding[2];
    int64_t delay_ms;
    bool oom_killed;
    struct failure_body failure;
};

#define AT(member) offsetof(struct body, member)
static const char *const encodings[] = {"utf-8", "base64", NULL};

static const struct json_field failure_fields[] = {
    {.name = "code",
     .decode = json_decode_text,
     .offset = offsetof(struct failure_body, code),
     .required = true,
     .min = 1},
    {.name = "message",
     .decode = json_decode_text_any,
     .offset = offsetof(struct failure_body, message),
     .max = 1024},
    JSON_FIELDS_END,
};

static const struct json_field reply_fields[] = {
    {.name = "exit_code", .decode = json_decode_int, .offset = AT(exit_code), .max = 255},
    {.name = "signal", .decode = json_decode_text, .offset = AT(signal), .min = 1, .max = 16},
    {.name = "stdout", .decode = json_decode_text_any, .offset = AT(out[0]), .max = CAP_JSON_BODY},
    {.name = "stderr", .decode = json_decode_text_any, .offset = AT(out[1]), .max = CAP_JSON_BODY},
    {.name = "stdout_encoding",
     .decode = json_decode_word,
     .offset = AT(encoding[0]),
     .extra = encodings},
    {.name = "stderr_encoding",
     .decode = json_decode_word,
     .offset = AT(encoding[1]),
     .extra = encodings},
    {.name = "delay", .decode = json_decode_seconds, .offset = AT(delay_ms), .max = DELAY_MAX_MS},
    {.name = "oom_killed", .decode = json_decode_bool, .offset = AT(oom_killed)},
    {.name = "failure",
     .decode = json_decode_object,
     .offset = AT(failure),
     .extra = failure_fields},
    JSON_FIELDS_END,
};

/* What an agent may say of an execution, and the loss of the whole sandbox. */
static const enum err_code failures[] = {
    ERR_COMMAND_NOT_FOUND, ERR_NOT_EXECUTABLE, ERR_WORKDIR_NOT_FOUND, ERR_EXEC_FAILED,
    ERR_ARGUMENT_TOO_LONG, ERR_TIMEOUT,        ERR_OOM_KILLED,        ERR_BUSY,
    ERR_SANDBOX_GONE,
};

static void body_done(struct body *body)
{
    free(body->signal);
    free(body->out[0]);
    free(body->out[1]);
    free(body->failure.code);
    free(body->failure.message);
}

static int bad(struct err *err, const char *path, const char *name, const char *what)
{
    return err_set(err, ERR_INVALID_FIELD, "field '%s.%s': %s", path, name, what);
}

/* "KILL" or "9". */
static int signal_of(const char *name)
{
    uint64_t number;

    if (str_to_u64(str_of(name), 64, &number))
        return (int)number;
    for (int i = 1; i < NSIG; i++) {
        const char *known = sigabbrev_np(i);

        if (known != NULL && strcmp(known, name) == 0)
            return i;
    }
    return 0;
}

static int take_failure(const struct body *body, const char *path, struct fake_reply *reply,
                        struct err *err)
{
    enum err_code code;

    if (body->failure.code == NULL)
        return 0;
    code = err_code_from_name(body->failure.code);
    for (size_t i = 0; i < ARRAY_LEN(failures); i++) {
        if (failures[i] == code)
            reply->failure = code;
    }
    if (reply->failure == ERR_NONE)
        return bad(err, path, "failure.code",
                   "must be command_not_found, not_executable, workdir_not_found, exec_failed, "
                   "argument_too_long, timeout, oom_killed, busy or sandbox_gone");
    reply->message = xstrdup(body->failure.message != NULL ? body->failure.message
                                                           : "as the fake driver was told");
    return 0;
}

static int take_output(struct body *body, int stream, const char *path, struct fake_reply *reply,
                       struct err *err)
{
    struct buf bytes = BUF_INIT(CAP_JSON_BODY);
    char *text = TAKE_PTR(body->out[stream]);

    if (text == NULL)
        return 0;
    if (body->encoding[stream] == 0) {
        reply->out_len[stream] = strlen(text);
        reply->out[stream] = text;
        return 0;
    }
    bool good = base64_decode(&bytes, str_of(text));
    free(text);
    if (!good) {
        buf_done(&bytes);
        return bad(err, path, stream == 0 ? "stdout" : "stderr", "is not base64");
    }
    reply->out[stream] = buf_take(&bytes, &reply->out_len[stream]);
    return 0;
}

static int take(struct body *body, const char *path, struct fake_reply *reply, struct err *err)
{
    if (body->signal != NULL) {
        reply->signal = signal_of(body->signal);
        if (reply->signal == 0)
            return bad(err, path, "signal", "must be the name or number of a signal, as KILL");
        if (body->exit_code >= 0)
            return bad(err, path, "exit_code", "a command that a signal ends has none");
    }
    reply->exit_code = body->exit_code >= 0 ? (int)body->exit_code : 0;
    reply->oom_killed = body->oom_killed;
    reply->delay_ms = body->delay_ms;
    if (take_failure(body, path, reply, err) < 0 || take_output(body, 0, path, reply, err) < 0)
        return -1;
    return take_output(body, 1, path, reply, err);
}

int fake_reply_parse(const struct json *value, const char *path, struct fake_reply **ret_reply,
                     struct err *err)
{
    cleanup(body_done) struct body body = {.exit_code = -1};
    struct fake_reply *reply;

    if (!json_is_object(value))
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must be an object", path);
    if (json_decode(value, reply_fields, path, &body, err) < 0)
        return -1;
    reply = fake_reply_new(ERR_NONE, NULL);
    if (take(&body, path, reply, err) < 0) {
        fake_reply_unref(reply);
        return -1;
    }
    *ret_reply = reply;
    return 0;
}

struct fake_reply *fake_reply_new(enum err_code failure, const char *message)
{
    struct fake_reply *reply = xcalloc(1, sizeof(*reply));

    reply->refs = 1;
    reply->failure = failure;
    reply->message = message != NULL ? xstrdup(message) : NULL;
    return reply;
}

struct fake_reply *fake_reply_ref(struct fake_reply *reply)
{
    reply->refs++;
    return reply;
}

void fake_reply_unref(struct fake_reply *reply)
{
    if (reply == NULL || --reply->refs > 0)
        return;
    free(reply->out[0]);
    free(reply->out[1]);
    free(reply->message);
    free(reply);
}
