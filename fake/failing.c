#include "fake/failing.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/mem.h"
#include "base/str.h"
#include "driver/box.h"

struct failure {
    char *sandbox; /* NULL: any */
    char *code, *message;
};

struct failing {
    pthread_mutex_t lock;
    struct failure *items; /* the used ones are taken out */
    size_t count;
};

/* What the substrate may say of a sandbox while it starts. */
static const enum err_code codes[] = {
    ERR_IMAGE_PULL_FAILED, ERR_INVALID_IMAGE,   ERR_QUOTA_EXCEEDED, ERR_UNSCHEDULABLE,
    ERR_ADMISSION_DENIED,  ERR_CONTAINER_START, ERR_READY_TIMEOUT,
};

static void failures_free(struct failure *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(items[i].sandbox);
        free(items[i].code);
        free(items[i].message);
    }
    free(items);
}

struct failing *failing_new(void)
{
    struct failing *failing = xcalloc(1, sizeof(*failing));

    pthread_mutex_init(&failing->lock, NULL);
    return failing;
}

void failing_free(struct failing *failing)
{
    if (failing == NULL)
        return;
    failures_free(failing->items, failing->count);
    pthread_mutex_destroy(&failing->lock);
    free(failing);
}

/* --- what tests prepare -------------------------------------------------------------------------
 */

static bool is_known(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        if (strcmp(err_code_name(codes[i]), name) == 0)
            return true;
    }
    return false;
}

static int decode_failure(const struct json *value, const char *path, struct failure *failure,
                          struct err *err)
{
    static const struct json_field fields[] = {
        {.name = "sandbox",
         .decode = json_decode_text,
         .offset = offsetof(struct failure, sandbox),
         .min = 1,
         .max = ID_LEN - 1},
        {.name = "code",
         .decode = json_decode_text,
         .offset = offsetof(struct failure, code),
         .required = true,
         .max = 64},
        {.name = "message",
         .decode = json_decode_text,
         .offset = offsetof(struct failure, message),
         .max = 1024},
        JSON_FIELDS_END,
    };

    if (json_decode(value, fields, path, failure, err) < 0)
        return -1;
    if (!is_known(failure->code))
        return err_set(err, ERR_INVALID_FIELD,
                       "field '%s.code' must be image_pull_failed, invalid_image, quota_exceeded, "
                       "unschedulable, admission_denied, container_start_failed or ready_timeout",
                       path);
    return 0;
}

static int decode_failures(const struct json *value, const struct json_field *field,
                           const char *path, void *out, struct err *err)
{
    struct failing *parsed = out;

    (void)field;
    if (!json_is_array(value) || json_count(value) > CAP_FAKE_RULES)
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must be a list of at most %d items",
                       path, CAP_FAKE_RULES);
    parsed->items = xcalloc(json_count(value) + 1, sizeof(*parsed->items));
    for (const struct json *item = json_first(value); item; item = json_next(item)) {
        cleanup_free char *name = xasprintf("%s[%zu]", path, parsed->count);
        if (decode_failure(item, name, &parsed->items[parsed->count++], err) < 0)
            return -1;
    }
    return 0;
}

int failing_put(struct failing *failing, const struct json *body, struct err *err)
{
    static const struct json_field fields[] = {
        {.name = "creates", .decode = decode_failures, .offset = 0, .required = true},
        JSON_FIELDS_END,
    };
    struct failing parsed = {.items = NULL};

    if (json_decode(body, fields, "", &parsed, err) < 0) {
        failures_free(parsed.items, parsed.count);
        return -1;
    }
    pthread_mutex_lock(&failing->lock);
    struct failure *old = failing->items;
    size_t old_count = failing->count;
    failing->items = parsed.items;
    failing->count = parsed.count;
    pthread_mutex_unlock(&failing->lock);
    failures_free(old, old_count);
    return 0;
}

struct json *failing_json(struct failing *failing)
{
    struct json *json = json_new_object(), *items = json_set_array(json, "creates");

    pthread_mutex_lock(&failing->lock);
    for (size_t i = 0; i < failing->count; i++) {
        struct json *item = json_new_object();
        if (failing->items[i].sandbox != NULL)
            json_set_text(item, "sandbox", failing->items[i].sandbox);
        json_set_text(item, "code", failing->items[i].code);
        if (failing->items[i].message != NULL)
            json_set_text(item, "message", failing->items[i].message);
        json_add(items, item);
    }
    pthread_mutex_unlock(&failing->lock);
    return json;
}

void failing_clear(struct failing *failing)
{
    pthread_mutex_lock(&failing->lock);
    struct failure *old = failing->items;
    size_t count = failing->count;
    failing->items = NULL;
    failing->count = 0;
    pthread_mutex_unlock(&failing->lock);
    failures_free(old, count);
}

/* --- a create -----------------------------------------------------------------------------------
 */

int failing_check(struct failing *failing, const char *id, struct err *err)
{
    struct failure used = {.sandbox = NULL};
    size_t at = 0;

    pthread_mutex_lock(&failing->lock);
    while (at < failing->count && failing->items[at].sandbox != NULL &&
           strcmp(failing->items[at].sandbox, id) != 0)
        at++;
    if (at < failing->count) {
        used = failing->items[at];
        failing->count--;
        memmove(&failing->items[at], &failing->items[at + 1],
                (failing->count - at) * sizeof(*failing->items));
    }
    pthread_mutex_unlock(&failing->lock);
    if (used.code == NULL)
        return 0;
    (void)err_set(err, err_code_from_name(used.code), "%s",
                  used.message != NULL ? used.message : "as the fake driver was told");
    free(used.sandbox);
    free(used.code);
    free(used.message);
    return -1;
}
