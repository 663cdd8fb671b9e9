#include "tests/unit/fake_domain.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sandbox/call.h"
#include "tests/unit/domain_double.h"

static void link_up(void *arg, const struct link_hello *hello)
{
    struct fake_domain *domain = arg;
    domain->ups++;
    execs_link_up(domain->sandbox, hello);
    calls_link_up(domain->sandbox);
}

static void link_down(void *arg, const struct err *why)
{
    struct fake_domain *domain = arg;
    (void)why;
    domain->downs++;
    execs_link_down(domain->sandbox);
}

static void link_ended(void *arg, const struct err *why)
{
    struct fake_domain *domain = arg;
    (void)why;
    domain->ends++;
}

static void link_configured(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why)
{
    (void)arg;
    (void)seq;
    (void)deadline_ms;
    (void)why;
}

static const struct link_handler link_handler = {link_up, link_down, link_ended, link_configured};

static void make_sandbox(struct fake_domain *domain)
{
    domain->sandbox = domain_new(domain->dir.path, domain->loop, &domain->agent.driver);
    domain->all = domain->sandbox->all;
}

static void connect_link(struct fake_domain *domain)
{
    struct link_target target = {.driver = &domain->agent.driver,
                                 .loop = domain->loop,
                                 .id = "box",
                                 .uid = "u-1",
                                 .box_uid = "b-1",
                                 .shared = &domain->all->link_shared};
    domain->sandbox->link = link_new(&target, &link_handler, domain);
    link_start(domain->sandbox->link);
    fake_domain_run(domain);
}

void fake_domain_init(struct fake_domain *domain, const char *const *secrets)
{
    *domain = (struct fake_domain){0};
    temp_dir_make(&domain->dir);
    domain->loop = fake_loop_new();
    fake_agent_init(&domain->agent, domain->loop);
    make_sandbox(domain);
    fake_domain_set_secrets(domain, secrets);
    connect_link(domain);
    fake_agent_greet(&domain->agent, NULL);
    ck_assert_uint_eq(domain->ups, 1);
}

void fake_domain_run(struct fake_domain *domain)
{
    do
        fake_loop_run(domain->loop);
    while (domain_run_job());
}

void fake_domain_set_secrets(struct fake_domain *domain, const char *const *secrets)
{
    struct text_list list = {0};
    for (; secrets && *secrets; secrets++)
        text_list_add(&list, *secrets);
    scrubber_unref(domain->sandbox->scrubber);
    domain->sandbox->scrubber = scrubber_new(&list);
    text_list_done(&list);
}

void fake_domain_end(struct fake_domain *domain, const char *why)
{
    struct err err;
    domain->sandbox->state = SANDBOX_GONE;
    snprintf(domain->sandbox->message, sizeof(domain->sandbox->message), "%s", why);
    link_stop(domain->sandbox->link);
    domain->sandbox->link = NULL;
    (void)err_set(&err, ERR_GONE, "%s", why);
    execs_sandbox_ended(domain->sandbox, &err);
    calls_sandbox_ended(domain->sandbox, &err);
    fake_domain_run(domain);
}

/* All that a server holds goes, as when its process ends. */
static void drop_domain(struct fake_domain *domain)
{
    link_stop(domain->sandbox->link);
    domain->sandbox->link = NULL;
    execs_release(domain->sandbox);
    struct err err = {.code = ERR_STOPPING};
    calls_sandbox_ended(domain->sandbox, &err);
    fake_domain_run(domain);
    domain_free(domain->sandbox);
}

void fake_domain_done(struct fake_domain *domain)
{
    drop_domain(domain);
    fake_loop_free(domain->loop);
    fake_agent_done(&domain->agent);
    temp_dir_remove(&domain->dir);
}

void fake_domain_restart(struct fake_domain *domain, bool keep_store)
{
    struct err err;
    drop_domain(domain);
    if (!keep_store) {
        cleanup_free char *path = temp_path(&domain->dir, "store.db");
        ck_assert_int_eq(unlink(path), 0);
    }
    make_sandbox(domain);
    ck_assert_msg(execs_adopt(domain->sandbox, &err) == 0, "%s", err.msg);
    connect_link(domain);
}
