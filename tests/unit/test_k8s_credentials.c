#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "k8s/credentials.h"
#include "k8s/plugin.h"
#include "tests/unit/k8s_support.h"

#define PEM(text) "-----BEGIN CERTIFICATE-----\n" text "\n-----END CERTIFICATE-----\n"

static struct temp_dir dir;

static void write_text(const char *name, const char *text)
{
    free(write_file(&dir, name, text, 0600));
}

static struct credentials *from_files(void)
{
    struct access access = {
        .server = xstrdup("https://x"),
        .token_file = temp_path(&dir, "token"),
        .ca_file = temp_path(&dir, "ca.crt"),
    };
    struct err err;
    struct credentials *credentials;

    credentials = credentials_new(&access, &err);
    ck_assert_msg(credentials != NULL, "%s", err.msg);
    ck_assert_ptr_null(access.server); /* consumed */
    return credentials;
}

static struct auth *get(struct credentials *credentials)
{
    struct err err;
    struct auth *auth = credentials_get(credentials, true, &err);

    ck_assert_msg(auth != NULL, "%s", err.msg);
    return auth;
}

/* What a 401 leads to: the files are read again whatever their times. */
static struct auth *renew(struct credentials *credentials)
{
    cleanup_auth struct auth *old = get(credentials);

    credentials_renew(credentials, old);
    return get(credentials);
}

START_TEST(test_token_rotation)
{
    struct credentials *credentials;
    struct err err;

    temp_dir_make(&dir);
    write_text("token", "T1\n");
    write_text("ca.crt", PEM("one"));
    credentials = from_files();
    {
        cleanup_auth struct auth *auth = get(credentials);
        cleanup_free char *header = auth_header(auth);

        ck_assert_str_eq(header, "Authorization: Bearer T1");
        ck_assert_str_eq(auth->tls.ca_pem,
                         "-----BEGIN CERTIFICATE-----\none\n-----END CERTIFICATE-----");
    }
    write_text("token", "T2");
    {
        cleanup_auth struct auth *auth = renew(credentials);

        ck_assert_str_eq(auth->token, "T2");
        ck_assert_uint_eq(auth->tls_version, 1);
        err_set(&err, ERR_BACKEND, "said: Bearer T2");
        auth_scrub(auth, &err); /* too short to be told from other text */
        ck_assert_str_eq(err.msg, "said: Bearer T2");
    }
    credentials_free(credentials);
    temp_dir_remove(&dir);
}
END_TEST

/* B43: missing, empty, half written: the last good one stays. */
START_TEST(test_b43_last_good)
{
    static const char *const bad[] = {"", "\n", "abc\001def", "only.half"};
    struct credentials *credentials;
    cleanup_free char *token = NULL;

    temp_dir_make(&dir);
    token = temp_path(&dir, "token");
    write_text("token", "head.body.sign");
    write_text("ca.crt", PEM("one"));
    credentials = from_files();
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cleanup_auth struct auth *auth = NULL;

        write_text("token", bad[i]);
        auth = renew(credentials);
        ck_assert_str_eq(auth->token, "head.body.sign");
    }
    {
        cleanup_auth struct auth *auth = NULL;

        ck_assert_int_eq(unlink(token), 0);
        auth = renew(credentials);
        ck_assert_str_eq(auth->token, "head.body.sign");
    }
    {
        cleanup_auth struct auth *auth = NULL;

        write_text("token", "new.body.sign\n");
        auth = renew(credentials);
        ck_assert_str_eq(auth->token, "new.body.sign");
    }
    credentials_free(credentials);
    temp_dir_remove(&dir);
}
END_TEST

