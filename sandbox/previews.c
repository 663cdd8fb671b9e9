#include "sandbox/previews.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/lifecycle.h"
#include "sandbox/preview_access.h"
#include "sandbox/previews_parts.h"

#define HOST_MAX 253
#define LABEL_MAX 63
#define KILL_GRACE_MS 2000

void preview_request_done(struct preview_request *request)
{
    text_list_done(&request->command);
    text_map_done(&request->env);
    free(request->subdomain);
    request->subdomain = NULL;
}

/* --- rows ------------------------------------------------------------------------------------ */

void preview_rows_done(struct preview_rows *rows)
{
    preview_rows_free(rows->items, rows->count);
}

int preview_rows_load(struct sandbox *sandbox, struct preview_rows *ret_rows, struct err *err)
{
    return store_list_previews(sandbox->all->store, sandbox->uid, &ret_rows->items,
                               &ret_rows->count, err);
}

const struct preview_row *preview_rows_of(const struct preview_rows *rows, int64_t port)
{
    for (size_t i = 0; i < rows->count; i++) {
        if (rows->items[i].port == port) {
            return &rows->items[i];
        }
    }
    return NULL;
}

/* RET_ROW lies in RET_ROWS. ERR_NOT_FOUND. */
static int find(struct sandbox *sandbox, int64_t port, struct preview_rows *ret_rows,
                const struct preview_row **ret_row, struct err *err)
{
    if (preview_rows_load(sandbox, ret_rows, err) < 0) {
        return -1;
    }
    *ret_row = preview_rows_of(ret_rows, port);
    return *ret_row ? 0
                    : err_set(err, ERR_NOT_FOUND, "sandbox '%s' has no preview of port %lld",
                              sandbox->id, (long long)port);
}

/* --- one at a time --------------------------------------------------------------------------- */

bool preview_claim(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool begun = !sandbox->publishing;
    sandbox->publishing = true;
    pthread_mutex_unlock(&sandbox->all->lock);
    return begun;
}

void preview_release(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->publishing = false;
    pthread_mutex_unlock(&sandbox->all->lock);
    event_fire(&sandbox->changed);
}

/* --- hosts ----------------------------------------------------------------------------------- */

static bool label_valid(const char *label)
{
    size_t len = strlen(label);
    if (len < 1 || len > LABEL_MAX || str_starts(label, "xn--") || label[0] == '-' ||
        label[len - 1] == '-') {
        return false;
    }
    return strspn(label, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static bool label_reserved(const char *label)
{
    static const char *const names[] = {"api", "www", "admin", "localhost"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i], label) == 0) {
            return true;
        }
    }
    size_t digits = strspn(label, "0123456789"); /* the form of further ports */
    return digits >= 1 && digits <= 5 && label[digits] == '-';
}

static int subdomain_check(struct sandbox *sandbox, const char *subdomain, struct err *err)
{
    if (!label_valid(subdomain)) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'subdomain' must be one DNS label: 1 to 63 lower-case letters, "
                       "digits and '-', not beginning or ending with '-'");
    }
    if (label_reserved(subdomain)) {
        return err_set(err, ERR_INVALID_FIELD, "field 'subdomain': '%s' is reserved", subdomain);
    }
    struct sandbox *other = sandboxes_lookup(sandbox->all, subdomain);
    bool taken = other && other != sandbox;
    sandbox_unref(other);
    return taken ? err_set(err, ERR_HOST_TAKEN, "the subdomain '%s' is taken", subdomain) : 0;
}

