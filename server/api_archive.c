/* A directory of a sandbox as an archive: GET, PUT. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/caps.h"
#include "sandbox/handle.h"
#include "sandbox/pack.h"
#include "sandbox/unpack.h"
#include "server/app.h"
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
    cleanup_free char *path = NULL;
    struct download *download = xcalloc(1, sizeof(*download));
    download->call = call_new(OP_PACK);
    download->raw = pipe_new(PIPE_SIZE);
    request_keep(request, download, download_free);
    if (choose_format(request, &download->format, &err) < 0 ||
        file_path_or_workdir(request, &path, &err) < 0) {
        return reply_problem(request, &err);
    }
    call_put_text(download->call, TAG_PATH, path);
    call_download(download->call, download->raw);
    if (call_start(request_sandbox(request), download->call, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return download_started(request);
}

/* --- PUT ------------------------------------------------------------------------------------- */

struct upload {
    struct app *app;
    struct unpack *unpack;
};

static void upload_free(void *state)
{
    struct upload *upload = state;
    unpack_free(upload->unpack);
    atomic_fetch_sub(&upload->app->archive_uploads, 1);
    free(upload);
}

static enum verdict upload_done(struct request *request)
{
    struct upload *upload = request_state(request);
    struct event *changed = unpack_changed(upload->unpack);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    if (!unpack_done(upload->unpack, &err)) {
        return request_client_gone(request) ? reply_empty(request, 204)
                                            : request_wait(request, changed, seen, 0, upload_done);
    }
    if (err.code == ERR_NONE) {
        return reply_json(request, 200, unpack_json(upload->unpack));
    }
    sandbox_scrub_err(request_sandbox(request), &err);
    return reply_problem_with(request, &err, "written", unpack_json(upload->unpack));
}

/* What it is shows by its content; but what it says that it is should not be something else. */
static int check_type(const struct request *request, struct err *err)
{
    static const char *const others[] = {"application/zip", "application/json", "multipart/",
                                         "application/x-xz", "application/x-7z-compressed"};
    const char *type = request_header(request, "Content-Type");
    for (size_t i = 0; type && i < ARRAY_LEN(others); i++) {
        if (strncasecmp(type, others[i], strlen(others[i])) == 0) {
            return err_set(err, ERR_UNSUPPORTED_MEDIA_TYPE,
                           "an archive is a tar, plain (application/x-tar) or compressed "
                           "(application/gzip, application/zstd)");
        }
    }
    return 0;
}

static enum verdict put_archive(struct request *request)
{
    struct err err = {0};
    struct app *app = request_app(request);
    cleanup_free char *path = NULL;
    if (check_type(request, &err) < 0 || file_path_or_workdir(request, &path, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct upload *upload = xcalloc(1, sizeof(*upload));
    upload->app = app;
    request_keep(request, upload, upload_free);
    if (atomic_fetch_add(&app->archive_uploads, 1) >= CAP_ARCHIVE_UPLOADS) {
        (void)err_set(&err, ERR_BUSY, "%d archives are being uploaded already",
                      CAP_ARCHIVE_UPLOADS);
        return reply_problem(request, &err);
    }
    if (unpack_start(request_sandbox(request), path, request_body_pipe(request), &upload->unpack,
                     &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return upload_done(request);
}

static const struct route routes[] = {
    {"GET", "/v1/sandboxes/{id}/archive", get_archive, ROUTE_SANDBOX, "path format"},
    {"PUT", "/v1/sandboxes/{id}/archive", put_archive, ROUTE_SANDBOX | ROUTE_STREAM_BODY, "path"},
};

const struct route_table archive_routes = {routes, ARRAY_LEN(routes)};
