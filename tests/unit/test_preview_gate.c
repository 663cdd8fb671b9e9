#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/sandbox.h"
#include "server/preview_gate.h"
#include "server/preview_host.h"
#include "tests/unit/suite.h"

#define NOW 1796000000

static struct sandboxes all;
static struct sandbox sandbox;
static struct preview_target preview;

static void set_up(void)
{
    struct err err;

    ck_assert_int_eq(crypto_start(&err), 0);
    memset(&all.key, 7, sizeof(all.key));
    sandbox.all = &all;
    memcpy(sandbox.uid, "uid-1", 6);
    preview = (struct preview_target){.sandbox = &sandbox,
                                      .port = 8000,
                                      .facts = {.is_private = true, .generation = 5},
                                      .host = "a.localhost"};
}

static enum preview_verdict look(const char *target, const char *cookies, int64_t now_s,
                                 struct buf *clean, struct buf *cookie)
{
    struct text_field fields[2] = {{.name = (char *)(uintptr_t) "Accept"},
                                   {.name = (char *)(uintptr_t) "cookie"}};
    fields[0].value = (char *)(uintptr_t) "podsandbox-preview=x";
    fields[1].value = (char *)(uintptr_t)cookies;
    const struct preview_visit visit = {
        .target = target, .headers = fields, .header_count = cookies ? 2 : 1, .now_s = now_s};

    buf_init(clean, CAP_SMALL);
    buf_init(cookie, CAP_SMALL);
    return preview_gate_look(&preview, &visit, clean, cookie);
}

static enum preview_verdict verdict_of(const char *target, const char *cookies, int64_t now_s)
{
    cleanup_buf struct buf clean = BUF_INIT(0);
    cleanup_buf struct buf cookie = BUF_INIT(0);

    return look(target, cookies, now_s, &clean, &cookie);
}

START_TEST(test_tickets)
{
    char link[PREVIEW_TICKET_LEN], cookie[PREVIEW_TICKET_LEN];
    int64_t expires_s = 0;

    preview_ticket_make(&preview, PREVIEW_LINK, NOW + 60, link);
    preview_ticket_make(&preview, PREVIEW_COOKIE_TICKET, NOW + 60, cookie);
    ck_assert_str_ne(link, cookie);
    ck_assert(preview_ticket_check(&preview, PREVIEW_LINK, link, NOW, &expires_s));
    ck_assert_int_eq(expires_s, NOW + 60);
    ck_assert(preview_ticket_check(&preview, PREVIEW_LINK, link, NOW + 59, &expires_s));
    ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, link, NOW + 60, &expires_s));
    ck_assert(!preview_ticket_check(&preview, PREVIEW_COOKIE_TICKET, link, NOW, &expires_s));
    for (size_t i = 0; link[i]; i++) { /* every character counts */
        char changed[PREVIEW_TICKET_LEN];

        memcpy(changed, link, sizeof(link));
        changed[i] = link[i] == '1' ? '2' : '1';
        ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, changed, NOW, &expires_s));
        changed[i] = '\0';
        ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, changed, NOW, &expires_s));
    }
}
END_TEST

START_TEST(test_a_ticket_is_of_one_preview)
{
    char link[PREVIEW_TICKET_LEN];
    int64_t expires_s;

    preview_ticket_make(&preview, PREVIEW_LINK, NOW + 60, link);
    preview.facts.generation++;
    ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, link, NOW, &expires_s));
    set_up();
    preview.port = 8001;
    ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, link, NOW, &expires_s));
    set_up();
    preview.host[0] = 'b';
    ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, link, NOW, &expires_s));
    set_up();
    sandbox.uid[4] = '2';
    ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, link, NOW, &expires_s));
    set_up();
    all.key.bytes[31] = 8;
    ck_assert(!preview_ticket_check(&preview, PREVIEW_LINK, link, NOW, &expires_s));
    set_up();
    ck_assert(preview_ticket_check(&preview, PREVIEW_LINK, link, NOW, &expires_s));
}
END_TEST

/* The ticket stands between the two texts. */
static void check_cookie(const char *before, const char *after, enum preview_verdict verdict)
{
    char ticket[PREVIEW_TICKET_LEN];
    preview_ticket_make(&preview, PREVIEW_COOKIE_TICKET, NOW + 60, ticket);
    cleanup_free char *cookies = xasprintf("%s%s%s", before, ticket, after);

    ck_assert_msg(verdict_of("/", cookies, NOW) == verdict, "%s…%s", before, after);
    ck_assert_int_eq(verdict_of("/", cookies, NOW + 60), PREVIEW_REFUSE);
}