START_TEST(test_b43_ca_rotation)
{
    struct credentials *credentials;

    temp_dir_make(&dir);
    write_text("token", "T1");
    write_text("ca.crt", PEM("one"));
    credentials = from_files();
    {
        cleanup_auth struct auth *before = get(credentials), *half = NULL, *after = NULL;

        write_text("ca.crt", "-----BEGIN CERTIFICATE-----\ntwo\n");
        half = renew(credentials);
        ck_assert_uint_eq(half->tls_version, before->tls_version);
        ck_assert_ptr_nonnull(strstr(half->tls.ca_pem, "one"));
        write_text("ca.crt", PEM("one") PEM("two"));
        after = renew(credentials);
        ck_assert_uint_ne(after->tls_version, before->tls_version);
        ck_assert_ptr_nonnull(strstr(after->tls.ca_pem, "two"));
        ck_assert_ptr_null(strstr(before->tls.ca_pem, "two")); /* in use: unchanged */
    }
    credentials_free(credentials);
    temp_dir_remove(&dir);
}
END_TEST

/* Another thread has renewed them already: no second time. */
START_TEST(test_renew_once)
{
    struct credentials *credentials;

    temp_dir_make(&dir);
    write_text("token", "T1");
    write_text("ca.crt", PEM("one"));
    credentials = from_files();
    {
        cleanup_auth struct auth *old = get(credentials), *new = NULL, *same = NULL;

        write_text("token", "T2");
        new = renew(credentials);
        write_text("token", "T3");
        credentials_renew(credentials, old);
        same = get(credentials);
        ck_assert_uint_eq(same->version, new->version);
        ck_assert_str_eq(same->token, "T2");
    }
    credentials_free(credentials);
    temp_dir_remove(&dir);
}
END_TEST

START_TEST(test_missing_at_start)
{
    struct access access = {.server = xstrdup("https://x"), .token_file = xstrdup("/no/token")};
    struct err err;

    ck_assert_ptr_null(credentials_new(&access, &err));
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_str_eq(err.msg, "/no/token does not exist");
}
END_TEST

START_TEST(test_scrub)
{
    struct auth auth = {.token = (char *)(uintptr_t) "a-longer-token"};
    struct err err;

    err_set(&err, ERR_BACKEND, "a-longer-token x a-longer-token");
    auth_scrub(&auth, &err);
    ck_assert_str_eq(err.msg, "*** x ***");
}
END_TEST

/* --- plugins ------------------------------------------------------------------------------------
 */

#define ANSWER(version, status)                                                                    \
    "{\"apiVersion\":\"client.authentication.k8s.io/" version                                      \
    "\",\"kind\":\"ExecCredential\",\"status\":" status "}"

START_TEST(test_plugin_answers)
{
    static const char v1[] = "client.authentication.k8s.io/v1";
    static const struct {
        const char *text, *token, *cert;
        int64_t expires;
    } rows[] = {
        {ANSWER("v1", "{\"token\":\"t\"}"), "t", NULL, 0},
        {ANSWER("v1", "{\"token\":\"t\",\"expirationTimestamp\":\"2030-01-01T00:00:00Z\"}"), "t",
         NULL, 1893456000000},
        {ANSWER("v1", "{\"clientCertificateData\":\"c\",\"clientKeyData\":\"k\"}"), NULL, "c", 0},
        {ANSWER("v1", "{\"clientCertificateData\":\"c\"}"), NULL, NULL, -1},
        {ANSWER("v1", "{}"), NULL, NULL, -1},
        {ANSWER("v1", "{\"token\":\"t\",\"expirationTimestamp\":\"soon\"}"), NULL, NULL, -1},
        {ANSWER("v1beta1", "{\"token\":\"t\"}"), NULL, NULL, -1},
        {"token", NULL, NULL, -1},
        {"", NULL, NULL, -1},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct plugin_credential got = {.token = NULL};
        struct err err = {.code = ERR_NONE};
        int rc = plugin_parse(rows[i].text, strlen(rows[i].text), v1, &got, &err);

        ck_assert_int_eq(rc, rows[i].expires < 0 ? -1 : 0);
        ck_assert_pstr_eq(got.token, rows[i].token);
        ck_assert_pstr_eq(got.cert_data, rows[i].cert);
        if (rc == 0)
            ck_assert_int_eq(got.expires_wall_ms, rows[i].expires);
        plugin_credential_done(&got);
    }
}
END_TEST

