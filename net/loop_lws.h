#pragma once

#include "net/loop.h"

/* What the files of this folder see of the loop beside net/loop.h. All on the loop thread. */
struct lws_context;
struct lws_vhost;
struct resolver;
struct ws_vhost;

struct lws_context *loop_lws(const struct loop *loop);

/* Something that must be ended before the loop stops; `end` is called after loop_stop() has run
 * what was posted. The item is off the list by then. */
struct loop_item {
    void (*end)(struct loop_item *item);
    struct loop_item *next, *prev;
};
void loop_hold(struct loop *loop, struct loop_item *item);
void loop_release(struct loop *loop, struct loop_item *item); /* no-op when not held */

struct ws_vhost **loop_vhosts(struct loop *loop);        /* the head of ws_vhost.c's list */
struct lws_vhost **loop_socket_vhost(struct loop *loop); /* socket_stream.c's; NULL at first */
struct resolver *loop_resolver(struct loop *loop);
bool loop_is_plain(const struct loop *loop);  /* it cannot have TLS */
bool loop_is_ending(const struct loop *loop); /* loop_stop() was called: open nothing more */
