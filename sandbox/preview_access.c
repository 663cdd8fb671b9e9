#include "sandbox/preview_access.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/lifecycle.h"

void preview_target_done(struct preview_target *target)
{
    sandbox_unref(target->sandbox);
    *target = (struct preview_target){.sandbox = NULL};
}

static bool is_text(const struct json *json, const char *name, const char *text)
{
    const char *value = json_get_text(json, name);
    return value && strcmp(value, text) == 0;
}

void preview_facts_read(const char *spec, struct preview_facts *ret_facts)
{
    cleanup_json struct json *json = NULL;
    struct err err;
    *ret_facts = (struct preview_facts){.proxied = false};
    if (!spec || json_parse(spec, strlen(spec), JSON_LENIENT, &json, &err) < 0) {
        return;
    }
    ret_facts->proxied = is_text(json, "via", "proxy");
    ret_facts->is_private = is_text(json, "visibility", "private");
    ret_facts->generation = json_get_int(json, "generation", 0);
}

char *preview_facts_write(const struct preview_facts *facts)
{
    cleanup_json struct json *json = json_new_object();
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL);
    size_t len;
    if (facts->proxied) {
        json_set_text(json, "via", "proxy");
    }
    if (facts->is_private) {
        json_set_text(json, "visibility", "private");
        json_set_int(json, "generation", facts->generation);
    }
    (void)json_print(json, &text); /* it has the room */
    return buf_take(&text, &len);
}

/* --- found before ---------------------------------------------------------------------------- */

#define MEMORY_SLOTS 256

struct preview_memory {
    pthread_mutex_t lock; /* a leaf */
    struct {
        uint64_t version; /* of the store's previews, when it was looked up */
        struct preview_target target;
    } slots[MEMORY_SLOTS]; /* by host; the last one that was found */
};

void preview_memory_init(struct sandboxes *all)
{
    all->preview_memory = xcalloc(1, sizeof(*all->preview_memory));
    pthread_mutex_init(&all->preview_memory->lock, NULL);
}

void preview_memory_done(struct sandboxes *all)
{
    for (size_t i = 0; i < MEMORY_SLOTS; i++) {
        preview_target_done(&all->preview_memory->slots[i].target);
    }
    pthread_mutex_destroy(&all->preview_memory->lock);
    free(all->preview_memory);
    all->preview_memory = NULL;
}

static size_t slot_of(const char *host)
{
    uint32_t hash = 2166136261u;
    for (; *host; host++) {
        hash = (hash ^ (unsigned char)*host) * 16777619u;
    }
    return hash % MEMORY_SLOTS;
}

bool preview_recall(struct sandboxes *all, const char *host, struct preview_target *ret_target)
{
    struct preview_memory *memory = all->preview_memory;
    size_t slot = slot_of(host);
    pthread_mutex_lock(&memory->lock);
    const struct preview_target *target = &memory->slots[slot].target;
    bool known = target->sandbox && strcmp(target->host, host) == 0 &&
                 memory->slots[slot].version == store_previews_version(all->store);
    if (known) {
        *ret_target = *target;
        (void)sandbox_ref(target->sandbox);
    }
    pthread_mutex_unlock(&memory->lock);
    return known;
}

static void remember(struct sandboxes *all, const struct preview_target *target, uint64_t version)
{
    struct preview_memory *memory = all->preview_memory;
    size_t slot = slot_of(target->host);
    pthread_mutex_lock(&memory->lock);
    struct sandbox *before = memory->slots[slot].target.sandbox;
    memory->slots[slot].target = *target;
    memory->slots[slot].version = version;
    (void)sandbox_ref(target->sandbox);
    pthread_mutex_unlock(&memory->lock);
    sandbox_unref(before);
}

/* Nothing more: whoever asks may be a stranger. */
static int private_ended(struct err *err)
{
    return err_set(err, ERR_GONE, "this preview has ended");
}

int preview_private_check(const struct preview_target *target, struct err *err)
{
    return sandbox_state_lives(sandbox_state(target->sandbox)) ? 0 : private_ended(err);
}

int preview_find(struct sandboxes *all, const char *host, struct preview_target *ret_target,
                 struct err *err)
{
    const struct owner_view everyone = {.owner = "", .admin = true};
    struct preview_target target = {.sandbox = NULL};
    struct preview_row row;
    cleanup_free char *id = NULL;
    uint64_t version = store_previews_version(all->store);
    if (store_find_preview(all->store, host, &row, &id, err) < 0)
        return -1;
    target.port = row.port;
    preview_facts_read(row.spec, &target.facts);
    (void)snprintf(target.host, sizeof(target.host), "%s", row.host);
    int result = sandboxes_find(all, &everyone, id, &target.sandbox, NULL, err);
    if (result == 0 && strcmp(sandbox_uid(target.sandbox), row.uid) != 0)
        result = err_set(err, ERR_GONE, "sandbox '%s', whose preview this was, is gone", id);
    preview_row_done(&row);
    if (result < 0) {
        if (target.facts.is_private && err->code == ERR_GONE)
            (void)private_ended(err);
        preview_target_done(&target);
        return -1;
    }
    remember(all, &target, version);
    *ret_target = target;
    return 0;
}

