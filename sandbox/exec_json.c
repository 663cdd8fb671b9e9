/* Executions as JSON for callers: from memory while they run or are not yet stored, else from the
 * store. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/attachment_data.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_output.h"
#include "sandbox/exec_parts.h"
#include "sandbox/lifecycle.h"

struct exec *exec_lookup(struct sandboxes *all, const char *uid, int64_t number)
{
    struct sandbox *sandbox = sandboxes_lookup_uid(all, uid);
    struct exec *exec = sandbox ? exec_find(sandbox, number) : NULL;
    if (sandbox)
        sandbox_unref(sandbox);
    return exec;
}

char *scrub_copy(const struct scrubber *scrubber, const char *text)
{
    struct buf out = BUF_INIT(3 * strlen(text) + 16);
    if (scrubber_text(scrubber, text, strlen(text), &out))
        return buf_take(&out, NULL);
    buf_done(&out);
    return xstrdup("***");
}

struct json *scrub_json(const struct scrubber *scrubber, const struct json *from)
{
    bool list = json_is_array(from);
    struct json *to = list ? json_new_array() : json_new_object();
    for (const struct json *item = json_first(from); item; item = json_next(item)) {
        bool nested = json_is_array(item) || json_is_object(item);
        cleanup_free char *text = json_text(item) ? scrub_copy(scrubber, json_text(item)) : NULL;
        if (text && list)
            json_add_text(to, text);
        else if (text)
            json_set_text(to, json_key(item), text);
        else if (list)
            json_add(to, nested ? scrub_json(scrubber, item) : json_copy(item));
        else
            json_set(to, json_key(item), nested ? scrub_json(scrubber, item) : json_copy(item));
    }
    return to;
}

static struct json *parse(const char *text)
{
    struct json *json = NULL;
    struct err err;
    if (!text || json_parse(text, strlen(text), JSON_LENIENT, &json, &err))
        return NULL;
    return json;
}

struct json *exec_row_result(const struct exec_row *row)
{
    return parse(row->result);
}

/* What a record is made of, wherever it came from. */
struct source {
    int64_t number, created, ended;
    bool running, lost;
    const struct json *spec, *facts; /* FACTS: NULL while nothing is known */
    struct exec *exec;               /* else from the row */
    const struct exec_row *row;
};

static void copy_members(struct json *record, const struct json *from, const char *const *names)
{
    for (size_t i = 0; names[i]; i++) {
        const struct json *value = json_get(from, names[i]);
        if (value)
            json_set(record, names[i], json_copy(value));
        else
            json_set_null(record, names[i]);
    }
}

/* What came from the caller, masked again: secrets may have been registered since it was stored. */
static void set_masked(struct json *record, const char *name, const struct json *value,
                       const struct scrubber *scrubber)
{
    const char *text = json_text(value);
    if (json_is_array(value)) {
        json_set(record, name, scrub_json(scrubber, value));
        return;
    }
    cleanup_free char *masked = text ? scrub_copy(scrubber, text) : NULL;
    json_set_text(record, name, masked);
}

static struct scrubber *scrubber_of(struct sandboxes *all, const struct source *source)
{
    if (source->exec)
        return sandbox_scrubber(source->exec->sandbox);
    struct sandbox *sandbox = sandboxes_lookup_uid(all, source->row->uid);
    struct scrubber *scrubber = sandbox ? sandbox_scrubber(sandbox) : scrubber_new(NULL);
    sandbox_unref(sandbox);
    return scrubber;
}

struct json *exec_masked_spec(const struct json *spec, const struct scrubber *scrubber, bool kept)
{
    struct json *masked = json_new_object();
    for (const struct json *item = json_first(spec); item; item = json_next(item)) {
        const char *name = json_key(item);
        if (strcmp(name, "cmd") == 0 || strcmp(name, "workdir") == 0)
            set_masked(masked, name, item, scrubber);
        else if (kept && strcmp(name, "on_disconnect") == 0)
            json_set_text(masked, name, "keep");
        else
            json_set(masked, name, json_copy(item));
    }
    return masked;
}

