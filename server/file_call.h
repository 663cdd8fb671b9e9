#pragma once

#include "sandbox/call.h"
#include "server/request.h"

/* A request about one path in a sandbox: the query's `path`, the call to the agent, the wait for
 * it. */
struct file_call {
    struct call *call;
    handler_fn next; /* once the call is done; a failure has been answered */
};

/* Starts CALL (taken, also on failure) and waits for its result. */
enum verdict file_call_run(struct request *request, struct call *call, handler_fn next);
struct call *file_call_of(const struct request *request);
/* `path` of the query into TAG_PATH; relative to the workdir. ERR_INVALID_PATH. */
int file_call_path(const struct request *request, struct call *call, struct err *err) must_check;
/* If-Match and If-None-Match into the call (for changes). */
int file_call_conditions(const struct request *request, struct call *call,
                         struct err *err) must_check;
/* A path from a JSON body or the query, absolute. */
int file_path_resolve(const struct request *request, struct str path, char **ret_path,
                      struct err *err) must_check;
/* `path` of the query, absolute; the workdir without one. */
int file_path_or_workdir(const struct request *request, char **ret_path,
                         struct err *err) must_check;
int file_mode_parse(struct str text, uint64_t *ret_mode, struct err *err) must_check;
/* Members path, type, size, mode, mtime, etag… of an entry's fields. NAME is shown instead of a
 * path of the fields. Texts are masked. */
struct json *file_entry_json(const struct request *request, struct field_reader fields,
                             const char *path);
void file_etag_header(struct request *request, const char *etag);