int preview_host(struct sandbox *sandbox, const struct preview_request *request, char **ret_host,
                 bool *ret_first, struct err *err)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    if (request->subdomain && subdomain_check(sandbox, request->subdomain, err) < 0) {
        return -1;
    }
    if (preview_rows_load(sandbox, &rows, err) < 0) {
        return -1;
    }
    const struct preview_row *before = preview_rows_of(&rows, request->port);
    bool first = before ? before->first : true;
    for (size_t i = 0; i < rows.count && !before; i++) {
        first = first && !rows.items[i].first;
    }
    cleanup_free char *label = request->subdomain ? xstrdup(request->subdomain)
                               : first
                                   ? xstrdup(sandbox->id)
                                   : xasprintf("%lld-%s", (long long)request->port, sandbox->id);
    cleanup_free char *host = xasprintf("%s.%s", label, sandbox->all->config.preview_domain);
    if (strlen(host) > HOST_MAX) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'subdomain': the host would be longer than %d", HOST_MAX);
    }
    *ret_host = TAKE_PTR(host);
    *ret_first = first;
    return 0;
}

/* --- publishing ------------------------------------------------------------------------------ */

struct exec *preview_end_command(struct sandbox *sandbox, int64_t port)
{
    int64_t number = 0;
    if (preview_exec(sandbox, port, &number, NULL) < 0 || !number) {
        return NULL;
    }
    struct exec *exec = exec_find(sandbox, number);
    if (exec && exec_ended(exec)) {
        exec_unref(exec);
        return NULL;
    }
    if (exec) {
        exec_kill(exec, KILL_GRACE_MS);
    }
    return exec;
}

static int start_command(struct sandbox *sandbox, struct preview_request *request, int64_t number,
                         struct exec **ret_exec, struct err *err)
{
    cleanup(exec_spec_done) struct exec_spec spec = {
        .cmd = request->command,
        .env = request->env,
        .max_output = sandbox->all->config.max_output,
        .keep = true,
        .service = true,
        .number = number,
    };
    request->command = (struct text_list){0};
    request->env = (struct text_map){0};
    buf_init(&spec.stdin_bytes, 1);
    return exec_start(sandbox, &spec, ret_exec, err);
}

bool preview_is_proxied(const struct preview_row *row)
{
    struct preview_facts facts;
    preview_facts_read(row->spec, &facts);
    return facts.proxied;
}

static bool is_published(const struct sandbox *sandbox, const struct preview_row *row)
{
    return sandbox->all->driver->ops->unpublish && !preview_is_proxied(row);
}

static int publish_box(struct sandbox *sandbox, const struct preview_row *row,
                       struct preview_names *ret_names, struct err *err)
{
    const struct driver *driver = sandbox->all->driver;
    char box_uid[UID_LEN];
    if (preview_is_proxied(row)) {
        return 0;
    }
    pthread_mutex_lock(&sandbox->all->lock);
    memcpy(box_uid, sandbox->box.box_uid, sizeof(box_uid));
    pthread_mutex_unlock(&sandbox->all->lock);
    const struct preview_spec spec = {
        .id = sandbox->id,
        .uid = sandbox->uid,
        .owner = sandbox->owner,
        .box_uid = box_uid,
        .port = row->port,
        .first = row->first,
        .host = row->host,
    };
    return driver->ops->publish(driver->self, &spec, ret_names, err);
}

void preview_leave_to_sweep(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->previews_unfinished = true;
    pthread_mutex_unlock(&sandbox->all->lock);
}

void preview_take_down(struct sandbox *sandbox, const struct preview_row *row)
{
    const struct driver *driver = sandbox->all->driver;
    struct err err = {0};
    bool failed =
        is_published(sandbox, row) &&
        driver->ops->unpublish(driver->self, sandbox->id, row->port, row->first, &err) < 0;
    failed = store_delete_preview(sandbox->all->store, sandbox->uid, row->port, &err) < 0 || failed;
    if (failed) {
        log_event(LOG_LEVEL_WARN, "preview not taken down", "id", sandbox->id, "error", err.msg,
                  NULL);
        preview_leave_to_sweep(sandbox);
    }
}

int preview_publish_row(struct sandbox *sandbox, struct preview_row *row,
                        struct preview_names *names, struct err *err)
{
    struct store *store = sandbox->all->store;
    if (store_put_preview(store, row, err) < 0 || publish_box(sandbox, row, names, err) < 0) {
        return -1;
    }
    row->service = preview_is_proxied(row) ? NULL : names->service;
    row->ingress = preview_is_proxied(row) ? NULL : names->ingress;
    return store_put_preview(store, row, err);
}