static int find_row(struct preview_row *rows, size_t count, int64_t port,
                    struct preview_row **ret_row, const char *id, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (rows[i].port == port) {
            *ret_row = &rows[i];
            return 0;
        }
    }
    return err_set(err, ERR_NOT_FOUND, "sandbox '%s' has no preview of port %lld", id,
                   (long long)port);
}

int preview_of_port(struct sandbox *sandbox, int64_t port, struct preview_target *ret_target,
                    struct err *err)
{
    struct preview_row *rows = NULL, *row = NULL;
    size_t count = 0;
    if (store_list_previews(sandbox->all->store, sandbox->uid, &rows, &count, err) < 0) {
        return -1;
    }
    int result = find_row(rows, count, port, &row, sandbox->id, err);
    if (result == 0) {
        *ret_target = (struct preview_target){.sandbox = sandbox_ref(sandbox), .port = port};
        preview_facts_read(row->spec, &ret_target->facts);
        (void)snprintf(ret_target->host, sizeof(ret_target->host), "%s", row->host);
    }
    preview_rows_free(rows, count);
    return result;
}

int preview_revoke_links(struct sandbox *sandbox, int64_t port, struct err *err)
{
    struct preview_row *rows = NULL, *row = NULL;
    struct preview_facts facts;
    size_t count = 0;
    if (store_list_previews(sandbox->all->store, sandbox->uid, &rows, &count, err) < 0) {
        return -1;
    }
    int result = find_row(rows, count, port, &row, sandbox->id, err);
    if (row) {
        preview_facts_read(row->spec, &facts);
        facts.generation++;
        free(row->spec);
        row->spec = preview_facts_write(&facts);
        result = store_put_preview(sandbox->all->store, row, err);
    }
    preview_rows_free(rows, count);
    return result;
}

char *preview_url(const struct sandboxes *all, const char *host)
{
    const struct sandboxes_config *config = &all->config;
    bool https = strcmp(config->preview_scheme, "https") == 0;
    if (config->preview_port == (https ? 443 : 80)) {
        return xasprintf("%s://%s/", config->preview_scheme, host);
    }
    return xasprintf("%s://%s:%lld/", config->preview_scheme, host,
                     (long long)config->preview_port);
}

/* --- tickets --------------------------------------------------------------------------------- */

void preview_ticket_make(const struct preview_target *target, enum preview_ticket kind,
                         int64_t expires_s, char ret_ticket[PREVIEW_TICKET_LEN])
{
    uint8_t hash[CRYPTO_HASH_LEN];
    char facts[96];
    cleanup_buf struct buf hex = BUF_INIT(2 * CRYPTO_HASH_LEN + 1);
    (void)snprintf(facts, sizeof(facts), "%lld %lld %lld", (long long)target->port,
                   (long long)target->facts.generation, (long long)expires_s);
    const struct str parts[] = {str_of(sandbox_uid(target->sandbox)), str_of(target->host),
                                str_of(facts)};
    crypto_keyed_hash(&target->sandbox->all->key,
                      kind == PREVIEW_LINK ? "preview link" : "preview cookie", parts,
                      ARRAY_LEN(parts), hash);
    (void)hex_encode(&hex, hash, sizeof(hash)); /* it has the room */
    (void)snprintf(ret_ticket, PREVIEW_TICKET_LEN, "%lld.%s", (long long)expires_s, buf_text(&hex));
}

bool preview_ticket_check(const struct preview_target *target, enum preview_ticket kind,
                          const char *ticket, int64_t now_s, int64_t *ret_expires_s)
{
    char right[PREVIEW_TICKET_LEN];
    uint64_t expires;
    const char *dot = strchr(ticket, '.');
    if (!dot ||
        !str_to_u64((struct str){ticket, (size_t)(dot - ticket)}, INT32_MAX * 128ULL, &expires))
        return false;
    preview_ticket_make(target, kind, (int64_t)expires, right);
    if (strlen(ticket) != strlen(right) || crypto_compare(ticket, right, strlen(right)) != 0 ||
        (int64_t)expires <= now_s)
        return false;
    *ret_expires_s = (int64_t)expires;
    return true;
}
