/* The state of a sandbox that its agent keeps for a server that has lost its store. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/lifecycle.h"
#include "sandbox/record.h"

/* As base64: 128 KiB of control characters would be six times as long in JSON. */
static struct json *secrets_json(const struct text_list *secrets)
{
    struct json *json = json_new_array();
    for (size_t i = 0; i < secrets->count; i++) {
        struct buf text = BUF_INIT(2 * CAP_SECRET);
        (void)base64_encode(&text, secrets->items[i], strlen(secrets->items[i]));
        json_add_text(json, buf_text(&text));
        buf_wipe(&text);
    }
    return json;
}

static void secrets_restore(const struct json *json, struct text_list *secrets)
{
    for (const struct json *item = json_first(json); item; item = json_next(item)) {
        struct buf text = BUF_INIT(CAP_SECRET);
        if (json_text(item) && base64_decode(&text, str_of(json_text(item)))) {
            text_list_add(secrets, buf_text(&text));
        }
        buf_wipe(&text);
    }
}

static struct json *blob_json_locked(const struct sandbox *sandbox)
{
    struct json *json = json_new_object();
    json_set_text(json, "uid", sandbox->uid);
    json_set_int(json, "created", sandbox->created);
    json_set_int(json, "last_exec", sandbox->last_exec);
    json_set_text(json, "spec", sandbox->public_spec);
    json_set(json, "labels", text_map_json(&sandbox->spec.labels));
    json_set(json, "secrets", secrets_json(&sandbox->spec.secrets));
    json_set_text(json, "decoy", sandbox->spec.decoy);
    return json;
}

int record_seal_blob(struct sandbox *sandbox, struct buf *out, uint64_t *ret_version,
                     struct err *err)
{
    char box_uid[UID_LEN];
    pthread_mutex_lock(&sandbox->all->lock);
    cleanup_json struct json *json = blob_json_locked(sandbox);
    memcpy(box_uid, sandbox->box.box_uid, sizeof(box_uid));
    *ret_version = sandbox->blob_version;
    pthread_mutex_unlock(&sandbox->all->lock);
    cleanup(buf_wipe) struct buf plain = BUF_INIT(CAP_STATE_BLOB);
    if (!json_print(json, &plain)) {
        return err_set(err, ERR_TOO_LARGE, "labels and secrets are too large to keep");
    }
    return crypto_seal(&sandbox->all->key, "blob", str_of(box_uid),
                       (struct str){plain.ptr, plain.len}, out, err);
}

void blob_done(struct blob *blob)
{
    for (size_t i = 0; i < blob->secrets.count; i++) {
        explicit_bzero(blob->secrets.items[i], strlen(blob->secrets.items[i]));
    }
    free_secret(blob->decoy, blob->decoy ? strlen(blob->decoy) : 0);
    text_map_done(&blob->labels);
    text_list_done(&blob->secrets);
    free(blob->spec);
    scrubber_unref(blob->scrubber);
    *blob = (struct blob){0};
}

int record_open_blob(struct sandbox *sandbox, const void *sealed, size_t len, struct blob *ret_blob,
                     struct err *err)
{
    cleanup(buf_wipe) struct buf plain = BUF_INIT(CAP_STATE_BLOB);
    cleanup_json struct json *json = NULL;
    char box_uid[UID_LEN];
    pthread_mutex_lock(&sandbox->all->lock);
    memcpy(box_uid, sandbox->box.box_uid, sizeof(box_uid));
    pthread_mutex_unlock(&sandbox->all->lock);
    if (crypto_open(&sandbox->all->key, "blob", str_of(box_uid), (struct str){sealed, len}, &plain,
                    err) < 0 ||
        json_parse(buf_text(&plain), plain.len, JSON_LENIENT, &json, err) < 0) {
        return -1;
    }
    const char *uid = json_get_text(json, "uid");
    if (!uid || strcmp(uid, sandbox->uid) != 0) {
        return err_set(err, ERR_LOST, "the agent's state belongs to another sandbox");
    }
    struct blob blob = {.created = json_get_int(json, "created", 0),
                        .last_exec = json_get_int(json, "last_exec", 0)};
    const char *spec = json_get_text(json, "spec");
    blob.spec = xstrdup(spec ? spec : "{}");
    text_map_restore(json_get(json, "labels"), &blob.labels);
    secrets_restore(json_get(json, "secrets"), &blob.secrets);
    const char *decoy = json_get_text(json, "decoy");
    blob.decoy = decoy ? xstrdup(decoy) : NULL;
    blob.scrubber = scrubber_new_with_decoy(&blob.secrets, decoy);
    *ret_blob = blob;
    return 0;
}

/* The workdir is what the substrate said, and stays: others read it without the lock. */
static void take_spec_locked(struct sandbox *sandbox, struct blob *blob)
{
    cleanup_json struct json *json = NULL;
    if (json_parse(blob->spec, strlen(blob->spec), JSON_LENIENT, &json, NULL) < 0) {
        return;
    }
    struct sandbox_spec spec;
    sandbox_spec_restore(json, &spec);
    free(spec.workdir);
    spec.workdir = TAKE_PTR(sandbox->spec.workdir);
    spec.id = TAKE_PTR(sandbox->spec.id);
    sandbox_spec_done(&sandbox->spec);
    sandbox->spec = spec;
    free(sandbox->public_spec);
    sandbox->public_spec = TAKE_PTR(blob->spec);
    if (blob->created) {
        sandbox->created = blob->created;
    }
}

void record_take_blob_locked(struct sandbox *sandbox, struct blob *blob)
{
    if (sandbox->adopting) {
        take_spec_locked(sandbox, blob);
    }
    text_map_done(&sandbox->spec.labels);
    sandbox->spec.labels = blob->labels;
    blob->labels = (struct text_map){0};
    if (!sandbox->spec.decoy) {
        sandbox->spec.decoy = TAKE_PTR(blob->decoy);
    }
    bool same = sandbox->spec.secrets.count == 0;
    for (size_t i = 0; i < blob->secrets.count; i++) {
        if (!text_list_has(&sandbox->spec.secrets, blob->secrets.items[i])) {
            text_list_add(&sandbox->spec.secrets, blob->secrets.items[i]);
        }
    }
    scrubber_unref(sandbox->scrubber);
    sandbox->scrubber = same ? TAKE_PTR(blob->scrubber)
                             : scrubber_new_with_decoy(&sandbox->spec.secrets, sandbox->spec.decoy);
    if (blob->last_exec > sandbox->last_exec) {
        sandbox->last_exec = blob->last_exec;
    }
}
