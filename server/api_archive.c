/* A directory of a sandbox as an archive: GET, PUT. */
#include <stdlib.h>

#include "base/caps.h"
#include "sandbox/handle.h"
#include "sandbox/pack.h"
#include "server/file_call.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define PIPE_SIZE (256 * KIB)

static const struct {
    const char *name;
    enum tar_filter filter;
    const char *type;
} formats[] = {{"tar", TAR_PLAIN, "application/x-tar"},
               {"tar.gz", TAR_GZIP, "application/gzip"},
               {"tar.zst", TAR_ZSTD, "application/zstd"}};

/* A call whose path is the query's, or the workdir. */
static int archive_path(struct request *request, struct call *call, struct err *err)
{
    struct str text;
    if (request_query(request, "path", &text)) {
        return file_call_path(request, call, err);
    }
    call_put_text(call, TAG_PATH, sandbox_workdir(request_sandbox(request)));
    return 0;
}

/* --- GET ------------------------------------------------------------------------------------- */

struct download {
    struct call *call;
    struct pipe *raw;
    size_t format; /* in `formats` */
    bool given;    /* the pipe is the archive's */
};

static void download_free(void *state)
{
    struct download *download = state;
    if (!download->given) {
        pipe_abandon(download->raw, NULL); /* ends the call, if it runs still */
    }
    call_unref(download->call);
    pipe_unref(download->raw);
    free(download);
}

static int choose_format(struct request *request, size_t *ret_format, struct err *err)
{
    const char *types[] = {formats[0].type, formats[1].type, formats[2].type, NULL};
    struct str text;
    if (!request_query(request, "format", &text)) {
        *ret_format = request_accepts(request, types);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        if (str_is(text, formats[i].name)) {
            *ret_format = i;
            return 0;
        }
    }
    return err_set(err, ERR_INVALID_FIELD,
                   "query parameter 'format' must be tar, tar.gz or tar.zst");
}

static enum verdict reply_archive(struct request *request, struct download *download)
{
    struct err err = {0};
    struct sandbox *sandbox = request_sandbox(request);
    struct pipe *out = pipe_new(PIPE_SIZE);
    if (pack_start(sandbox, download->raw, formats[download->format].filter, out, &err) < 0) {
        pipe_unref(out);
        return reply_problem(request, &err);
    }
    download->given = true;
    cleanup_free char *name = xasprintf("attachment; filename=\"%s.%s\"", sandbox_id(sandbox),
                                        formats[download->format].name);
    reply_header(request, "Content-Disposition", name);
    return reply_pipe(request, 200, formats[download->format].type, out, -1);
}

/* What is wrong with the path is known before the first byte. */
static enum verdict download_started(struct request *request)
{
    struct download *download = request_state(request);
    struct event *changed = call_changed(download->call);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    switch (call_state(download->call, &err)) {
    case CALL_FAILED:
        return reply_masked_problem(request, &err);
    case CALL_WAITING:
        return request_client_gone(request)
                   ? reply_empty(request, 204)
                   : request_wait(request, changed, seen, 0, download_started);
    case CALL_STARTED:
    case CALL_DONE:
        break;
    }
    return reply_archive(request, download);
}

static enum verdict get_archive(struct request *request)
{
    struct err err = {0};
    struct download *download = xcalloc(1, sizeof(*download));
    download->call = call_new(OP_PACK);
    download->raw = pipe_new(PIPE_SIZE);
    request_keep(request, download, download_free);
    if (choose_format(request, &download->format, &err) < 0 ||
        archive_path(request, download->call, &err) < 0) {
        return reply_problem(request, &err);
    }
    call_download(download->call, download->raw);
    if (call_start(request_sandbox(request), download->call, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return download_started(request);
}

static const struct route routes[] = {
    {"GET", "/v1/sandboxes/{id}/archive", get_archive, ROUTE_SANDBOX, "path format"},
};

const struct route_table archive_routes = {routes, ARRAY_LEN(routes)};
