#include "sandbox/decoy.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "sandbox/lifecycle.h"

#define DECOY_BYTES 30 /* 40 characters, as many keys have */

int decoy_check(const struct sandbox_spec *spec, struct err *err)
{
    cleanup(text_map_done) struct text_map variable = {.items = NULL};
    if (!spec->decoy_env) {
        return 0;
    }
    for (size_t i = 0; i < spec->env.count; i++) {
        if (strcmp(spec->env.items[i].name, spec->decoy_env) == 0) {
            return err_set(err, ERR_INVALID_FIELD, "field 'decoy.env' is set in 'env' already");
        }
    }
    text_map_set(&variable, spec->decoy_env, "");
    return env_check(&variable, "decoy.env", err);
}

void decoy_make(struct sandbox_spec *spec)
{
    uint8_t bytes[DECOY_BYTES];
    cleanup(buf_wipe) struct buf text = BUF_INIT(4 * DECOY_BYTES);
    if (!spec->decoy_env) {
        return;
    }
    crypto_random(bytes, sizeof(bytes));
    (void)base64_encode(&text, bytes, sizeof(bytes)); /* it fits */
    explicit_bzero(bytes, sizeof(bytes));
    spec->decoy = xstrdup(buf_text(&text));
    text_map_set(&spec->env, spec->decoy_env, spec->decoy);
    text_list_add(&spec->secrets, spec->decoy);
}

void decoy_seen(struct sandbox *sandbox, int64_t exec, int stream)
{
    char now[TIME_TEXT_LEN];
    struct json *detail = json_new_object();
    json_set_int(detail, "exec", exec);
    json_set_text(detail, "stream", stream == 1 ? "stdout" : "stderr");
    time_format(clock_wall_ms(), now);
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->spec.decoy_seen++;
    free(sandbox->spec.decoy_seen_at);
    sandbox->spec.decoy_seen_at = xstrdup(now);
    sandbox_describe_locked(sandbox);
    sandbox->blob_version++;
    sandbox->dirty = true;
    pthread_mutex_unlock(&sandbox->all->lock);
    sandbox_event(sandbox, "decoy_seen", detail); /* and settles */
    sandbox_configure(sandbox);
}
