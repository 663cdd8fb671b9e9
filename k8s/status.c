#include "k8s/status.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/json.h"
#include "base/str.h"

#define QUOTE_MAX 1024

/* What a forbidden request was refused by: words that the API server's own admission uses. The
 * first match decides; the cluster's text is kept whatever it is. */
static const struct {
    const char *words;
    enum err_code code;
} refusals[] = {
    {"exceeded quota", ERR_QUOTA_EXCEEDED},
    {"failed calling webhook", ERR_BACKEND_UNAVAILABLE},
    {"denied the request", ERR_ADMISSION_DENIED},
    {"denied request", ERR_ADMISSION_DENIED},
    {"violates PodSecurity", ERR_ADMISSION_DENIED},
    {"pod rejected: RuntimeClass", ERR_RUNTIME_CLASS_MISSING},
    {"failed quota", ERR_ADMISSION_DENIED},
    {"is forbidden: User ", ERR_BACKEND_FORBIDDEN},
    {"forbidden: User ", ERR_BACKEND_FORBIDDEN},
    {"is forbidden: ", ERR_ADMISSION_DENIED}, /* an admission plugin: LimitRanger, Priority, … */
};

static enum err_code refusal_code(const char *message, enum err_code fallback)
{
    /* The second check of an exec (the verb `create`) gives no reason at all. */
    if (str_ends(message, "is forbidden: ") || str_ends(message, "is forbidden:"))
        return ERR_BACKEND_FORBIDDEN;
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        if (strstr(message, refusals[i].words) != NULL)
            return refusals[i].code;
    }
    return fallback;
}

static enum err_code code_of(int http_status, const char *reason, const char *message)
{
    switch (http_status) {
    case 400:
        return refusal_code(message, ERR_INVALID_OBJECT);
    case 401:
        return ERR_BACKEND_UNAUTHORIZED;
    case 403:
        return refusal_code(message, ERR_BACKEND_FORBIDDEN);
    case 404:
        return ERR_BACKEND_NOT_FOUND;
    case 408:
    case 502:
    case 503:
    case 504:
        return ERR_BACKEND_UNAVAILABLE;
    case 409:
        return strcmp(reason, "AlreadyExists") == 0 ? ERR_ALREADY_EXISTS : ERR_BACKEND_CONFLICT;
    case 410:
        return ERR_BACKEND_EXPIRED;
    case 413:
        return ERR_TOO_LARGE;
    case 422:
        return refusal_code(message, ERR_INVALID_OBJECT);
    case 429:
        return ERR_BACKEND_THROTTLED;
    case 500:
        if (strcmp(reason, "ServerTimeout") == 0 || strcmp(reason, "Timeout") == 0)
            return ERR_BACKEND_UNAVAILABLE;
        return refusal_code(message, ERR_BACKEND);
    default:
        return refusal_code(message, http_status > 500 ? ERR_BACKEND_UNAVAILABLE : ERR_BACKEND);
    }
}

/* Printable text out of a body that is no Status: a proxy's HTML, a plain line. */
static char *quote(const char *body, size_t len)
{
    cleanup_buf struct buf text = BUF_INIT(QUOTE_MAX + 8);
    bool space = true;

    for (size_t i = 0; i < len && text.len < QUOTE_MAX; i++) {
        unsigned char c = (unsigned char)body[i];

        if (c <= ' ' || c == 0x7f) {
            if (!space)
                (void)buf_append_char(&text, ' ');
            space = true;
            continue;
        }
        (void)buf_append(&text, c < 0x80 ? &body[i] : "?", 1);
        space = false;
    }
    if (len > 0 && text.len >= QUOTE_MAX)
        (void)buf_append_str(&text, "...");
    return buf_take(&text, NULL);
}

static void describe(const struct status_request *request, char *text, size_t size)
{
    (void)snprintf(text, size, "%s %s%s%s", request->verb, request->resource,
                   request->name != NULL ? " " : "", request->name != NULL ? request->name : "");
}

int status_error(const struct status_request *request, int http_status, const char *body,
                 size_t len, struct err *err)
{
    cleanup_json struct json *json = NULL;
    cleanup_free char *quoted = NULL;
    const char *message = NULL, *reason = NULL;
    char what[160];
    enum err_code code;

    describe(request, what, sizeof(what));
    if (json_parse(body, len, JSON_LENIENT, &json, NULL) == 0) {
        int64_t status = json_get_int(json, "code", 0);

        message = json_get_text(json, "message");
        reason = json_get_text(json, "reason");
        if (http_status == 200 && status > 0 && status < 1000)
            http_status = (int)status; /* an ERROR event of a watch */
    }
    if (message == NULL || message[0] == '\0')
        message = quoted = quote(body, len);
    code = code_of(http_status, reason != NULL ? reason : "", message);
    if (code == ERR_BACKEND_FORBIDDEN && strstr(message, "cannot ") == NULL)
        return err_set(err, code, "not allowed to %s (HTTP %d): %s", what, http_status, message);
    if (message[0] == '\0')
        return err_set(err, code, "%s: HTTP %d", what, http_status);
    if (quoted != NULL)
        return err_set(err, code, "%s: HTTP %d: %s", what, http_status, message);
    return err_set(err, code, "%s: %s", what, message);
}

/* --- the error channel of an exec --------------------------------------------------------------
 */

/* The exit code among the causes, wherever it stands there. */
static bool exit_code_of(const struct json *status, int *ret_code)
{
    const struct json *causes = json_path(status, "details.causes");

    for (const struct json *cause = json_first(causes); cause != NULL; cause = json_next(cause)) {
        const char *reason = json_get_text(cause, "reason");
        uint64_t code;

        if (reason == NULL || strcmp(reason, "ExitCode") != 0)
            continue;
        if (!str_to_u64(str_of(json_get_text(cause, "message")), 255, &code))
            return false;
        *ret_code = (int)code;
        return true;
    }
    return false;
}

enum exec_end status_of_exec(const char *text, size_t len, int *ret_code, char *ret_message,
                             size_t message_size)
{
    cleanup_json struct json *json = NULL;
    const char *status, *message;

    if (json_parse(text, len, JSON_LENIENT, &json, NULL) < 0 || !json_is_object(json))
        return EXEC_END_UNKNOWN;
    status = json_get_text(json, "status");
    message = json_get_text(json, "message");
    (void)snprintf(ret_message, message_size, "%s",
                   message != NULL ? message : "the runtime gave no reason");
    if (status != NULL && strcmp(status, "Success") == 0) {
        *ret_code = 0;
        return EXEC_END_EXITED;
    }
    return exit_code_of(json, ret_code) ? EXEC_END_EXITED : EXEC_END_FAILED;
}
