#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/json_impl.h"
#include "base/str.h"

#define PATH_LEN 256 /* of our own names; what does not fit is cut in the message only */

static const char *kind_of(const struct json *value)
{
    const cJSON *item = item_of(value);
    if (cJSON_IsObject(item))
        return "an object";
    if (cJSON_IsArray(item))
        return "a list";
    if (cJSON_IsString(item))
        return "a string";
    if (cJSON_IsNumber(item))
        return "a number";
    return cJSON_IsBool(item) ? "true or false" : "null";
}

static int wrong_type(const char *path, const char *expected, const struct json *value,
                      struct err *err)
{
    return err_set(err, ERR_INVALID_FIELD, "'%s': expected %s, got %s", path, expected,
                   kind_of(value));
}

static void join(char ret_path[PATH_LEN], const char *path, const char *name)
{
    snprintf(ret_path, PATH_LEN, "%s%s%.100s", path, *path ? "." : "", name);
}

static const struct json_field *find_field(const struct json_field *fields, const char *name)
{
    while (fields->name && strcmp(fields->name, name) != 0)
        fields++;
    return fields->name ? fields : NULL;
}

static int refuse_unknown(const struct json *object, const struct json_field *fields,
                          const char *path, struct err *err)
{
    char full[PATH_LEN];
    for (const struct json *item = json_first(object); item; item = json_next(item)) {
        if (find_field(fields, json_key(item)))
            continue;
        join(full, path, json_key(item));
        return err_set(err, ERR_INVALID_FIELD, "'%s': unknown field", full);
    }
    return 0;
}

static int decode_field(const struct json *object, const struct json_field *field, const char *path,
                        void *out, struct err *err)
{
    char full[PATH_LEN];
    join(full, path, field->name);
    const struct json *value = json_get(object, field->name);
    for (const struct json *item = json_next(value); item; item = json_next(item)) {
        if (strcmp(json_key(item), field->name) == 0)
            return err_set(err, ERR_INVALID_FIELD, "'%s': given twice", full);
    }
    if (value && !json_is_null(value))
        return field->decode(value, field, full, (char *)out + field->offset, err);
    if (!field->required)
        return 0;
    return err_set(err, ERR_INVALID_FIELD, "'%s': %s", full,
                   value ? "required, must not be null" : "required, but missing");
}

int json_decode(const struct json *object, const struct json_field *fields, const char *path,
                void *out, struct err *err)
{
    path = path ? path : "";
    if (!json_is_object(object))
        return wrong_type(*path ? path : "body", "an object", object, err);
    if (refuse_unknown(object, fields, path, err) < 0)
        return -1;
    for (; fields->name; fields++) {
        if (decode_field(object, fields, path, out, err) < 0)
            return -1;
    }
    return 0;
}

static void store_text(void *out, const char *text)
{
    char **member = out;
    free(*member);
    *member = xstrdup(text);
}

static int check_length(const char *text, const struct json_field *field, const char *path,
                        struct err *err)
{
    size_t min = (size_t)field->min;
    size_t max = field->max ? (size_t)field->max : CAP_SMALL;
    size_t len = strlen(text);
    if (len < min && len == 0)
        return err_set(err, ERR_INVALID_FIELD, "'%s': must not be empty", path);
    if (len < min || len > max)
        return err_set(err, ERR_INVALID_FIELD, "'%s': expected %zu to %zu bytes, got %zu", path,
                       min, max, len);
    return 0;
}

int json_decode_text_any(const struct json *value, const struct json_field *field, const char *path,
                         void *out, struct err *err)
{
    const char *text = json_text(value);
    if (!text)
        return wrong_type(path, "a string", value, err);
    if (check_length(text, field, path, err) < 0)
        return -1;
    if (!utf8_valid(text, strlen(text)))
        return err_set(err, ERR_INVALID_FIELD, "'%s': not UTF-8", path);
    store_text(out, text);
    return 0;
}

int json_decode_text(const struct json *value, const struct json_field *field, const char *path,
                     void *out, struct err *err)
{
    const char *text = json_text(value);
    if (text && !str_is_printable(text, strlen(text)))
        return err_set(err, ERR_INVALID_FIELD,
                       "'%s': must not hold control characters such as a newline", path);
    return json_decode_text_any(value, field, path, out, err);
}

static int64_t number_max(const struct json_field *field)
{
    return field->max == 0 && field->min >= 0 ? INT64_MAX : field->max;
}

int json_decode_int(const struct json *value, const struct json_field *field, const char *path,
                    void *out, struct err *err)
{
    int64_t max = number_max(field);
    int64_t number;
    if (!cJSON_IsNumber(item_of(value)))
        return wrong_type(path, "an integer", value, err);
    if (!json_int_value(item_of(value), &number) || number < field->min || number > max)
        return err_set(err, ERR_INVALID_FIELD,
                       "'%s': expected an integer from %" PRId64 " to %" PRId64, path, field->min,
                       max);
    *(int64_t *)out = number;
    return 0;
}

