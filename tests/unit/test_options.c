#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "server/options.h"
#include "server/options_table.h"

#define MAX_ARGS 16

static char config_path[64];

static void setup(void)
{
    (void)snprintf(config_path, sizeof(config_path), "/tmp/podsandbox-options-%d", (int)getpid());
}

static void teardown(void)
{
    (void)unlink(config_path);
    /* NOLINTBEGIN(concurrency-mt-unsafe): no threads here */
    (void)unsetenv("PODSANDBOX_LISTEN");
    (void)unsetenv("PODSANDBOX_WORKERS");
    (void)unsetenv("PODSANDBOX_CONFIG");
    /* NOLINTEND(concurrency-mt-unsafe) */
}

/* ARGS are separated by '|'. */
static enum options_result load(const char *args, struct options *options, struct err *err)
{
    char text[1024], *argv[MAX_ARGS + 1] = {(char[]){"podsandboxd"}}, *save = NULL;
    int argc = 1;

    (void)snprintf(text, sizeof(text), "%s", args);
    for (char *at = strtok_r(text, "|", &save); at && argc < MAX_ARGS;
         at = strtok_r(NULL, "|", &save))
        argv[argc++] = at;
    argv[argc] = NULL;
    *err = (struct err){ERR_NONE, ""};
    return options_load(argc, argv, options, err);
}

