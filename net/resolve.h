#pragma once

#include "base/err.h"
#include "base/text.h"
#include "net/loop.h"

/* Host names to addresses without blocking the loop: libwebsockets 4.1 would call getaddrinfo() on
 * the loop thread. IP literals need none of this (resolve_literal). */
struct resolver;

struct resolver *resolver_new(struct loop *loop);
/* No callback follows. A lookup that runs goes on by itself and frees what it holds. */
void resolver_stop(struct resolver *resolver);

struct lookup;

/* Loop thread only. DONE is called on the loop thread: ADDRESSES (borrowed) has at least one, or
 * WHY says why not. NULL and ERR when too many lookups are running. */
struct lookup *resolve_start(struct resolver *resolver, const char *host,
                             void (*done)(void *arg, const struct text_list *addresses,
                                          const struct err *why),
                             void *arg, struct err *err) must_check;
void resolve_cancel(struct lookup *lookup); /* DONE is not called; loop thread only */

bool resolve_literal(const char *host); /* an IPv4 or IPv6 address, without brackets */
