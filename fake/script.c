#include "fake/script.h"

#include <pthread.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/mem.h"
#include "base/text.h"
#include "driver/box.h"

#define LINE_MAX_BYTES CAP_SMALL /* of a command, that patterns look at */

enum repeat { REPEAT_LAST, REPEAT_ALL, REPEAT_NONE };
static const char *const repeats[] = {"last", "all", "none", NULL};

struct rule {
    struct text_list argv, prefix;
    bool has_regex;
    regex_t regex;
    char *sandbox;
    struct fake_reply **replies;
    size_t count, used;
    int repeat; /* enum repeat: when all replies have been given */
    char *callback;
    struct json *source; /* as it was put */
};

struct script {
    pthread_mutex_t lock;
    struct rule *rules;
    size_t rule_count;
    struct text_list ids;
    size_t ids_taken;
};

/* --- parsing ----------------------------------------------------------------------------------
 */

struct match_body {
    struct text_list argv, prefix;
    char *regex;
};

struct rule_body {
    struct match_body match;
    char *sandbox, *callback;
    int repeat;
    const struct json *replies;
};

static int decode_borrowed(const struct json *value, const struct json_field *field,
                           const char *path, void *out, struct err *err)
{
    (void)field;
    if (!json_is_array(value) || json_count(value) < 1 || json_count(value) > CAP_FAKE_RULES)
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must be a list of 1 to %d items", path,
                       CAP_FAKE_RULES);
    *(const struct json **)out = value;
    return 0;
}

#define MATCH(member) offsetof(struct match_body, member)
static const struct json_field match_fields[] = {
    {.name = "argv", .decode = json_decode_text_list, .offset = MATCH(argv), .min = 1},
    {.name = "prefix", .decode = json_decode_text_list, .offset = MATCH(prefix), .min = 1},
    {.name = "regex",
     .decode = json_decode_text_any,
     .offset = MATCH(regex),
     .min = 1,
     .max = CAP_FAKE_REGEX},
    JSON_FIELDS_END,
};

#define RULE(member) offsetof(struct rule_body, member)
static const struct json_field rule_fields[] = {
    {.name = "match", .decode = json_decode_object, .offset = RULE(match), .extra = match_fields},
    {.name = "sandbox", .decode = json_decode_text, .offset = RULE(sandbox), .max = ID_LEN - 1},
    {.name = "replies", .decode = decode_borrowed, .offset = RULE(replies)},
    {.name = "repeat", .decode = json_decode_word, .offset = RULE(repeat), .extra = repeats},
    {.name = "callback", .decode = json_decode_text, .offset = RULE(callback), .max = 2048},
    JSON_FIELDS_END,
};

static void rule_body_done(struct rule_body *body)
{
    text_list_done(&body->match.argv);
    text_list_done(&body->match.prefix);
    free(body->match.regex);
    free(body->sandbox);
    free(body->callback);
}

static void rule_done(struct rule *rule)
{
    text_list_done(&rule->argv);
    text_list_done(&rule->prefix);
    if (rule->has_regex)
        regfree(&rule->regex);
    for (size_t i = 0; i < rule->count; i++)
        fake_reply_unref(rule->replies[i]);
    free(rule->replies);
    free(rule->sandbox);
    free(rule->callback);
    json_free(rule->source);
}

static void rules_free(struct rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++)
        rule_done(&rules[i]);
    free(rules);
}

/* A pattern costs what it says: one that refers back, or that counts in counts, could cost any
 * amount of time or memory. */
static int check_pattern(const char *pattern, const char *path, struct err *err)
{
    size_t counts = 0;

    for (const char *at = pattern; *at != '\0'; at++) {
        counts += *at == '{';
        if (*at == '\\' && at[1] >= '1' && at[1] <= '9')
            return err_set(err, ERR_INVALID_FIELD,
                           "field '%s.match.regex': back references are not allowed", path);
        at += *at == '\\' && at[1] != '\0';
    }
    if (counts > 1)
        return err_set(err, ERR_INVALID_FIELD,
                       "field '%s.match.regex': at most one counted repetition is allowed", path);
    return 0;
}

