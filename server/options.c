#include "server/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/crypto.h"
#include "base/str.h"
#include "server/options_table.h"

#define ENV_PREFIX "PODSANDBOX_"

/* --- one value
 * ------------------------------------------------------------------------------------------- */

static bool parse_seconds(const char *text, int64_t *ret_ms)
{
    char *end = NULL;
    errno = 0;
    double seconds = strtod(text, &end);
    if (errno || end == text || *end || !(seconds >= 0) || seconds > 1e12) {
        return false;
    }
    *ret_ms = (int64_t)(seconds * 1000.0 + 0.5);
    return true;
}

static bool parse_number(const struct option_entry *entry, const char *text, int64_t *ret_value)
{
    uint64_t number = 0;
    switch (entry->type) {
    case OPTION_SECONDS:
        return parse_seconds(text, ret_value);
    case OPTION_BYTES:
        if (!str_to_bytes(text, &number) || number > INT64_MAX) {
            return false;
        }
        break;
    default:
        if (!str_to_u64(str_of(text), INT64_MAX, &number)) {
            return false;
        }
    }
    *ret_value = (int64_t)number;
    return true;
}

static const char *expected(const struct option_entry *entry)
{
    static const char *const words[] = {
        [OPTION_TEXT] = "a text",
        [OPTION_TEXT_NEEDED] = "something, or be left out",
        [OPTION_TEXT_OR_EMPTY] = "a text",
        [OPTION_CHOICE] = "one of ",
        [OPTION_CHOICES] = "a comma list of ",
        [OPTION_NUMBER] = "a number in range",
        [OPTION_SECONDS] = "seconds in range",
        [OPTION_BYTES] = "bytes in range, such as 64Mi",
        [OPTION_BOOL] = "true or false",
    };
    return words[entry->type];
}

static bool is_choice(const struct option_entry *entry)
{
    return entry->type == OPTION_CHOICE || entry->type == OPTION_CHOICES;
}

static bool is_text(const struct option_entry *entry)
{
    return entry->type == OPTION_TEXT || entry->type == OPTION_TEXT_NEEDED ||
           entry->type == OPTION_TEXT_OR_EMPTY || is_choice(entry);
}

static bool is_among(const char *choices, const char *word, size_t len)
{
    while (*choices) {
        size_t choice = strcspn(choices, "|");
        if (choice == len && memcmp(choices, word, len) == 0) {
            return true;
        }
        choices += choice + (choices[choice] == '|');
    }
    return false;
}

static bool choice_ok(const struct option_entry *entry, const char *text)
{
    if (entry->type == OPTION_CHOICE) {
        return is_among(entry->value, text, strlen(text));
    }
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, ",");
        if (!is_among(entry->value, at, len)) {
            return false;
        }
        at += len + (at[len] == ',');
    }
    return true;
}

/* SOURCE names where TEXT came from, for the message. */
static int set_option(struct options *options, const struct option_entry *entry, const char *text,
                      const char *source, struct err *err)
{
    void *member = (char *)options + entry->offset;
    int64_t number = 0;
    if (is_text(entry)) {
        if (!*text && entry->type == OPTION_TEXT_NEEDED) {
            return err_set(err, ERR_CONFIG, "%s: '' must be %s", source, expected(entry));
        }
        if (is_choice(entry) && !choice_ok(entry, text)) {
            return err_set(err, ERR_CONFIG, "%s: '%s' must be %s%s", source, text, expected(entry),
                           entry->value);
        }
        bool counts = *text || entry->type == OPTION_TEXT_OR_EMPTY || entry->type == OPTION_CHOICES;
        free(*(char **)member);
        *(char **)member = counts ? xstrdup(text) : NULL;
        return 0;
    }
    if (entry->type == OPTION_BOOL) {
        bool yes = strcmp(text, "true") == 0;
        if (!yes && strcmp(text, "false") != 0) {
            return err_set(err, ERR_CONFIG, "%s: '%s' must be %s", source, text, expected(entry));
        }
        *(bool *)member = yes;
        return 0;
    }
    if (!parse_number(entry, text, &number) || number < entry->min || number > entry->max) {
        return err_set(err, ERR_CONFIG, "%s: '%s' must be %s", source, text, expected(entry));
    }
    *(int64_t *)member = number;
    return 0;
}

static const struct option_entry *find_option(const char *name, size_t len)
{
    for (size_t i = 0; i < option_count; i++) {
        if (strlen(option_table[i].name) == len && strncmp(option_table[i].name, name, len) == 0) {
            return &option_table[i];
        }
    }
    return NULL;
}

