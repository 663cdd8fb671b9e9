#include "server/exec_body.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"

#define DEFAULT_COLUMNS 80
#define DEFAULT_ROWS 24

struct exec_body {
    struct text_list cmd;
    struct text_map env;
    char *command; /* of a session's text, instead of cmd */
    char *stdin_text, *stdin_encoding, *workdir, *on_disconnect;
    int64_t timeout_ms, max_output, disconnect_grace_ms; /* timeout: -1: not given */
    int64_t columns, rows;
    bool tty, detach;
};

#define BODY(member) offsetof(struct exec_body, member)
/* What both bodies have. */
#define STDIN_FIELD                                                                                \
    {                                                                                              \
        .name = "stdin", .decode = json_decode_text_any, .offset = BODY(stdin_text),               \
        .max = CAP_JSON_STDIN * 2                                                                  \
    }
#define ENCODING_FIELD                                                                             \
    {                                                                                              \
        .name = "stdin_encoding", .decode = json_decode_text, .offset = BODY(stdin_encoding),      \
        .max = 16                                                                                  \
    }
#define TIMEOUT_FIELD                                                                              \
    {                                                                                              \
        .name = "timeout", .decode = json_decode_seconds, .offset = BODY(timeout_ms), .min = 1,    \
        .max = INT64_C(366) * 86400 * 1000                                                         \
    }
#define OUTPUT_FIELD                                                                               \
    {                                                                                              \
        .name = "max_output", .decode = json_decode_int, .offset = BODY(max_output), .min = 0,     \
        .max = CAP_JSON_OUTPUT                                                                     \
    }
#define DETACH_FIELD                                                                               \
    {                                                                                              \
        .name = "detach", .decode = json_decode_bool, .offset = BODY(detach)                       \
    }
#define DISCONNECT_FIELD                                                                           \
    {                                                                                              \
        .name = "on_disconnect", .decode = json_decode_text, .offset = BODY(on_disconnect),        \
        .max = 16                                                                                  \
    }
#define GRACE_FIELD                                                                                \
    {                                                                                              \
        .name = "disconnect_grace", .decode = json_decode_seconds,                                 \
        .offset = BODY(disconnect_grace_ms), .min = 0, .max = INT64_C(3600) * 1000                 \
    }
#define SHARED_FIELDS                                                                              \
    STDIN_FIELD, ENCODING_FIELD, TIMEOUT_FIELD, OUTPUT_FIELD, DETACH_FIELD, DISCONNECT_FIELD,      \
        GRACE_FIELD

static const struct json_field exec_fields[] = {
    {.name = "cmd",
     .decode = json_decode_text_list,
     .offset = BODY(cmd),
     .required = true,
     .min = 1,
     .max = CAP_ARGS},
    {.name = "env", .decode = json_decode_text_map, .offset = BODY(env), .max = CAP_ENV},
    {.name = "workdir",
     .decode = json_decode_text_any,
     .offset = BODY(workdir),
     .min = 1,
     .max = CAP_PATH - 1},
    {.name = "tty", .decode = json_decode_bool, .offset = BODY(tty)},
    {.name = "cols",
     .decode = json_decode_int,
     .offset = BODY(columns),
     .min = 1,
     .max = UINT16_MAX},
    {.name = "rows", .decode = json_decode_int, .offset = BODY(rows), .min = 1, .max = UINT16_MAX},
    SHARED_FIELDS,
    JSON_FIELDS_END,
};

static const struct json_field text_fields[] = {
    {.name = "command",
     .decode = json_decode_text_any,
     .offset = BODY(command),
     .required = true,
     .max = CAP_SESSION_TEXT},
    SHARED_FIELDS,
    JSON_FIELDS_END,
};

static void exec_body_done(struct exec_body *body)
{
    text_list_done(&body->cmd);
    text_map_done(&body->env);
    free(body->command);
    free(body->stdin_text);
    free(body->stdin_encoding);
    free(body->workdir);
    free(body->on_disconnect);
}

static int bad(struct err *err, const char *field, const char *what)
{
    return err_set(err, ERR_INVALID_FIELD, "field '%s' %s", field, what);
}

static int argv_check(const struct text_list *cmd, struct err *err)
{
    size_t total = 0;
    if (!*cmd->items[0]) {
        return bad(err, "cmd", "must begin with a program's name");
    }
    for (size_t i = 0; i < cmd->count; i++) {
        size_t len = strlen(cmd->items[i]);
        if (len > CAP_ARG) {
            return err_set(
                err, ERR_ARGUMENT_TOO_LONG,
                "field 'cmd': argument %zu is longer than the %d bytes that Linux allows", i,
                CAP_ARG);
        }
        total += len + 1;
    }
    return total > CAP_ARGV_BYTES ? err_set(err, ERR_ARGUMENT_TOO_LONG,
                                            "field 'cmd': the arguments are too long together")
                                  : 0;
}