static int take_regex(const char *pattern, const char *path, struct rule *rule, struct err *err)
{
    char text[256];
    int code;

    if (pattern == NULL)
        return 0;
    if (check_pattern(pattern, path, err) < 0)
        return -1;
    code = regcomp(&rule->regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (code != 0) {
        (void)regerror(code, &rule->regex, text, sizeof(text));
        return err_set(err, ERR_INVALID_FIELD, "field '%s.match.regex': %s", path, text);
    }
    rule->has_regex = true;
    return 0;
}

static int take_replies(const struct json *replies, const char *path, struct rule *rule,
                        struct err *err)
{
    size_t index = 0;

    rule->replies = xcalloc(json_count(replies) + 1, sizeof(struct fake_reply *));
    for (const struct json *item = json_first(replies); item != NULL; item = json_next(item)) {
        cleanup_free char *name = xasprintf("%s.replies[%zu]", path, index++);

        if (fake_reply_parse(item, name, &rule->replies[rule->count], err) < 0)
            return -1;
        rule->count++;
    }
    return 0;
}

static int check_rule(const struct rule_body *body, const char *path, struct err *err)
{
    int ways =
        (body->match.argv.count > 0) + (body->match.prefix.count > 0) + (body->match.regex != NULL);

    if (ways > 1)
        return err_set(err, ERR_INVALID_FIELD,
                       "field '%s.match': one of argv, prefix and regex, not several", path);
    if ((body->replies != NULL) == (body->callback != NULL))
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must have either replies or callback",
                       path);
    if (body->callback != NULL && !str_starts(body->callback, "http://") &&
        !str_starts(body->callback, "https://"))
        return err_set(err, ERR_INVALID_FIELD,
                       "field '%s.callback' must be an http:// or https:// URL", path);
    return 0;
}

static int parse_rule(const struct json *item, const char *path, struct rule *rule, struct err *err)
{
    cleanup(rule_body_done) struct rule_body body = {.replies = NULL};

    if (!json_is_object(item))
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must be an object", path);
    if (json_decode(item, rule_fields, path, &body, err) < 0 || check_rule(&body, path, err) < 0 ||
        take_regex(body.match.regex, path, rule, err) < 0 ||
        take_replies(body.replies, path, rule, err) < 0)
        return -1;
    rule->argv = body.match.argv;
    rule->prefix = body.match.prefix;
    body.match.argv = body.match.prefix = (struct text_list){.items = NULL};
    rule->sandbox = TAKE_PTR(body.sandbox);
    rule->callback = TAKE_PTR(body.callback);
    rule->repeat = body.repeat;
    rule->source = json_copy(item);
    return 0;
}

int script_put_rules(struct script *script, const struct json *body, struct err *err)
{
    static const struct json_field fields[] = {
        {.name = "rules", .decode = decode_borrowed, .offset = 0, .required = true},
        JSON_FIELDS_END,
    };
    const struct json *list = NULL;
    size_t count = 0;

    if (json_decode(body, fields, "", &list, err) < 0)
        return -1;
    struct rule *rules = xcalloc(json_count(list), sizeof(*rules));
    for (const struct json *item = json_first(list); item != NULL; item = json_next(item)) {
        cleanup_free char *path = xasprintf("rules[%zu]", count);

        if (parse_rule(item, path, &rules[count++], err) < 0) {
            rules_free(rules, count);
            return -1;
        }
    }
    pthread_mutex_lock(&script->lock);
    struct rule *old = script->rules;
    size_t old_count = script->rule_count;
    script->rules = rules;
    script->rule_count = count;
    pthread_mutex_unlock(&script->lock);
    rules_free(old, old_count);
    return 0;
}

struct json *script_rules(struct script *script)
{
    struct json *json = json_new_object(), *rules = json_set_array(json, "rules");

    pthread_mutex_lock(&script->lock);
    for (size_t i = 0; i < script->rule_count; i++) {
        struct json *rule = json_copy(script->rules[i].source);

        json_set_int(rule, "used", (int64_t)script->rules[i].used);
        json_add(rules, rule);
    }
    pthread_mutex_unlock(&script->lock);
    return json;
}

void script_clear_rules(struct script *script)
{
    pthread_mutex_lock(&script->lock);
    struct rule *rules = TAKE_PTR(script->rules);
    size_t count = script->rule_count;
    script->rule_count = 0;
    pthread_mutex_unlock(&script->lock);
    rules_free(rules, count);
}

/* --- matching ---------------------------------------------------------------------------------
 */