static void write_config(const char *text)
{
    FILE *file = fopen(config_path, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(test_defaults)
{
    struct options options;
    struct err err;

    ck_assert_msg(load("", &options, &err) == OPTIONS_RUN, "%s", err.msg);
    ck_assert_str_eq(options.listen, "127.0.0.1:8080");
    ck_assert_str_eq(options.driver, "kubernetes");
    ck_assert_ptr_null(options.api_keys_file);
    ck_assert_ptr_null(options.key_file);
    ck_assert_int_eq(options.ttl_ms, 3600000);
    ck_assert(options.read_only_root);
    ck_assert(!options.allow_writable_root);
    ck_assert_int_gt(options.workers, 0);
    options_done(&options);
    ck_assert_ptr_null(options.listen);
}
END_TEST

START_TEST(test_order)
{
    struct options options;
    struct err err;
    char args[256];

    write_config("# a comment\n\n  listen = 127.0.0.1:1  \nworkers=11\nimage = a b\nttl=1.5\n"
                 "max-output = 64Ki\nread-only-root = false\n");
    (void)snprintf(args, sizeof(args), "--config|%s", config_path);
    ck_assert_msg(load(args, &options, &err) == OPTIONS_RUN, "%s", err.msg);
    ck_assert_str_eq(options.listen, "127.0.0.1:1");
    ck_assert_int_eq(options.workers, 11);
    ck_assert_str_eq(options.image, "a b");
    ck_assert_int_eq(options.ttl_ms, 1500);
    ck_assert_int_eq(options.max_output, 65536);
    ck_assert(!options.read_only_root);
    options_done(&options);

    /* NOLINTNEXTLINE(concurrency-mt-unsafe): no threads here */
    (void)setenv("PODSANDBOX_LISTEN", "127.0.0.1:2", 1);
    (void)setenv("PODSANDBOX_WORKERS", "12", 1); /* NOLINT(concurrency-mt-unsafe) */
    (void)snprintf(args, sizeof(args), "--workers|13|--config=%s|--read-only-root", config_path);
    ck_assert_msg(load(args, &options, &err) == OPTIONS_RUN, "%s", err.msg);
    ck_assert_str_eq(options.listen, "127.0.0.1:2"); /* the environment over the file */
    ck_assert_int_eq(options.workers, 13);           /* the command line over both */
    ck_assert(options.read_only_root);
    options_done(&options);

    (void)setenv("PODSANDBOX_CONFIG", config_path, 1); /* NOLINT(concurrency-mt-unsafe) */
    ck_assert_msg(load("", &options, &err) == OPTIONS_RUN, "%s", err.msg);
    ck_assert_int_eq(options.ttl_ms, 1500);
    options_done(&options);
}
END_TEST

/* Alone, with '=', or as the next word: which must not be lost when another option follows. */
START_TEST(test_yes_and_no)
{
    static const struct {
        const char *args;
        bool value;
    } cases[] = {
        {"--allow-host-network", true},
        {"--allow-host-network|--workers|3", true},
        {"--allow-host-network=true|--workers|3", true},
        {"--allow-host-network|true|--workers|3", true},
        {"--allow-host-network|--allow-host-network|false|--workers|3", false},
        {"--allow-host-network=false", false},
        {"--allow-host-network|false", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct options options;
        struct err err;

        ck_assert_msg(load(cases[i].args, &options, &err) == OPTIONS_RUN, "%s: %s", cases[i].args,
                      err.msg);
        ck_assert_msg(options.allow_host_network == cases[i].value, "%s", cases[i].args);
        if (strstr(cases[i].args, "--workers"))
            ck_assert_int_eq(options.workers, 3);
        options_done(&options);
    }
}
END_TEST

START_TEST(test_refused)
{
    static const struct {
        const char *args, *named;
    } cases[] = {
        {"--nothing|1", "--nothing"},
        {"--liste|127.0.0.1:1", "--liste"},
        {"--listen", "--listen"},
        {"serve", "serve"},
        {"-x", "-x"},
        {"--workers|0", "--workers"},
        {"--workers|x", "--workers"},
        {"--workers|-1", "--workers"},
        {"--workers|1.5", "--workers"},
        {"--workers|99999999999999999999", "--workers"},
        {"--ttl|-1", "--ttl"},
        {"--ttl|nan", "--ttl"},
        {"--ttl|inf", "--ttl"},
        {"--ttl|1e999", "--ttl"},
        {"--ttl|10s", "--ttl"},
        {"--ttl|", "--ttl"},
        {"--ttl=", "--ttl"},
        {"--output-quota|-1Gi", "--output-quota"},
        {"--output-quota|1Xi", "--output-quota"},
        {"--read-only-root=yes", "--read-only-root"},
        {"--read-only-root|yes", "yes"},
        {"--memory|lots", "--memory"},
        {"--cpu|-1", "--cpu"},
        {"--ttl|7200|--max-lifetime|3600", "--ttl"},
        {"--preview-scheme|ftp", "--preview-scheme"},
        {"--log-level|bogus", "--log-level: 'bogus' must be one of debug|info|warn|error"},
        {"--log-level|deb", "--log-level"},
        {"--log-level|info|--log-level|INFO", "--log-level"},
        {"--log-level|debug,info", "--log-level"},
        {"--pull-policy|always", "--pull-policy"},
        {"--allow-pull-policies|Always,Sometimes", "--allow-pull-policies"},
        {"--allow-pull-policies|,Always", "--allow-pull-policies"},
        {"--preview-mode|http", "--preview-mode"},
        {"--agent-delivery|pigeon", "--agent-delivery"},
        {"--listen=", "--listen: '' must"},
        {"--driver=", "--driver"},
        {"--store=", "--store"},
        {"--api-keys-file=", "--api-keys-file"}, /* not: everybody is the admin */
        {"--log-level=", "--log-level"},
        {"--pull-policy=", "--pull-policy"},
        {"--workdir=", "--workdir"},
        {"--cpu=", "--cpu"},
        {"--memory=", "--memory"},
        {"--storage=", "--storage"},
        {"--preview-mode=", "--preview-mode"},
        {"--preview-scheme=", "--preview-scheme"},
        {"--namespace=", "--namespace"},
        {"--agent-delivery=", "--agent-delivery"},
        {"--config|/nonexistent/podsandbox", "/nonexistent/podsandbox"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct options options;
        struct err err;

        ck_assert_msg(load(cases[i].args, &options, &err) == OPTIONS_BAD, "%s", cases[i].args);
        ck_assert_int_eq(err.code, ERR_CONFIG);
        ck_assert_msg(strstr(err.msg, cases[i].named) != NULL, "%s: %s", cases[i].args, err.msg);
    }
}
END_TEST

/* An empty value is not the default: it means "none", or what the help says. */
START_TEST(test_empty)
{
    struct options options;
    struct err err;
    const char *all = "--ingress-class=|--allow-images=|--allow-pull-policies=|--cpu-request=|"
                      "--memory-request=|--max-cpu=|--max-memory=|--max-storage=|--image=|"
                      "--runtime-class=|--kubeconfig=";

    ck_assert_msg(load(all, &options, &err) == OPTIONS_RUN, "%s", err.msg);
    ck_assert_str_eq(options.ingress_class, "");
    ck_assert_str_eq(options.allow_images, "");
    ck_assert_str_eq(options.allow_pull_policies, "");
    ck_assert_ptr_null(options.cpu_request);
    ck_assert_ptr_null(options.memory_request);
    ck_assert_ptr_null(options.max_cpu);
    ck_assert_ptr_null(options.max_memory);
    ck_assert_ptr_null(options.max_storage);
    ck_assert_ptr_null(options.image);
    ck_assert_ptr_null(options.runtime_class);
    ck_assert_ptr_null(options.kubeconfig);
    options_done(&options);
    ck_assert_msg(load("--ingress-class=|--ingress-class=haproxy", &options, &err) == OPTIONS_RUN,
                  "%s", err.msg);
    ck_assert_str_eq(options.ingress_class, "haproxy");
    options_done(&options);
}
END_TEST

/* Whatever has a default says in its help what an empty value means, or refuses it. */
START_TEST(test_empty_is_explained)
{
    for (size_t i = 0; i < option_count; i++) {
        const struct option_entry *entry = &option_table[i];
        bool counts = entry->type == OPTION_TEXT_OR_EMPTY || entry->type == OPTION_CHOICES ||
                      (entry->type == OPTION_TEXT && entry->fallback);

        ck_assert_msg(!counts || strstr(entry->help, "empty: "), "%s", entry->name);
    }
}
END_TEST

/* Every text that the help offers a choice for is checked before anything starts. */
START_TEST(test_choices)
{
    struct options options;
    struct err err;
    const char *all = "--log-level|warn|--pull-policy|Never|--allow-pull-policies|Never,Always|"
                      "--preview-mode|proxy|--preview-scheme|https|--agent-delivery|init";

    ck_assert_msg(load(all, &options, &err) == OPTIONS_RUN, "%s", err.msg);
    ck_assert_str_eq(options.log_level, "warn");
    ck_assert_str_eq(options.allow_pull_policies, "Never,Always");
    options_done(&options);
}
END_TEST

START_TEST(test_refused_file)
{
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"listen\n", ":1:"},
        {"\nnothing = 1\n", ":2:"},
        {"workers = 3\nworkers = many", ":2: workers"},
        {"= 1\n", ":1:"},
    };
    char args[128];

    (void)snprintf(args, sizeof(args), "--config|%s", config_path);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct options options;
        struct err err;

        write_config(cases[i].text);
        ck_assert_msg(load(args, &options, &err) == OPTIONS_BAD, "%s", cases[i].text);
        ck_assert_msg(strstr(err.msg, cases[i].named) != NULL, "%s: %s", cases[i].text, err.msg);
        ck_assert_ptr_nonnull(strstr(err.msg, config_path));
    }
}
END_TEST

/* What LOAD prints, with INPUT as its standard input. */
static char *printed(const char *args, const char *input, enum options_result wanted)
{
    FILE *out = tmpfile(), *in = tmpfile();
    int saved_out = dup(STDOUT_FILENO), saved_in = dup(STDIN_FILENO);
    struct buf text = BUF_INIT(CAP_SMALL);
    struct options options;
    struct err err;

    ck_assert(out && in && fputs(input, in) >= 0 && fflush(in) == 0);
    rewind(in);
    (void)fflush(stdout);
    ck_assert_int_ge(dup2(fileno(out), STDOUT_FILENO), 0);
    ck_assert_int_ge(dup2(fileno(in), STDIN_FILENO), 0);
    clearerr(stdin);
    enum options_result result = load(args, &options, &err);
    (void)fflush(stdout);
    (void)dup2(saved_out, STDOUT_FILENO);
    (void)dup2(saved_in, STDIN_FILENO);
    (void)close(saved_out);
    (void)close(saved_in);
    ck_assert_int_eq(result, wanted);
    rewind(out);
    char *at = buf_reserve(&text, 32768);
    buf_grew(&text, fread(at, 1, 32768, out));
    (void)fclose(out);
    (void)fclose(in);
    return buf_take(&text, NULL);
}

START_TEST(test_help)
{
    char *text = printed("--workers|3|--help", "", OPTIONS_SHOWN);

    for (size_t i = 0; i < option_count; i++) {
        char flag[80];

        (void)snprintf(flag, sizeof(flag), "--%s ", option_table[i].name);
        ck_assert_msg(strstr(text, flag) != NULL, "%s", flag);
        ck_assert_msg(strstr(text, option_table[i].help) != NULL, "%s", flag);
    }
    free(text);
    text = printed("--version", "", OPTIONS_SHOWN);
    ck_assert_ptr_eq(strstr(text, "podsandboxd "), text);
    ck_assert_uint_gt(strlen(text), strlen("podsandboxd \n"));
    free(text);
}
END_TEST

START_TEST(test_hash_key)
{
    /* as `printf abc | b2sum -l 256` prints it */
    char *text = printed("hash-key", "abc\n", OPTIONS_SHOWN);

    ck_assert_str_eq(text, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319\n");
    free(text);
    free(printed("hash-key", "\n", OPTIONS_BAD));
    free(printed("hash-key", "", OPTIONS_BAD));
}
END_TEST

/* Names are unique, defaults fit their own rules (test_defaults), each has a help. */
START_TEST(test_table)
{
    for (size_t i = 0; i < option_count; i++) {
        ck_assert_msg(option_table[i].help && option_table[i].help[0], "%s", option_table[i].name);
        ck_assert_uint_lt(option_table[i].offset, sizeof(struct options));
        for (size_t j = 0; j < i; j++) {
            ck_assert_str_ne(option_table[i].name, option_table[j].name);
            ck_assert_uint_ne(option_table[i].offset, option_table[j].offset);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *cases = tcase_create("all");

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_defaults);
    tcase_add_test(cases, test_order);
    tcase_add_test(cases, test_yes_and_no);
    tcase_add_test(cases, test_refused);
    tcase_add_test(cases, test_empty);
    tcase_add_test(cases, test_empty_is_explained);
    tcase_add_test(cases, test_choices);
    tcase_add_test(cases, test_refused_file);
    tcase_add_test(cases, test_help);
    tcase_add_test(cases, test_hash_key);
    tcase_add_test(cases, test_table);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
