/* The processes of a sandbox and the ports that they listen on, as its agent sees them. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/json.h"
#include "sandbox/call.h"
#include "sandbox/fields.h"
#include "sandbox/handle.h"
#include "server/listing.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

/* --- one entry ------------------------------------------------------------------------------- */

static void set_number(struct json *json, const char *name, struct str entry, uint16_t tag)
{
    uint64_t value;
    if (fields_u64(entry.ptr, entry.len, tag, &value) && value <= INT64_MAX) {
        json_set_int(json, name, (int64_t)value);
    } else {
        json_set_null(json, name);
    }
}

static void set_masked(const struct request *request, struct json *json, const char *name,
                       struct str entry, uint16_t tag)
{
    struct field field;
    if (!fields_find(entry.ptr, entry.len, tag, &field)) {
        json_set_null(json, name);
        return;
    }
    cleanup_free char *masked =
        sandbox_mask_text(request_sandbox(request), (const char *)field.data, field.len);
    json_set_text(json, name, masked);
}

static void add_arg(const struct request *request, struct json *cmd, const struct field *arg)
{
    cleanup_free char *text =
        sandbox_mask_text(request_sandbox(request), (const char *)arg->data, arg->len);
    json_add_text(cmd, text);
}

/* The end of it is left out: it might be the beginning of a secret. */
static void add_cut_arg(const struct request *request, struct json *cmd, const struct field *arg)
{
    size_t longest = sandbox_longest_secret(request_sandbox(request));
    size_t drop = longest > 0 ? longest - 1 : 0;
    size_t len = arg->len > drop ? arg->len - drop : 0;
    cleanup_free char *text = xstrndup((const char *)arg->data, arg->len);
    (void)sandbox_mask(request_sandbox(request), text, strlen(text));
    text[len] = '\0';
    json_add_text(cmd, text);
}

static void set_command(const struct request *request, struct json *json, struct str entry)
{
    struct json *cmd = json_set_array(json, "cmd");
    struct field_reader reader;
    struct field field, last = {.data = NULL};
    uint64_t cut = 0;
    (void)fields_u64(entry.ptr, entry.len, TAG_CUT, &cut);
    field_reader_init(&reader, entry.ptr, entry.len);
    while (field_next(&reader, &field)) {
        if (field.tag != TAG_ARG) {
            continue;
        }
        if (last.data) {
            add_arg(request, cmd, &last);
        }
        last = field;
    }
    if (last.data && cut) {
        add_cut_arg(request, cmd, &last);
    } else if (last.data) {
        add_arg(request, cmd, &last);
    }
    json_set_bool(json, "cmd_truncated", cut != 0);
}

static struct json *process_json(const struct request *request, struct str entry)
{
    struct json *json = json_new_object();
    struct field id;
    uint64_t value;
    set_number(json, "pid", entry, TAG_PID);
    set_number(json, "ppid", entry, TAG_PPID);
    if (fields_find(entry.ptr, entry.len, TAG_EXEC_ID, &id) &&
        str_to_u64((struct str){(const char *)id.data, id.len}, INT64_MAX, &value)) {
        json_set_int(json, "exec", (int64_t)value);
    } else {
        json_set_null(json, "exec");
    }
    set_masked(request, json, "name", entry, TAG_NAME);
    set_command(request, json, entry);
    set_masked(request, json, "state", entry, TAG_STATE);
    if (fields_u64(entry.ptr, entry.len, TAG_CPU_US, &value)) {
        json_set_number(json, "cpu_time", (double)value / 1e6);
    } else {
        json_set_null(json, "cpu_time");
    }
    set_number(json, "rss", entry, TAG_MEMORY);
    bool known = fields_u64(entry.ptr, entry.len, TAG_AGE_MS, &value) && value < INT64_MAX;
    json_set_time(json, "started", known ? clock_wall_ms() - (int64_t)value : 0);
    return json;
}

static struct json *port_json(const struct request *request, struct str entry)
{
    struct json *json = json_new_object();
    set_number(json, "port", entry, TAG_PORT);
    set_masked(request, json, "address", entry, TAG_ADDRESS);
    return json;
}

static bool is_of_type(struct str entry, const char *type)
{
    struct field field;
    return fields_find(entry.ptr, entry.len, TAG_TYPE, &field) &&
           str_is((struct str){(const char *)field.data, field.len}, type);
}

/* --- all of them ----------------------------------------------------------------------------- */

static enum verdict reply_ps(struct request *request)
{
    struct listing *listing = request_state(request);
    struct json *json = json_new_object();
    struct json *processes = json_set_array(json, "processes");
    struct json *ports = json_new_array();
    struct str left = {buf_text(&listing->entries), listing->entries.len};
    struct field_reader fields;
    while (listing_next(&left, &fields)) {
        struct str entry = {(const char *)fields.ptr, fields.left};
        if (is_of_type(entry, "p")) {
            json_add(processes, process_json(request, entry));
        } else if (is_of_type(entry, "l")) {
            json_add(ports, port_json(request, entry));
        }
    }
    uint64_t known = 0;
    (void)call_result_u64(listing->call, TAG_PORTS, &known);
    if (known) {
        json_set(json, "ports", ports);
    } else {
        json_free(ports);
        json_set_null(json, "ports");
    }
    return reply_json(request, 200, json);
}

static void listing_free(void *state)
{
    listing_done(state);
    free(state);
}

static enum verdict get_ps(struct request *request)
{
    struct listing *listing = xcalloc(1, sizeof(*listing));
    listing_init(listing, OP_PS, CAP_PS, reply_ps);
    request_keep(request, listing, listing_free);
    return listing_run(request, listing);
}

static const struct route routes[] = {
    {"GET", "/v1/sandboxes/{id}/ps", get_ps, ROUTE_SANDBOX, NULL},
};

const struct route_table ps_routes = {routes, ARRAY_LEN(routes)};