START_TEST(test_cookies)
{
    check_cookie("podsandbox-preview=", "", PREVIEW_PASS);
    check_cookie("a=1; podsandbox-preview=", "; b=2", PREVIEW_PASS);
    check_cookie("podsandbox-preview=bad;podsandbox-preview=", "", PREVIEW_PASS);
    check_cookie(" \tpodsandbox-preview=", ";", PREVIEW_PASS);
    check_cookie("", "", PREVIEW_REFUSE);
    check_cookie("xpodsandbox-preview=", "", PREVIEW_REFUSE);
    check_cookie("podsandbox-preview =", "", PREVIEW_REFUSE);
    check_cookie("podsandbox-preview=x", "", PREVIEW_REFUSE);
    check_cookie("podsandbox-preview=", "x", PREVIEW_REFUSE);
    check_cookie("podsandbox-preview=;", "", PREVIEW_REFUSE);
    ck_assert_int_eq(verdict_of("/", "", NOW), PREVIEW_REFUSE);
    ck_assert_int_eq(verdict_of("/", "podsandbox-preview", NOW), PREVIEW_REFUSE);
    ck_assert_int_eq(verdict_of("/", NULL, NOW), PREVIEW_REFUSE);
    preview.facts.is_private = false;
    ck_assert_int_eq(verdict_of("/?podsandbox-link=x", NULL, NOW), PREVIEW_PASS);
}
END_TEST

START_TEST(test_links)
{
    static const struct {
        const char *before, *after, *clean;
    } cases[] = {
        {"/?", "", "/"},
        {"/a?x=1&", "", "/a?x=1"},
        {"/a?", "&x=1&y", "/a?x=1&y"},
        {"//h?x&", "&y&", "//h?x&y&"},
        {"/a?", "&podsandbox-links=2", "/a?podsandbox-links=2"},
    };
    char ticket[PREVIEW_TICKET_LEN];

    preview_ticket_make(&preview, PREVIEW_LINK, NOW + 60, ticket);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_buf struct buf clean = BUF_INIT(0);
        cleanup_buf struct buf cookie = BUF_INIT(0);
        cleanup_free char *target =
            xasprintf("%s" LINK_PARAMETER "=%s%s", cases[i].before, ticket, cases[i].after);

        ck_assert_int_eq(look(target, NULL, NOW + 10, &clean, &cookie), PREVIEW_REDIRECT);
        ck_assert_str_eq(buf_text(&clean), cases[i].clean);
        ck_assert_ptr_nonnull(
            strstr(buf_text(&cookie), "; Path=/; Max-Age=50; HttpOnly; SameSite=Lax"));
        ck_assert_ptr_null(strstr(buf_text(&cookie), ticket));
        ck_assert_int_eq(verdict_of(target, NULL, NOW + 60), PREVIEW_REFUSE);
    }
    ck_assert_int_eq(verdict_of("/?podsandbox-link=", NULL, NOW), PREVIEW_REFUSE);
    ck_assert_int_eq(verdict_of("/podsandbox-link=x", NULL, NOW), PREVIEW_REFUSE);
}
END_TEST

START_TEST(test_hosts)
{
    static const struct {
        const char *host, *name; /* NULL: none of ours */
    } cases[] = {
        {"a.localhost", "a.localhost"},
        {"A.LocalHost:8080", "a.localhost"},
        {"a.localhost.", "a.localhost"},
        {"a.localhost.:1", "a.localhost"},
        {"a.localhost:", "a.localhost"},
        {"a.b.localhost", "a.b.localhost"},
        {"api.localhost.localhost", "api.localhost.localhost"},
        {"user@a.localhost", "user@a.localhost"},
        {"localhost", NULL},
        {".localhost", NULL},
        {"alocalhost", NULL},
        {"a.localhost.evil", NULL},
        {"a.localhost:evil", NULL},
        {"a.localhost..", NULL},
        {"API.localhost", NULL},
        {"www.localhost:80", NULL},
        {"admin.localhost", NULL},
        {"localhost.localhost", NULL},
        {"[::1]", NULL},
        {"", NULL},
        {":", NULL},
        {".", NULL},
    };
    char name[PREVIEW_HOST_LEN], longest[400];

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        bool ours = preview_host_read(cases[i].host, "localhost", name);

        ck_assert_msg(ours == (cases[i].name != NULL), "%s", cases[i].host);
        if (ours)
            ck_assert_str_eq(name, cases[i].name);
    }
    memset(longest, 'a', sizeof(longest));
    memcpy(longest + 243, ".localhost", 11);
    ck_assert(preview_host_read(longest, "localhost", name));
    memcpy(longest + 243, "a.localhost", 12);
    ck_assert(!preview_host_read(longest, "localhost", name));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        test_tickets, test_a_ticket_is_of_one_preview, test_cookies, test_links, test_hosts, NULL};

    return run_suite("preview_gate", tests, set_up, NULL);
}