static int stdin_take(const struct exec_body *body, struct exec_spec *spec, struct err *err)
{
    const char *encoding = body->stdin_encoding ? body->stdin_encoding : "utf-8";
    buf_init(&spec->stdin_bytes, CAP_JSON_STDIN);
    if (strcmp(encoding, "raw") == 0) {
        if (body->stdin_text) {
            return bad(err, "stdin", "must be absent when it comes by PUT (stdin_encoding raw)");
        }
        spec->stdin_kind = EXEC_STDIN_PIPE;
        return 0;
    }
    bool base64 = strcmp(encoding, "base64") == 0;
    if (!base64 && strcmp(encoding, "utf-8") != 0) {
        return bad(err, "stdin_encoding", "must be utf-8, base64 or raw");
    }
    if (!body->stdin_text) {
        return 0;
    }
    spec->stdin_kind = EXEC_STDIN_BYTES;
    struct str text = str_of(body->stdin_text);
    bool ok = base64 ? base64_decode(&spec->stdin_bytes, text)
                     : buf_append(&spec->stdin_bytes, text.ptr, text.len);
    if (spec->stdin_bytes.overflow) {
        return err_set(err, ERR_TOO_LARGE,
                       "field 'stdin': at most 1 MiB; send more with stdin_encoding raw");
    }
    return ok ? 0 : bad(err, "stdin", "is not base64");
}

/* What is typed comes by attachments. */
static int terminal_take(const struct exec_body *body, struct exec_spec *spec, struct err *err)
{
    if (!body->tty)
        return body->columns || body->rows
                   ? bad(err, body->columns ? "cols" : "rows", "is the size of a terminal: set tty")
                   : 0;
    if (body->stdin_text || body->stdin_encoding)
        return bad(err, body->stdin_text ? "stdin" : "stdin_encoding",
                   "must be absent with tty: attach, and type");
    spec->columns = body->columns ? (unsigned)body->columns : DEFAULT_COLUMNS;
    spec->rows = body->rows ? (unsigned)body->rows : DEFAULT_ROWS;
    spec->stdin_kind = EXEC_STDIN_PIPE;
    return 0;
}

static int command_take(struct exec_body *body, struct exec_spec *spec, struct err *err)
{
    if (argv_check(&body->cmd, err) < 0 || env_check(&body->env, "env", err) < 0 ||
        terminal_take(body, spec, err) < 0) {
        return -1;
    }
    spec->cmd = body->cmd;
    spec->env = body->env;
    spec->workdir = TAKE_PTR(body->workdir);
    body->cmd = (struct text_list){0};
    body->env = (struct text_map){0};
    return 0;
}

/* A detached one has no timeout unless it asks for one: it ends with its sandbox. */
static int timeout_of(const struct exec_body *body, const struct sandboxes_config *config,
                      int64_t *ret_ms, struct err *err)
{
    if (body->timeout_ms > config->max_exec_timeout_ms) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'timeout': at most %lld seconds on this server",
                       (long long)(config->max_exec_timeout_ms / 1000));
    }
    *ret_ms = body->timeout_ms;
    if (body->timeout_ms < 0) {
        *ret_ms = body->detach || body->tty ? 0 : config->exec_timeout_ms;
    }
    return 0;
}

static int spec_of(struct exec_body *body, const struct sandboxes_config *config, bool patient,
                   struct exec_spec *spec, struct err *err)
{
    const char *leave = body->on_disconnect;
    if (leave && strcmp(leave, "kill") != 0 && strcmp(leave, "keep") != 0) {
        return bad(err, "on_disconnect", "must be kill or keep");
    }
    if (timeout_of(body, config, &spec->timeout_ms, err) < 0 || stdin_take(body, spec, err) < 0) {
        return -1;
    }
    spec->max_output = body->max_output;
    spec->disconnect_grace_ms = body->disconnect_grace_ms;
    spec->keep = leave ? strcmp(leave, "keep") == 0 : body->detach || body->tty || patient;
    return 0;
}

void exec_wish_done(struct exec_wish *wish)
{
    exec_spec_done(&wish->spec);
}

static struct exec_body body_new(const struct sandboxes_config *config)
{
    return (struct exec_body){
        .timeout_ms = -1,
        .max_output = config->max_output,
        .disconnect_grace_ms = 10000,
    };
}

int exec_body_parse(const struct json *json, const struct sandboxes_config *config, bool patient,
                    struct exec_wish *ret_wish, struct err *err)
{
    cleanup(exec_body_done) struct exec_body body = body_new(config);
    if (json_decode(json, exec_fields, "", &body, err) < 0 ||
        command_take(&body, &ret_wish->spec, err) < 0 ||
        spec_of(&body, config, patient, &ret_wish->spec, err) < 0) {
        return -1;
    }
    ret_wish->detach = body.detach;
    return 0;
}

int exec_text_parse(const struct json *json, const struct sandboxes_config *config, bool patient,
                    struct exec_wish *ret_wish, char **ret_text, struct err *err)
{
    cleanup(exec_body_done) struct exec_body body = body_new(config);
    if (json_decode(json, text_fields, "", &body, err) < 0 ||
        spec_of(&body, config, patient, &ret_wish->spec, err) < 0) {
        return -1;
    }
    ret_wish->detach = body.detach;
    *ret_text = TAKE_PTR(body.command);
    return 0;
}