static void add_terminal(const struct source *source, const struct json *spec, struct json *record)
{
    static const char *const size[] = {"cols", "rows", NULL};
    bool has = source->exec ? exec_has_terminal(source->exec) : json_get_bool(spec, "tty", false);
    json_set_bool(record, "tty", has);
    if (source->exec)
        exec_put_size(source->exec, record);
    else if (has)
        copy_members(record, spec, size);
}

static void add_described(struct sandboxes *all, const struct source *source, struct json *record)
{
    static const char *const names[] = {
        "cmd",           "workdir",          "timeout", "max_output", "stdin",
        "on_disconnect", "disconnect_grace", "service", "session",    NULL};
    struct scrubber *scrubber = scrubber_of(all, source);
    bool kept = source->exec && exec_kept(source->exec);
    struct json *spec = exec_masked_spec(source->spec, scrubber, kept);
    copy_members(record, spec, names);
    add_terminal(source, spec, record);
    json_free(spec);
    set_masked(record, "cwd", json_get(source->facts, "cwd"), scrubber);
    scrubber_unref(scrubber);
}

static void set_stream_lost(struct json *record)
{
    struct json *error = json_set_object(record, "error");
    json_set_text(error, "code", err_code_name(ERR_STREAM_LOST));
    json_set_text(error, "message",
                  "the agent has been out of reach for 30 s; the result may still come");
}

static int add_output(struct sandboxes *all, const struct source *source, struct json *record,
                      struct err *err)
{
    static const char *const names[] = {"stdout", "stderr"};
    int64_t max = json_get_int(source->spec, "max_output", all->config.max_output);
    bool truncated = false;
    if (max < 0 || max > (int64_t)CAP_JSON_OUTPUT)
        max = CAP_JSON_OUTPUT;
    for (int stream = 1; stream <= 2; stream++) {
        struct output output;
        int rc = source->exec
                     ? output_of_exec(source->exec, stream, &output, err)
                     : output_of_row(all, source->row, stream, source->facts, &output, err);
        if (rc)
            return -1;
        rc = output_add_text(&output, names[stream - 1], (size_t)max, record, &truncated, err);
        output_done(&output);
        if (rc)
            return -1;
    }
    json_set_bool(record, "truncated", truncated);
    return 0;
}

static void add_bytes(const struct source *source, struct json *record)
{
    static const char *const names[] = {"stdout_bytes", "stderr_bytes"};
    for (int stream = 1; stream <= 2; stream++) {
        struct err err;
        uint64_t total;
        const char *name = names[stream - 1];
        if (source->running && source->exec &&
            exec_received(source->exec, stream, &total, &err) == 0)
            json_set_int(record, name, (int64_t)total);
        else
            json_set_int(record, name, json_get_int(source->facts, name, 0));
    }
}

static int build(struct sandboxes *all, const struct source *source, bool with_output,
                 struct json **ret_json, struct err *err)
{
    static const char *const ended[] = {"exit_code", "signal", "timed_out", "oom_killed", NULL};
    static const char *const used[] = {"duration", "cpu_time", "max_rss", NULL};
    static const char *const shell[] = {"session_ended", NULL};
    static const char *const error[] = {"error", NULL};
    struct json *record = json_new_object();
    json_set_int(record, "id", source->number);
    json_set_text(record, "state", source->running ? "running" : "exited");
    add_described(all, source, record);
    json_set_time(record, "created", source->created);
    json_set_time(record, "ended", source->ended);
    copy_members(record, source->facts, ended);
    if (!json_get(source->facts, "timed_out"))
        json_set_bool(record, "timed_out", false);
    if (with_output && add_output(all, source, record, err)) {
        json_free(record);
        return -1;
    }
    add_bytes(source, record);
    copy_members(record, source->facts, used);
    copy_members(record, source->facts, shell);
    if (source->lost)
        set_stream_lost(record);
    else
        copy_members(record, source->facts, error);
    *ret_json = record;
    return 0;
}

