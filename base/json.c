#include "base/json.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/json_impl.h"

static void *hook_malloc(size_t size)
{
    return xmalloc(size);
}

static void install_hooks(void)
{
    cJSON_Hooks hooks = {.malloc_fn = hook_malloc, .free_fn = free};
    cJSON_InitHooks(&hooks);
}

/* Before the first item is made: with the hooks no cJSON call fails for lack of memory. */
static void start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_hooks);
}

void json_free(struct json *json)
{
    cJSON_Delete(mutable_item(json));
}

void json_freep(struct json **json)
{
    json_free(*json);
    *json = NULL;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted, so that a body of one object with very many names stays cheap. */
static int refuse_duplicates(const cJSON *object, struct err *err)
{
    size_t count = json_count((const struct json *)object);
    if (count < 2)
        return 0;
    cleanup_free const char **keys = xcalloc(count, sizeof(*keys));
    size_t i = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        keys[i++] = item->string;
    qsort(keys, count, sizeof(*keys), compare_keys);
    for (i = 1; i < count; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0)
            return err_set(err, ERR_INVALID_JSON, "the name '%.100s' appears twice in one object",
                           keys[i]);
    }
    return 0;
}

/* The text beside the tree: numbers come in the same order in both. */
struct walk {
    const char *text;
    size_t len;
    size_t pos;
    bool wide;   /* keep the digits of wide integers */
    bool strict; /* refuse duplicate names */
    struct err *err;
};

static struct str next_number(struct walk *walk)
{
    static const char number[] = "+-.0123456789eE";
    bool quoted = false;
    for (; walk->pos < walk->len; walk->pos++) {
        char c = walk->text[walk->pos];
        if (quoted && c == '\\')
            walk->pos++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '-' || (c >= '0' && c <= '9')))
            break;
    }
    struct str found = {walk->text + walk->pos, 0};
    while (walk->pos < walk->len && memchr(number, walk->text[walk->pos], sizeof(number) - 1)) {
        walk->pos++;
        found.len++;
    }
    return found;
}

static int finish_number(struct walk *walk, cJSON *item)
{
    if (!isfinite(item->valuedouble))
        return err_set(walk->err, ERR_INVALID_JSON, "not valid JSON: a number is too large");
    if (!walk->wide)
        return 0;
    struct str digits = next_number(walk);
    bool integer = !memchr(digits.ptr, '.', digits.len) && !memchr(digits.ptr, 'e', digits.len) &&
                   !memchr(digits.ptr, 'E', digits.len);
    if (integer && fabs(item->valuedouble) >= EXACT_INT)
        item->valuestring = xstrndup(digits.ptr, digits.len);
    return 0;
}

static int finish_tree(struct walk *walk, cJSON *item)
{
    if (cJSON_IsNumber(item))
        return finish_number(walk, item);
    if (walk->strict && cJSON_IsObject(item) && refuse_duplicates(item, walk->err) < 0)
        return -1;
    if (!cJSON_IsObject(item) && !cJSON_IsArray(item))
        return 0;
    for (cJSON *child = item->child; child; child = child->next) {
        if (finish_tree(walk, child) < 0)
            return -1;
    }
    return 0;
}

int json_parse(const char *text, size_t len, enum json_strictness strictness,
               struct json **ret_json, struct err *err)
{
    static const struct json_limits limits[] = {
        [JSON_STRICT] = {.depth = CAP_JSON_DEPTH, .values = CAP_JSON_VALUES},
        [JSON_LENIENT] = {.depth = CAP_PEER_DEPTH, .values = CAP_PEER_VALUES, .lenient_text = true},
    };
    start();
    struct walk walk = {.text = text, .len = len, .strict = strictness == JSON_STRICT, .err = err};
    if (json_scan(text, len, &limits[strictness], &walk.wide, err) < 0)
        return -1;
    cleanup_json struct json *json = json_of(cJSON_ParseWithLength(text, len));
    if (!json)
        return err_set(err, ERR_INVALID_JSON, "not valid JSON");
    if (finish_tree(&walk, mutable_item(json)) < 0)
        return -1;
    *ret_json = TAKE_PTR(json);
    return 0;
}

static bool is_container(const struct json *json)
{
    return json_is_object(json) || json_is_array(json);
}

static const struct json *member(const struct json *object, const char *name, size_t len)
{
    if (!object || !json_is_object(object))
        return NULL;
    cJSON *item = item_of(object)->child;
    while (item && (strncmp(item->string, name, len) != 0 || item->string[len] != '\0'))
        item = item->next;
    return json_of(item);
}

const struct json *json_get(const struct json *object, const char *name)
{
    return member(object, name, strlen(name));
}

const struct json *json_path(const struct json *object, const char *dotted)
{
    for (;;) {
        size_t len = strcspn(dotted, ".");
        object = member(object, dotted, len);
        if (dotted[len] == '\0')
            return object;
        dotted += len + 1;
    }
}

const struct json *json_at(const struct json *array, size_t index)
{
    const struct json *item = json_is_array(array) ? json_first(array) : NULL;
    for (; item && index > 0; index--)
        item = json_next(item);
    return item;
}

size_t json_count(const struct json *container)
{
    size_t count = 0;
    for (const struct json *item = json_first(container); item; item = json_next(item))
        count++;
    return count;
}

const struct json *json_first(const struct json *container)
{
    return is_container(container) ? json_of(item_of(container)->child) : NULL;
}

