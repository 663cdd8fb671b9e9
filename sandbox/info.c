/* What the programs in a sandbox may read about it, so that they need not ask the machine. */
#include "sandbox/record.h"

static void put_limit(struct json *limits, const char *name, double value)
{
    if (value > 0)
        json_set_number(limits, name, value);
    else
        json_set_null(limits, name);
}

struct json *record_info_locked(const struct sandbox *sandbox)
{
    struct json *json = json_new_object();
    json_set_text(json, "id", sandbox->id);
    json_set_text(json, "uid", sandbox->uid);
    json_set_time(json, "created", sandbox->created);
    if (sandbox->deadline)
        json_set_time(json, "expires", sandbox->deadline);
    else
        json_set_null(json, "expires");
    json_set_text(json, "workdir", sandbox->spec.workdir);
    struct json *limits = json_set_object(json, "limits");
    put_limit(limits, "cpu", (double)sandbox->cpu_milli / 1000.0);
    put_limit(limits, "memory", (double)sandbox->memory_limit);
    uint64_t pids = sandbox->pids_limit ? sandbox->pids_limit : sandbox->box.pids_limit;
    put_limit(limits, "pids", (double)pids);
    put_limit(limits, "storage", (double)sandbox->box.storage_limit);
    return json;
}