static int build_from_memory(struct exec *exec, bool with_output, struct json **ret_json,
                             struct err *err)
{
    struct exec_moment moment;
    struct json *facts = exec_facts_json(exec, &moment);
    struct source source = {
        .number = exec->number,
        .created = exec->created,
        .ended = moment.ended,
        .running = moment.running,
        .lost = moment.lost,
        .spec = exec->spec,
        .facts = facts,
        .exec = exec,
    };
    int rc = build(exec->sandbox->all, &source, with_output, ret_json, err);
    json_free(facts);
    return rc;
}

static int build_from_row(struct sandboxes *all, const struct exec_row *row, bool with_output,
                          struct json **ret_json, struct err *err)
{
    struct json *spec = parse(row->spec), *facts = parse(row->result);
    struct source source = {
        .number = row->number,
        .created = row->created,
        .ended = row->ended,
        .running = strcmp(row->state, "running") == 0,
        .spec = spec,
        .facts = facts,
        .row = row,
    };
    int rc = build(all, &source, with_output, ret_json, err);
    json_free(spec);
    json_free(facts);
    return rc;
}

int exec_record(struct exec *exec, bool with_output, struct json **ret_json, struct err *err)
{
    return build_from_memory(exec, with_output, ret_json, err);
}

int exec_json(struct sandboxes *all, const char *uid, int64_t number, bool with_output,
              struct json **ret_json, struct err *err)
{
    struct exec *exec = exec_lookup(all, uid, number);
    if (exec) {
        int rc = build_from_memory(exec, with_output, ret_json, err);
        exec_unref(exec);
        return rc;
    }
    struct exec_row row = {0};
    if (store_get_exec(all->store, uid, number, &row, err))
        return -1;
    int rc = build_from_row(all, &row, with_output, ret_json, err);
    exec_row_done(&row);
    return rc;
}

static int row_record(struct sandboxes *all, const struct exec_row *row, struct sandbox *sandbox,
                      struct json **ret_json, struct err *err)
{
    struct exec *exec = sandbox ? exec_find(sandbox, row->number) : NULL;
    int rc = exec ? build_from_memory(exec, false, ret_json, err)
                  : build_from_row(all, row, false, ret_json, err);
    exec_unref(exec);
    return rc;
}

/* RET_NEXT: for the page after the one of ROWS, malloc'd; NULL: that was the last. */
static int find_next(struct sandboxes *all, const char *uid, const struct exec_row *rows,
                     size_t count, char **ret_next, struct err *err)
{
    struct exec_row *more = NULL;
    size_t found = 0;
    if (count == 0)
        return 0;
    int64_t last = rows[count - 1].number;
    if (store_list_execs(all->store, uid, last, 1, &more, &found, err))
        return -1;
    *ret_next = found > 0 ? xasprintf("%lld", (long long)last) : NULL;
    exec_rows_free(more, found);
    return 0;
}

int exec_list_json(struct sandboxes *all, const char *uid, int64_t before, size_t limit,
                   struct json **ret_page, struct err *err)
{
    struct exec_row *rows = NULL;
    size_t count = 0;
    if (limit < 1 || limit > CAP_LIST_LIMIT)
        limit = CAP_LIST_LIMIT;
    if (store_list_execs(all->store, uid, before, limit, &rows, &count, err))
        return -1;
    struct sandbox *sandbox = sandboxes_lookup_uid(all, uid);
    struct json *page = json_new_object();
    struct json *items = json_set_array(page, "items");
    cleanup_free char *next = NULL;
    int rc = find_next(all, uid, rows, count, &next, err);
    for (size_t i = 0; i < count && rc == 0; i++) {
        struct json *record;
        rc = row_record(all, &rows[i], sandbox, &record, err);
        if (rc == 0)
            json_add(items, record);
    }
    json_set_text(page, "next", next);
    if (sandbox)
        sandbox_unref(sandbox);
    exec_rows_free(rows, count);
    if (rc) {
        json_free(page);
        return -1;
    }
    *ret_page = page;
    return 0;
}