const struct json *json_next(const struct json *item)
{
    return item ? json_of(item_of(item)->next) : NULL;
}

const char *json_key(const struct json *item)
{
    return item ? item_of(item)->string : NULL;
}

const char *json_text(const struct json *value)
{
    return value && json_is_string(value) ? item_of(value)->valuestring : NULL;
}

const char *json_get_text(const struct json *object, const char *name)
{
    return json_text(json_get(object, name));
}

bool json_get_bool(const struct json *object, const char *name, bool fallback)
{
    const cJSON *item = item_of(json_get(object, name));
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : fallback;
}

/* Digits with an optional minus. */
static bool int_of_digits(const char *digits, int64_t *ret_value)
{
    bool minus = *digits == '-';
    uint64_t max = minus ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    uint64_t value;
    if (!str_to_u64(str_of(digits + minus), max, &value))
        return false;
    *ret_value = minus ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

bool json_int_value(const cJSON *number, int64_t *ret_value)
{
    if (!number || !cJSON_IsNumber(number))
        return false;
    if (number->valuestring)
        return int_of_digits(number->valuestring, ret_value);
    double value = number->valuedouble;
    if (!(fabs(value) <= EXACT_INT) || trunc(value) != value)
        return false;
    *ret_value = (int64_t)value;
    return true;
}

int64_t json_get_int(const struct json *object, const char *name, int64_t fallback)
{
    int64_t value = fallback;
    (void)json_int_value(item_of(json_get(object, name)), &value); /* the fallback stays */
    return value;
}

double json_get_number(const struct json *object, const char *name, double fallback)
{
    const cJSON *item = item_of(json_get(object, name));
    return cJSON_IsNumber(item) ? item->valuedouble : fallback;
}

bool json_is_object(const struct json *value)
{
    return cJSON_IsObject(item_of(value));
}

bool json_is_array(const struct json *value)
{
    return cJSON_IsArray(item_of(value));
}

bool json_is_string(const struct json *value)
{
    return cJSON_IsString(item_of(value));
}

bool json_is_null(const struct json *value)
{
    return cJSON_IsNull(item_of(value));
}

struct json *json_new_object(void)
{
    start();
    return json_of(cJSON_CreateObject());
}

struct json *json_new_array(void)
{
    start();
    return json_of(cJSON_CreateArray());
}

void json_set(struct json *object, const char *name, struct json *value)
{
    cJSON_AddItemToObject(mutable_item(object), name, mutable_item(value));
}

void json_add(struct json *array, struct json *value)
{
    cJSON_AddItemToArray(mutable_item(array), mutable_item(value));
}

static struct json *new_text(const char *text, size_t len)
{
    start();
    if (memchr(text, '\0', len)) {
        struct buf printed = BUF_INIT(6 * len + 2); /* \u00XX for each byte, and the quotes */
        bool fits = json_print_text(text, len, &printed);
        cJSON *raw = cJSON_CreateRaw(fits ? printed.ptr : "null");
        buf_done(&printed);
        return json_of(raw);
    }
    cJSON *item = cJSON_CreateNull();
    item->type = cJSON_String;
    item->valuestring = xstrndup(text, len);
    return json_of(item);
}

void json_set_text(struct json *object, const char *name, const char *text)
{
    if (text)
        json_set_textn(object, name, text, strlen(text));
    else
        json_set_null(object, name);
}

void json_set_textn(struct json *object, const char *name, const char *text, size_t len)
{
    json_set(object, name, new_text(len ? text : "", len));
}

void json_add_text(struct json *array, const char *text)
{
    json_add(array, new_text(text, strlen(text)));
}

void json_set_bool(struct json *object, const char *name, bool value)
{
    json_set(object, name, json_of(cJSON_CreateBool(value)));
}

void json_set_int(struct json *object, const char *name, int64_t value)
{
    cJSON *item = cJSON_CreateNumber((double)value);
    if (fabs(item->valuedouble) >= EXACT_INT)
        item->valuestring = xasprintf("%lld", (long long)value);
    json_set(object, name, json_of(item));
}

void json_set_number(struct json *object, const char *name, double value)
{
    json_set(object, name,
             json_of(isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull()));
}

void json_set_seconds(struct json *object, const char *name, int64_t ms)
{
    cJSON *item = cJSON_CreateNumber((double)ms / 1000.0);
    int64_t rest = ms % 1000;
    if (ms >= 0 && rest) /* the printer would try how many digits it takes */
        item->valuestring = xasprintf("%lld.%03d", (long long)(ms / 1000), (int)rest);
    json_set(object, name, json_of(item));
}

void json_set_null(struct json *object, const char *name)
{
    json_set(object, name, json_of(cJSON_CreateNull()));
}

struct json *json_set_object(struct json *object, const char *name)
{
    struct json *child = json_new_object();
    json_set(object, name, child);
    return child;
}

struct json *json_set_array(struct json *object, const char *name)
{
    struct json *child = json_new_array();
    json_set(object, name, child);
    return child;
}

void json_set_time(struct json *object, const char *name, int64_t wall_ms)
{
    char text[TIME_TEXT_LEN];
    time_format(wall_ms, text);
    json_set_text(object, name, wall_ms ? text : NULL);
}

struct json *json_copy(const struct json *json)
{
    return json_of(cJSON_Duplicate(item_of(json), true));
}