/* --- where values come from
 * -------------------------------------------------------------------------------- */

static int take_defaults(struct options *options, struct err *err)
{
    for (size_t i = 0; i < option_count; i++) {
        if (option_table[i].fallback &&
            set_option(options, &option_table[i], option_table[i].fallback, option_table[i].name,
                       err) < 0) {
            return -1;
        }
    }
    return 0;
}

static void environment_name(const struct option_entry *entry, char *ret_name, size_t size)
{
    snprintf(ret_name, size, "%s%s", ENV_PREFIX, entry->name);
    for (char *c = ret_name; *c; c++) {
        if (*c == '-') {
            *c = '_';
        } else if (*c >= 'a' && *c <= 'z') {
            *c = (char)(*c - 'a' + 'A');
        }
    }
}

static int take_environment(struct options *options, struct err *err)
{
    for (size_t i = 0; i < option_count; i++) {
        char name[64];
        environment_name(&option_table[i], name, sizeof(name));
        const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): before any thread */
        if (value && set_option(options, &option_table[i], value, name, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t len = strlen(text);
    while (len > 0 && strchr(" \t\r\n", text[len - 1])) {
        text[--len] = '\0';
    }
    return text;
}

static int take_line(struct options *options, char *line, const char *path, int number,
                     struct err *err)
{
    char *text = trim(line);
    if (!*text || *text == '#') {
        return 0;
    }
    char *equals = strchr(text, '=');
    if (!equals) {
        return err_set(err, ERR_CONFIG, "%s:%d: expected NAME = VALUE", path, number);
    }
    *equals = '\0';
    const char *name = trim(text);
    const struct option_entry *entry = find_option(name, strlen(name));
    if (!entry) {
        return err_set(err, ERR_CONFIG, "%s:%d: there is no setting '%s'", path, number, name);
    }
    cleanup_free char *source = xasprintf("%s:%d: %s", path, number, name);
    return set_option(options, entry, trim(equals + 1), source, err);
}

static int take_file(struct options *options, const char *path, struct err *err)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        return err_errno(err, ERR_CONFIG, errno, "read %s", path);
    }
    char *line = NULL;
    size_t size = 0;
    int result = 0;
    for (int number = 1; result == 0 && getline(&line, &size, file) >= 0; number++) {
        result = take_line(options, line, path, number, err);
    }
    free(line);
    (void)fclose(file); /* it was only read */
    return result;
}

/* Nothing else may stand behind an option by itself, so that it is clear what such a word is for.
 */
static bool is_bool(const char *argument)
{
    return argument && (strcmp(argument, "true") == 0 || strcmp(argument, "false") == 0);
}

static int take_argument(struct options *options, char **argv, int *at, struct err *err)
{
    const char *argument = argv[*at];
    if (!str_starts(argument, "--")) {
        return err_set(err, ERR_CONFIG, "unexpected argument '%s'; see --help", argument);
    }
    const char *name = argument + 2;
    size_t len = strcspn(name, "=");
    const struct option_entry *entry = find_option(name, len);
    if (!entry) {
        return err_set(err, ERR_CONFIG, "there is no option '%s'; see --help", argument);
    }
    const char *value = name[len] ? name + len + 1 : NULL;
    if (!value && entry->type == OPTION_BOOL && !is_bool(argv[*at + 1])) {
        value = "true";
    }
    if (!value) {
        value = argv[++*at];
    }
    if (!value) {
        return err_set(err, ERR_CONFIG, "--%s needs a value", entry->name);
    }
    cleanup_free char *source = xasprintf("--%s", entry->name);
    return set_option(options, entry, value, source, err);
}

/* --config stands before all other sources but the defaults, wherever it is on the line. */
static const char *config_path(int argc, char **argv)
{
    for (int i = 1; i < argc && argv[i]; i++) {
        if (str_starts(argv[i], "--config=")) {
            return argv[i] + strlen("--config=");
        }
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) {
            return argv[i + 1];
        }
    }
    return getenv(ENV_PREFIX "CONFIG"); /* NOLINT(concurrency-mt-unsafe): before any thread */
}