static struct access with_plugin(const char *script)
{
    struct access access = {.server = xstrdup("https://x")};
    cleanup_free char *text = xasprintf("#!/bin/sh\n%s\n", script);

    access.plugin.command = write_file(&dir, "login", text, 0700);
    access.plugin.api_version = xstrdup("client.authentication.k8s.io/v1");
    access.plugin.cluster_info = xstrdup("{\"server\":\"https://x\"}");
    text_list_add(&access.plugin.args, "a b");
    text_map_set(&access.plugin.env, "LOGIN_AS", "me");
    return access;
}

/* Arguments, environment and KUBERNETES_EXEC_INFO arrive; standard error does not get in the way.
 */
START_TEST(test_plugin_runs)
{
    struct access access;
    struct credentials *credentials;
    struct err err;

    temp_dir_make(&dir);
    access =
        with_plugin("echo talking >&2\n"
                    "case $KUBERNETES_EXEC_INFO in *'\"interactive\":false'*) ;; *) exit 1;; esac\n"
                    "case $KUBERNETES_EXEC_INFO in *https://x*) ;; *) exit 2;; esac\n"
                    "[ \"$1\" = 'a b' ] || exit 3\n"
                    "printf '" ANSWER("v1", "{\"token\":\"%s\"}") "' \"token-of-$LOGIN_AS\"");
    credentials = credentials_new(&access, &err);
    ck_assert_ptr_nonnull(credentials);
    ck_assert_ptr_null(credentials_get(credentials, false, &err));
    ck_assert_int_eq(err.code, ERR_BUSY);
    {
        cleanup_auth struct auth *auth = get(credentials), *again = NULL;

        ck_assert_str_eq(auth->token, "token-of-me");
        again = credentials_get(credentials, false, &err); /* known by now: does not block */
        ck_assert_ptr_nonnull(again);
    }
    credentials_free(credentials);
    temp_dir_remove(&dir);
}
END_TEST

/* It is not run again for each request that finds it failing. */
START_TEST(test_plugin_fails)
{
    cleanup_free char *count = NULL, *script = NULL;
    struct access access;
    struct credentials *credentials;
    struct err err;

    temp_dir_make(&dir);
    count = temp_path(&dir, "count");
    script = xasprintf("echo x >>%s; echo 'please log in' >&2; exit 4", count);
    access = with_plugin(script);
    credentials = credentials_new(&access, &err);
    ck_assert_ptr_nonnull(credentials);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_null(credentials_get(credentials, true, &err));
        ck_assert_int_eq(err.code, ERR_BACKEND_UNAUTHORIZED);
        ck_assert_ptr_nonnull(strstr(err.msg, "please log in"));
        ck_assert_ptr_nonnull(strstr(err.msg, "status 4"));
    }
    credentials_free(credentials);
    {
        FILE *file = fopen(count, "re");
        char text[16] = "";

        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fread(text, 1, sizeof(text) - 1, file), 2);
        (void)fclose(file);
    }
    temp_dir_remove(&dir);
}
END_TEST

START_TEST(test_plugin_missing)
{
    struct access access = {.server = xstrdup("https://x")};
    struct credentials *credentials;
    struct err err;

    access.plugin.command = xstrdup("/no/such/login");
    access.plugin.api_version = xstrdup("client.authentication.k8s.io/v1");
    access.plugin.install_hint = xstrdup("install it from there");
    credentials = credentials_new(&access, &err);
    ck_assert_ptr_nonnull(credentials);
    ck_assert_ptr_null(credentials_get(credentials, true, &err));
    ck_assert_ptr_nonnull(strstr(err.msg, "/no/such/login"));
    ck_assert_ptr_nonnull(strstr(err.msg, "install it from there"));
    credentials_free(credentials);
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_token_rotation,
                                test_b43_last_good,
                                test_b43_ca_rotation,
                                test_renew_once,
                                test_missing_at_start,
                                test_scrub,
                                test_plugin_answers,
                                test_plugin_runs,
                                test_plugin_fails,
                                test_plugin_missing,
                                NULL};

    return run_tests("k8s_credentials", all);
}
