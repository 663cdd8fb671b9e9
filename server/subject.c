#include "server/subject.h"

#include "base/caps.h"
#include "sandbox/sandboxes.h"
#include "server/app.h"

#define LIST_DEFAULT 100

struct sandboxes *request_sandboxes(const struct request *request)
{
    return request_app(request)->sandboxes;
}

static int find_gone(struct request *request, struct json **ret_record, struct err *err)
{
    const struct caller *caller = request_caller(request);
    const struct owner_view view = {
        .owner = caller->owner, .admin = caller->admin, .failed_too = true};
    struct sandbox *sandbox = NULL;
    if (sandboxes_find(request_sandboxes(request), &view, request_param(request, "id"), &sandbox,
                       ret_record, err) == 0) {
        sandbox_unref(sandbox);
        return err_set(err, ERR_CONFLICT, "the sandbox has just been created again");
    }
    return -1;
}

enum verdict reply_gone(struct request *request)
{
    struct err err = {0};
    struct json *record = NULL;
    (void)find_gone(request, &record, &err); /* fails always, and says how */
    return record ? reply_problem_with(request, &err, "sandbox", record)
                  : reply_problem(request, &err);
}

int subject_uid(struct request *request, char **ret_uid, struct err *err)
{
    struct sandbox *sandbox = request_sandbox(request);
    if (sandbox) {
        *ret_uid = xstrdup(sandbox_uid(sandbox));
        return 0;
    }
    cleanup_json struct json *record = NULL;
    (void)find_gone(request, &record, err);
    const char *uid = json_get_text(record, "uid");
    if (!uid) {
        return -1;
    }
    *ret_uid = xstrdup(uid);
    return 0;
}

int query_page(const struct request *request, const char *name, int64_t *ret_limit,
               int64_t *ret_cursor, struct err *err)
{
    *ret_limit = LIST_DEFAULT;
    *ret_cursor = 0;
    if (request_query_int(request, "limit", 1, CAP_LIST_LIMIT, ret_limit, err) < 0) {
        return -1;
    }
    return request_query_int(request, name, 0, INT64_MAX, ret_cursor, err);
}

enum verdict reply_masked_problem(struct request *request, struct err *err)
{
    if (request_sandbox(request)) {
        sandbox_scrub_err(request_sandbox(request), err);
    }
    return reply_problem(request, err);
}