static int take_arguments(struct options *options, int argc, char **argv, struct err *err)
{
    for (int i = 1; i < argc && argv[i]; i++) {
        if (str_starts(argv[i], "--config=")) {
            continue;
        }
        if (strcmp(argv[i], "--config") == 0) {
            i++;
            continue;
        }
        if (take_argument(options, argv, &i, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* --- checks across settings
 * ---------------------------------------------------------------------------------- */

static bool quantity_ok(const char *text, bool cpu)
{
    uint64_t amount = 0;
    return !text || (cpu ? str_to_milli(text, &amount) : str_to_bytes(text, &amount));
}

static int check(const struct options *options, struct err *err)
{
    if (!quantity_ok(options->cpu, true) || !quantity_ok(options->cpu_request, true) ||
        !quantity_ok(options->max_cpu, true)) {
        return err_set(err, ERR_CONFIG,
                       "--cpu, --cpu-request and --max-cpu are quantities such as 250m");
    }
    if (!quantity_ok(options->memory, false) || !quantity_ok(options->memory_request, false) ||
        !quantity_ok(options->max_memory, false) || !quantity_ok(options->storage, false) ||
        !quantity_ok(options->max_storage, false)) {
        return err_set(err, ERR_CONFIG, "--memory… and --storage… are quantities such as 512Mi");
    }
    if (options->ttl_ms > options->max_lifetime_ms ||
        options->ready_timeout_ms > options->max_ready_timeout_ms ||
        options->exec_timeout_ms > options->max_exec_timeout_ms) {
        return err_set(err, ERR_CONFIG,
                       "a default is above its ceiling (--ttl, --ready-timeout, --exec-timeout)");
    }
    return 0;
}

/* --- what is answered on stdout
 * ------------------------------------------------------------------------------ */

static void show_option(const struct option_entry *entry)
{
    char left[80];
    if (entry->group) {
        printf("\n%s\n", entry->group);
    }
    snprintf(left, sizeof(left), "--%s %s", entry->name, entry->value);
    printf("  %-34s %s", left, entry->help);
    if (entry->fallback) {
        printf(" (default: %s)", entry->fallback);
    }
    putchar('\n');
}

static void show_help(void)
{
    printf(
        "Usage: podsandboxd [OPTION…]\n"
        "       podsandboxd hash-key < FILE     prints the hash of an API key, for "
        "--api-keys-file\n\n"
        "Hands out disposable, hardened sandboxes over HTTP.\n\n"
        "Each option may also come from the environment (PODSANDBOX_LISTEN for --listen) or from "
        "the\n"
        "file of --config FILE (lines `listen = ADDR:PORT`, # begins a comment). The command line\n"
        "wins over the environment, that over the file.\n");
    for (size_t i = 0; i < option_count; i++) {
        show_option(&option_table[i]);
    }
    printf("\n  %-34s this text\n  %-34s the version\n", "--help", "--version");
}

static int show_key_hash(struct err *err)
{
    char key[4096];
    uint8_t hash[CRYPTO_HASH_LEN];
    cleanup_buf struct buf hex = BUF_INIT(2 * CRYPTO_HASH_LEN + 1);
    if (!fgets(key, sizeof(key), stdin)) {
        return err_set(err, ERR_CONFIG, "hash-key reads the key from standard input");
    }
    size_t len = strcspn(key, "\r\n");
    if (len == 0) {
        return err_set(err, ERR_CONFIG, "the key is empty");
    }
    crypto_digest(key, len, hash);
    explicit_bzero(key, sizeof(key));
    (void)hex_encode(&hex, hash, sizeof(hash));
    printf("%s\n", buf_text(&hex));
    return 0;
}

static enum options_result show(int argc, char **argv, struct err *err)
{
    for (int i = 1; i < argc && argv[i]; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            show_help();
            return OPTIONS_SHOWN;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("podsandboxd %s\n", PODSANDBOX_VERSION);
            return OPTIONS_SHOWN;
        }
    }
    if (argc >= 2 && argv[1] && strcmp(argv[1], "hash-key") == 0) {
        return show_key_hash(err) < 0 ? OPTIONS_BAD : OPTIONS_SHOWN;
    }
    return OPTIONS_RUN;
}

enum options_result options_load(int argc, char **argv, struct options *ret_options,
                                 struct err *err)
{
    *ret_options = (struct options){0};
    enum options_result shown = show(argc, argv, err);
    if (shown != OPTIONS_RUN) {
        return shown;
    }
    const char *file = config_path(argc, argv);
    if (take_defaults(ret_options, err) < 0 || (file && take_file(ret_options, file, err) < 0) ||
        take_environment(ret_options, err) < 0 ||
        take_arguments(ret_options, argc, argv, err) < 0 || check(ret_options, err) < 0) {
        options_done(ret_options);
        return OPTIONS_BAD;
    }
    return OPTIONS_RUN;
}

void options_done(struct options *options)
{
    for (size_t i = 0; i < option_count; i++) {
        if (is_text(&option_table[i])) {
            char **member = (char **)(void *)((char *)options + option_table[i].offset);
            free(*member);
            *member = NULL;
        }
    }
}
