#pragma once

#include "sandbox/sandbox.h"
#include "tests/unit/fake_loop.h"
#include "tests/unit/fake_stream.h"
#include "tests/unit/temp_dir.h"

/* One running sandbox whose agent is scripted: what call.c and exec*.c need of sandbox.c,
 * lifecycle.c and attach.c, on the test's thread. Jobs for workers run when the test says so. */
struct fake_domain {
    struct temp_dir dir;
    struct loop *loop;
    struct fake_agent agent;
    struct sandboxes *all;
    struct sandbox *sandbox;
    unsigned ups, downs, ends;
};

/* Its link is up. SECRETS ended by NULL (or NULL: none). */
void fake_domain_init(struct fake_domain *domain, const char *const *secrets);
void fake_domain_done(struct fake_domain *domain);
/* Runs posted tasks and jobs until there are none. */
void fake_domain_run(struct fake_domain *domain);
void fake_domain_set_secrets(struct fake_domain *domain, const char *const *secrets);
/* The sandbox's end, as lifecycle.c does it. */
void fake_domain_end(struct fake_domain *domain, const char *why);
/* As a server that was killed and started again on the same store: the same agent, a new domain. */
void fake_domain_restart(struct fake_domain *domain, bool keep_store);