void preview_tell(struct sandbox *sandbox, const struct preview_row *row)
{
    struct json *detail = json_new_object();
    json_set_int(detail, "port", row->port);
    json_set_text(detail, "host", row->host);
    sandbox_event(sandbox, "preview", detail);
}

/* A preview that is replaced keeps its links. */
static char *spec_for(struct sandbox *sandbox, const struct preview_request *request)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    struct preview_facts facts = {.proxied = false};
    if (preview_rows_load(sandbox, &rows, NULL) == 0) {
        const struct preview_row *before = preview_rows_of(&rows, request->port);
        preview_facts_read(before ? before->spec : NULL, &facts);
    }
    if (!facts.is_private) {
        facts.generation = clock_wall_ms();
    }
    facts.proxied = sandbox->all->config.proxied;
    facts.is_private = request->is_private;
    return preview_facts_write(&facts);
}

/* The record comes first, with the number that the command will have, so that a crash leaves
 * nothing that the sweep does not know. */
int preview_begin(struct sandbox *sandbox, struct preview_request *request, const char *host,
                  bool first, struct exec **ret_exec, struct err *err)
{
    struct exec *exec = NULL;
    struct preview_names names = {0};
    cleanup_free char *spec = spec_for(sandbox, request);
    struct preview_row row = {
        .uid = sandbox->uid,
        .port = request->port,
        .first = first,
        .host = (char *)(uintptr_t)host,
        .exec = request->command.count > 0 ? exec_reserve(sandbox) : 0,
        .spec = spec,
        .created = clock_wall_ms(),
    };
    if (sandbox_check_running(sandbox, err) < 0 ||
        store_put_preview(sandbox->all->store, &row, err) < 0) {
        return -1; /* a taken host starts nothing */
    }
    if (row.exec && start_command(sandbox, request, row.exec, &exec, err) < 0) {
        preview_take_down(sandbox, &row);
        return -1;
    }
    if (preview_publish_row(sandbox, &row, &names, err) < 0) {
        if (exec) {
            exec_kill(exec, KILL_GRACE_MS);
            exec_unref(exec);
        }
        preview_take_down(sandbox, &row);
        return err_wrap(err, "publish port %lld", (long long)row.port);
    }
    preview_tell(sandbox, &row);
    *ret_exec = exec;
    return 0;
}

/* The agent stops forwarding the port; whether it did is not waited for. */
static void close_port(struct sandbox *sandbox, int64_t port)
{
    struct err err = {0};
    struct call *call = call_new(OP_PORT_CLOSE);
    call_put_u64(call, TAG_PORT, (uint64_t)port);
    if (call_start(sandbox, call, &err) < 0) {
        log_event(LOG_LEVEL_DEBUG, "port not closed", "id", sandbox->id, "error", err.msg, NULL);
    }
    call_unref(call);
}

int preview_remove(struct sandbox *sandbox, int64_t port, struct err *err)
{
    const struct driver *driver = sandbox->all->driver;
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    const struct preview_row *row = NULL;
    if (find(sandbox, port, &rows, &row, err) < 0) {
        return -1;
    }
    if (is_published(sandbox, row) &&
        driver->ops->unpublish(driver->self, sandbox->id, port, row->first, err) < 0) {
        return -1;
    }
    close_port(sandbox, port);
    return store_delete_preview(sandbox->all->store, sandbox->uid, port, err);
}

