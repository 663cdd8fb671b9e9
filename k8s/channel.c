#include "k8s/channel.h"

#include <string.h>

#include "base/caps.h"
#include "base/mem.h"
#include "base/str.h"

void channels_init(struct channels *channels)
{
    *channels = (struct channels){
        .current = -1,
        .status = BUF_INIT(CAP_SMALL),
        .stderr_ = BUF_INIT(CHANNEL_STDERR_MAX),
    };
}

void channels_done(struct channels *channels)
{
    buf_done(&channels->status);
    buf_done(&channels->stderr_);
}

static void keep_stderr(struct channels *channels, const uint8_t *data, size_t len)
{
    size_t room = CHANNEL_STDERR_MAX - channels->stderr_.len;

    (void)buf_append(&channels->stderr_, data, len < room ? len : room);
}

/* A status may come in several messages; the first whole one counts. */
static void feed_status(struct channels *channels, const uint8_t *data, size_t len, bool last)
{
    if (channels->end != EXEC_END_UNKNOWN || !buf_append(&channels->status, data, len) || !last)
        return;
    channels->end =
        status_of_exec(buf_text(&channels->status), channels->status.len, &channels->exit_code,
                       channels->message, sizeof(channels->message));
}

bool channels_feed(struct channels *channels, struct piece piece, struct str *ret_out)
{
    if (piece.first)
        channels->current = -1;
    if (channels->current < 0 && piece.len > 0) {
        channels->current = piece.data[0];
        piece.data++;
        piece.len--;
    }
    switch (channels->current) {
    case CHANNEL_STDOUT:
        if (piece.len == 0)
            return false; /* the server's first message is an empty one */
        channels->has_output = true;
        *ret_out = (struct str){(const char *)piece.data, piece.len};
        return true;
    case CHANNEL_STDERR:
        keep_stderr(channels, piece.data, piece.len);
        return false;
    case CHANNEL_STATUS:
        feed_status(channels, piece.data, piece.len, piece.last);
        return false;
    default:
        return false;
    }
}

enum err_code channel_refusal(const char *message, bool container_ran)
{
    static const struct {
        const char *words;
        enum err_code code;
    } known[] = {
        {"does not have a host assigned", ERR_NOT_READY},
        {"completed pod", ERR_SANDBOX_GONE},
        {"deleted state", ERR_SANDBOX_GONE},
        {"executable file not found", ERR_AGENT_FAILED},
        {"no such file or directory", ERR_AGENT_FAILED},
        {"permission denied", ERR_AGENT_FAILED},
        {"error dialing backend", ERR_BACKEND_UNAVAILABLE},
        {"connection refused", ERR_BACKEND_UNAVAILABLE},
        {"i/o timeout", ERR_BACKEND_UNAVAILABLE},
    };
    static const char *const absent[] = {
        "container not found", "not running", "no such container", "stopped",
        "in exited",           "not found",   "in created",        "not created"};

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strstr(message, known[i].words) != NULL)
            return known[i].code;
    }
    for (size_t i = 0; i < ARRAY_LEN(absent); i++) {
        if (strstr(message, absent[i]) != NULL)
            return container_ran ? ERR_SANDBOX_GONE : ERR_NOT_READY;
    }
    return ERR_NONE;
}

/* What the agent's `attach` printed, or, without that, FALLBACK. */
static const char *said(const struct channels *channels, char *text, size_t size,
                        const char *fallback)
{
    size_t len = channels->stderr_.len < size - 1 ? channels->stderr_.len : size - 1;

    memcpy(text, buf_text(&channels->stderr_), len);
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    text[len] = '\0';
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < ' ' || (unsigned char)text[i] > '~')
            text[i] = '?';
    }
    return len > 0 ? text : fallback;
}

void channels_why(const struct channels *channels, bool container_ran, const struct err *lost,
                  struct err *ret_why)
{
    char text[CHANNEL_STDERR_MAX + 1];
    enum err_code code;

    switch (channels->end) {
    case EXEC_END_EXITED:
        if (channels->exit_code == 0 && channels->has_output) {
            *ret_why = (struct err){.code = ERR_NONE};
            return;
        }
        /* Before its first byte: nothing listens yet, or it has been refused. */
        (void)err_set(ret_why, channels->has_output ? ERR_STREAM_LOST : ERR_NOT_READY,
                      "attach ended with exit code %d: %s", channels->exit_code,
                      said(channels, text, sizeof(text), "it said nothing"));
        return;
    case EXEC_END_FAILED:
        code = channel_refusal(channels->message, container_ran);
        if (code == ERR_NONE)
            code = channels->has_output ? ERR_STREAM_LOST : ERR_NOT_READY;
        (void)err_set(ret_why, code, "exec in the pod: %s", channels->message);
        return;
    default:
        /* A server that closes with something of ours unread takes its last words back with it. */
        code = channels->has_output || container_ran ? ERR_STREAM_LOST : ERR_NOT_READY;
        (void)err_set(ret_why, code, "the stream to the agent was cut: %s",
                      said(channels, text, sizeof(text),
                           lost != NULL && lost->code != ERR_NONE ? lost->msg : "no reason given"));
    }
}
