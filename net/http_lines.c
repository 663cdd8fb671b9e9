#include <stdatomic.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "net/http_handle.h"

/* A reply in lines runs on a multi handle of its own: curl_easy_perform() would look at a stop flag
 * only once a second. */
#define LOOK_MS 250

struct reader {
    struct http_handle *handle;
    const struct http_lines *lines;
    struct buf line; /* the beginning of one that has not ended */
    struct http_reply reply;
    int64_t last_byte_ms;
    bool stopped;   /* by `line` */
    bool too_large; /* a line, or the body of another status */
};

static bool give_line(struct reader *reader, const char *text, size_t len)
{
    if (reader->lines->line(reader->lines->arg, text, len))
        return true;
    reader->stopped = true;
    return false;
}

/* The first piece of DATA up to a line's end, put together with what was kept. */
static bool end_line(struct reader *reader, const char *data, size_t len)
{
    if (len > reader->line.max) {
        reader->too_large = true;
        return false;
    }
    if (reader->line.len == 0)
        return give_line(reader, data, len);
    if (!buf_append(&reader->line, data, len)) {
        reader->too_large = true;
        return false;
    }
    bool more = give_line(reader, reader->line.ptr, reader->line.len);
    buf_reset(&reader->line);
    return more;
}

static bool take_lines(struct reader *reader, const char *data, size_t len)
{
    while (len > 0) {
        const char *end = memchr(data, '\n', len);
        if (!end) {
            reader->too_large = !buf_append(&reader->line, data, len);
            return !reader->too_large;
        }
        size_t used = (size_t)(end - data);
        if (!end_line(reader, data, used))
            return false;
        data = end + 1;
        len -= used + 1;
    }
    return true;
}

static size_t take(char *data, size_t size, size_t count, void *arg)
{
    struct reader *reader = arg;
    size_t len = size * count;
    long status = 0;
    reader->last_byte_ms = clock_now_ms();
    curl_easy_getinfo(reader->handle->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
        return take_lines(reader, data, len) ? len : CURL_WRITEFUNC_ERROR;
    if (buf_append(&reader->reply.body, data, len))
        return len;
    reader->too_large = true;
    return CURL_WRITEFUNC_ERROR;
}

static size_t take_header(char *data, size_t size, size_t count, void *arg)
{
    struct reader *reader = arg;
    long status = 0;
    reader->last_byte_ms = clock_now_ms();
    curl_easy_getinfo(reader->handle->curl, CURLINFO_RESPONSE_CODE, &status);
    bool ends = size * count == 2 && memcmp(data, "\r\n", 2) == 0;
    if (!reader->lines->opened || status != 200 || !ends)
        return size * count;
    reader->stopped = !reader->lines->opened(reader->lines->arg);
    return reader->stopped ? CURL_WRITEFUNC_ERROR : size * count;
}

static int check_waiting(const struct reader *reader, struct err *err)
{
    const struct http_lines *lines = reader->lines;
    if (lines->stop && atomic_load(lines->stop))
        return err_set(err, ERR_CANCELLED, "stopped");
    if (lines->idle_ms > 0 && clock_now_ms() - reader->last_byte_ms > lines->idle_ms)
        return err_set(err, ERR_BACKEND_UNAVAILABLE, "not a byte for %lld ms",
                       (long long)lines->idle_ms);
    return 0;
}

static int run(struct reader *reader, CURLM *multi, CURLcode *ret_code, struct err *err)
{
    for (;;) {
        int running = 0, left = 0;
        CURLMcode code = curl_multi_perform(multi, &running);
        CURLMsg *message = curl_multi_info_read(multi, &left);
        if (message && message->msg == CURLMSG_DONE) {
            *ret_code = message->data.result;
            return 0;
        }
        if (code == CURLM_OK)
            code = curl_multi_poll(multi, NULL, 0, LOOK_MS, NULL);
        if (code != CURLM_OK)
            return err_set(err, ERR_INTERNAL, "libcurl: %s", curl_multi_strerror(code));
        if (check_waiting(reader, err) < 0)
            return -1;
    }
}

static int finish(struct reader *reader, CURLcode code, struct err *err)
{
    if (reader->too_large)
        return err_set(err, ERR_TOO_LARGE, "a line or reply of more than %zu bytes",
                       reader->reply.body.len > 0 ? reader->reply.body.max : reader->line.max);
    if (code != CURLE_OK && !reader->stopped)
        return http_failure(reader->handle, code, err);
    if (!reader->stopped && reader->line.len > 0)
        (void)give_line(reader, reader->line.ptr, reader->line.len); /* the last, without an end */
    return http_handle_status(reader->handle, &reader->reply, err);
}

static int read_lines(struct reader *reader, CURLM *multi, struct err *err)
{
    CURL *curl = reader->handle->curl;
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 0L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, reader);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, reader);
    if (curl_multi_add_handle(multi, curl) != CURLM_OK)
        return err_set(err, ERR_INTERNAL, "libcurl cannot start");
    CURLcode code = CURLE_OK;
    int result = run(reader, multi, &code, err);
    if (result == 0)
        result = finish(reader, code, err);
    curl_multi_remove_handle(multi, curl);
    return result;
}

int http_lines(struct http_client *client, const struct http_request *request,
               const struct http_lines *lines, struct http_reply *ret_reply, struct err *err)
{
    struct reader reader = {.lines = lines, .last_byte_ms = clock_now_ms()};
    reader.handle = http_client_handle(client, request, err);
    if (!reader.handle)
        return -1;
    buf_init(&reader.line, lines->max_line);
    buf_init(&reader.reply.body, request->max_reply > 0 ? request->max_reply : CAP_SMALL);
    CURLM *multi = curl_multi_init();
    int result = multi ? read_lines(&reader, multi, err)
                       : err_set(err, ERR_INTERNAL, "libcurl cannot start");
    http_handle_free(reader.handle);
    curl_multi_cleanup(multi);
    buf_done(&reader.line);
    if (result < 0)
        http_reply_done(&reader.reply);
    else
        *ret_reply = reader.reply;
    return result;
}