/* Without its names the row is one that was never published: see previews_finish(). */
void preview_withdraw(struct sandbox *sandbox, int64_t port)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    const struct preview_row *found = NULL;
    struct err err = {0}, why = {0};
    if (preview_remove(sandbox, port, &err) == 0 || err.code == ERR_NOT_FOUND) {
        return;
    }
    log_event(LOG_LEVEL_WARN, "preview not taken down yet", "id", sandbox->id, "error", err.msg,
              NULL);
    if (find(sandbox, port, &rows, &found, &why) == 0) {
        struct preview_row row = *found;
        row.service = row.ingress = NULL;
        if (store_put_preview(sandbox->all->store, &row, &why) == 0) {
            preview_leave_to_sweep(sandbox);
            return;
        }
    }
    log_event(LOG_LEVEL_WARN, "preview stays on record", "id", sandbox->id, "error", why.msg, NULL);
}

int preview_probe(struct sandbox *sandbox, int64_t port, int64_t timeout_ms, struct call **ret_call,
                  struct err *err)
{
    struct call *call = call_new(OP_PORT_WAIT);
    call_put_u64(call, TAG_PORT, (uint64_t)port);
    call_put_u64(call, TAG_TIMEOUT_MS, (uint64_t)timeout_ms);
    call_put_u64(call, TAG_FORWARD, !sandbox->all->config.proxied);
    if (call_start(sandbox, call, err) < 0) {
        call_unref(call);
        return -1;
    }
    *ret_call = call;
    return 0;
}

/* --- records --------------------------------------------------------------------------------- */

int preview_ports(struct sandbox *sandbox, int64_t **ret_ports, size_t *ret_count, struct err *err)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    if (preview_rows_load(sandbox, &rows, err) < 0) {
        return -1;
    }
    *ret_ports = xcalloc(rows.count + 1, sizeof(**ret_ports));
    *ret_count = rows.count;
    for (size_t i = 0; i < rows.count; i++) {
        (*ret_ports)[i] = rows.items[i].port;
    }
    return 0;
}

int preview_exec(struct sandbox *sandbox, int64_t port, int64_t *ret_number, struct err *err)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    const struct preview_row *row = NULL;
    if (find(sandbox, port, &rows, &row, err) < 0) {
        return -1;
    }
    *ret_number = row->exec;
    return 0;
}

/* The end of the command, when there is one; RET_CODE: null after a signal. */
static bool command_ended(struct sandbox *sandbox, int64_t number, struct json **ret_code)
{
    cleanup_json struct json *exec = NULL;
    if (!number || exec_json(sandbox->all, sandbox->uid, number, false, &exec, NULL) < 0) {
        return false;
    }
    const char *state = json_get_text(exec, "state");
    const struct json *code = json_get(exec, "exit_code");
    if (!state || strcmp(state, "running") == 0) {
        return false;
    }
    *ret_code = code ? json_copy(code) : NULL;
    return true;
}

static struct json *row_json(struct sandbox *sandbox, const struct preview_row *row, bool ready)
{
    struct json *json = json_new_object(), *code = NULL;
    cleanup_free char *url = preview_url(sandbox->all, row->host);
    struct preview_facts facts;
    preview_facts_read(row->spec, &facts);
    bool ended = command_ended(sandbox, row->exec, &code);
    json_set_text(json, "url", url);
    json_set_text(json, "host", row->host);
    json_set_int(json, "port", row->port);
    json_set_text(json, "service", row->service);
    json_set_text(json, "ingress", row->ingress);
    json_set_text(json, "state",
                  ended                                      ? "exited"
                  : ready && (row->service || facts.proxied) ? "ready"
                                                             : "starting");
    if (row->exec) {
        json_set_int(json, "exec", row->exec);
    } else {
        json_set_null(json, "exec");
    }
    if (code) {
        json_set(json, "exit_code", code);
    } else {
        json_set_null(json, "exit_code");
    }
    json_set_text(json, "visibility", facts.is_private ? "private" : "public");
    json_set_time(json, "created", row->created);
    return json;
}

int preview_json(struct sandbox *sandbox, int64_t port, bool ready, struct json **ret_json,
                 struct err *err)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    const struct preview_row *row = NULL;
    if (find(sandbox, port, &rows, &row, err) < 0) {
        return -1;
    }
    *ret_json = row_json(sandbox, row, ready);
    return 0;
}