static bool begins_with(char *const *argv, const struct text_list *list, bool whole)
{
    size_t i = 0;

    for (; i < list->count; i++) {
        if (argv[i] == NULL || strcmp(argv[i], list->items[i]) != 0)
            return false;
    }
    return !whole || argv[i] == NULL;
}

static bool fits(const struct rule *rule, const char *sandbox, char *const *argv, const char *line)
{
    if (rule->sandbox != NULL && strcmp(rule->sandbox, sandbox) != 0)
        return false;
    if (rule->repeat == REPEAT_NONE && rule->callback == NULL && rule->used >= rule->count)
        return false;
    if (rule->argv.count > 0)
        return begins_with(argv, &rule->argv, true);
    if (rule->prefix.count > 0)
        return begins_with(argv, &rule->prefix, false);
    return !rule->has_regex || regexec(&rule->regex, line, 0, NULL, 0) == 0;
}

static struct fake_reply *next_reply(const struct rule *rule)
{
    size_t index = rule->used;

    if (index >= rule->count)
        index = rule->repeat == REPEAT_ALL ? index % rule->count : rule->count - 1;
    return fake_reply_ref(rule->replies[index]);
}

void script_answer(struct script *script, const char *sandbox, char *const *argv,
                   struct script_answer *ret_answer)
{
    cleanup_buf struct buf line = BUF_INIT(LINE_MAX_BYTES);

    *ret_answer = (struct script_answer){.reply = NULL};
    for (size_t i = 0; argv[i] != NULL; i++) { /* what does not fit is not looked at */
        if ((i > 0 && !buf_append_char(&line, ' ')) || !buf_append_str(&line, argv[i]))
            break;
    }
    pthread_mutex_lock(&script->lock);
    for (size_t i = 0; i < script->rule_count; i++) {
        struct rule *rule = &script->rules[i];

        if (!fits(rule, sandbox, argv, buf_text(&line)))
            continue;
        if (rule->callback != NULL)
            ret_answer->callback = xstrdup(rule->callback);
        else
            ret_answer->reply = next_reply(rule);
        rule->used++;
        break;
    }
    pthread_mutex_unlock(&script->lock);
}

/* --- ids --------------------------------------------------------------------------------------
 */

int script_put_ids(struct script *script, const struct json *body, struct err *err)
{
    static const struct json_field fields[] = {
        {.name = "ids", .decode = json_decode_text_list, .offset = 0, .max = CAP_FAKE_IDS},
        JSON_FIELDS_END,
    };
    struct text_list ids = {.items = NULL};

    if (json_decode(body, fields, "", &ids, err) < 0) {
        text_list_done(&ids);
        return -1;
    }
    pthread_mutex_lock(&script->lock);
    struct text_list old = script->ids;
    script->ids = ids;
    script->ids_taken = 0;
    pthread_mutex_unlock(&script->lock);
    text_list_done(&old);
    return 0;
}

struct json *script_ids(struct script *script)
{
    struct json *json = json_new_object(), *ids = json_set_array(json, "ids");

    pthread_mutex_lock(&script->lock);
    for (size_t i = script->ids_taken; i < script->ids.count; i++)
        json_add_text(ids, script->ids.items[i]);
    pthread_mutex_unlock(&script->lock);
    return json;
}

void script_clear_ids(struct script *script)
{
    pthread_mutex_lock(&script->lock);
    text_list_done(&script->ids);
    script->ids = (struct text_list){.items = NULL};
    script->ids_taken = 0;
    pthread_mutex_unlock(&script->lock);
}

char *script_take_id(struct script *script)
{
    char *id = NULL;

    pthread_mutex_lock(&script->lock);
    if (script->ids_taken < script->ids.count)
        id = xstrdup(script->ids.items[script->ids_taken++]);
    pthread_mutex_unlock(&script->lock);
    return id;
}

/* --- life -------------------------------------------------------------------------------------
 */

struct script *script_new(void)
{
    struct script *script = xcalloc(1, sizeof(*script));

    pthread_mutex_init(&script->lock, NULL);
    return script;
}

void script_free(struct script *script)
{
    if (script == NULL)
        return;
    rules_free(script->rules, script->rule_count);
    text_list_done(&script->ids);
    pthread_mutex_destroy(&script->lock);
    free(script);
}