int json_decode_seconds(const struct json *value, const struct json_field *field, const char *path,
                        void *out, struct err *err)
{
    if (!cJSON_IsNumber(item_of(value)))
        return wrong_type(path, "a number of seconds", value, err);
    double ms = round(item_of(value)->valuedouble * 1000.0);
    double max = (double)number_max(field);
    /* 2^63 itself is no int64, and (double)INT64_MAX is 2^63. */
    if (!(ms >= (double)field->min && ms <= max && ms < 9223372036854775808.0))
        return err_set(err, ERR_INVALID_FIELD, "'%s': expected seconds from %g to %g", path,
                       (double)field->min / 1000.0, max / 1000.0);
    *(int64_t *)out = (int64_t)ms;
    return 0;
}

int json_decode_bool(const struct json *value, const struct json_field *field, const char *path,
                     void *out, struct err *err)
{
    (void)field; /* the same for every field */
    if (!cJSON_IsBool(item_of(value)))
        return wrong_type(path, "true or false", value, err);
    *(bool *)out = cJSON_IsTrue(item_of(value));
    return 0;
}

static int check_count(const struct json *container, const struct json_field *field,
                       size_t default_max, const char *path, struct err *err)
{
    size_t min = (size_t)field->min;
    size_t max = field->max ? (size_t)field->max : default_max;
    size_t count = json_count(container);
    if (count < min && count == 0)
        return err_set(err, ERR_INVALID_FIELD, "'%s': must not be empty", path);
    if (count < min || count > max)
        return err_set(err, ERR_INVALID_FIELD, "'%s': expected %zu to %zu entries, got %zu", path,
                       min, max, count);
    return 0;
}

static int check_entry(const struct json *item, const char *entry, struct err *err)
{
    const char *text = json_text(item);
    if (!text)
        return wrong_type(entry, "a string", item, err);
    if (!utf8_valid(text, strlen(text)))
        return err_set(err, ERR_INVALID_FIELD, "'%s': not UTF-8", entry);
    return 0;
}

int json_decode_text_list(const struct json *value, const struct json_field *field,
                          const char *path, void *out, struct err *err)
{
    struct text_list *list = out;
    if (!json_is_array(value))
        return wrong_type(path, "a list of strings", value, err);
    if (check_count(value, field, CAP_ARGS, path, err) < 0)
        return -1;
    struct text_list found = {0};
    for (const struct json *item = json_first(value); item; item = json_next(item)) {
        char entry[PATH_LEN];
        snprintf(entry, sizeof(entry), "%s[%zu]", path, found.count);
        if (check_entry(item, entry, err) < 0) {
            text_list_done(&found);
            return -1;
        }
        text_list_add(&found, json_text(item));
    }
    text_list_done(list);
    *list = found;
    return 0;
}

int json_decode_text_map(const struct json *value, const struct json_field *field, const char *path,
                         void *out, struct err *err)
{
    struct text_map *map = out;
    if (!json_is_object(value))
        return wrong_type(path, "an object of strings", value, err);
    if (check_count(value, field, CAP_ENV, path, err) < 0)
        return -1;
    struct text_map found = {0};
    for (const struct json *item = json_first(value); item; item = json_next(item)) {
        char entry[PATH_LEN];
        join(entry, path, json_key(item));
        int rc = check_entry(item, entry, err);
        if (rc == 0 && (*json_key(item) == '\0' || text_map_get(&found, json_key(item))))
            rc = err_set(err, ERR_INVALID_FIELD, "'%s': an empty name, or one given twice", entry);
        if (rc < 0) {
            text_map_done(&found);
            return -1;
        }
        text_map_set(&found, json_key(item), json_text(item));
    }
    text_map_done(map);
    *map = found;
    return 0;
}

int json_decode_quantity(const struct json *value, const struct json_field *field, const char *path,
                         void *out, struct err *err)
{
    if (cJSON_IsNumber(item_of(value))) {
        struct buf text = BUF_INIT(CAP_SMALL);
        bool fits = json_print(value, &text);
        store_text(out, fits ? buf_text(&text) : "");
        buf_done(&text);
        return 0;
    }
    if (!json_is_string(value))
        return wrong_type(path, "a number or a string such as \"250m\"", value, err);
    return json_decode_text(value, field, path, out, err);
}

int json_decode_word(const struct json *value, const struct json_field *field, const char *path,
                     void *out, struct err *err)
{
    const char *const *words = field->extra;
    const char *text = json_text(value);
    struct buf expected = BUF_INIT(CAP_SMALL);
    for (int i = 0; words[i]; i++) {
        if (text && strcmp(words[i], text) == 0) {
            buf_done(&expected);
            *(int *)out = i;
            return 0;
        }
        (void)buf_printf(&expected, "%s\"%s\"", i ? ", " : "", words[i]); /* only a message */
    }
    err_set(err, ERR_INVALID_FIELD, "'%s': expected one of %s", path, buf_text(&expected));
    buf_done(&expected);
    return -1;
}

int json_decode_object(const struct json *value, const struct json_field *field, const char *path,
                       void *out, struct err *err)
{
    return json_decode(value, field->extra, path, out, err);
}
