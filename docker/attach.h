#pragma once

#include "docker/engine.h"
#include "net/loop.h"
#include "net/stream.h"

/* Streams to agents: `podsandbox-agent attach` as an exec whose connection is taken over. */
struct attacher;

struct attacher *attacher_new(struct loop *loop, struct engine *engine, struct err *err) must_check;
/* None is opened from now on; what is on the way ends. Not on the loop thread, which still runs. */
void attacher_stop(struct attacher *attacher);
void attacher_free(struct attacher *attacher); /* after the loop's end */

/* CONTAINER is its id, or enough of it. Loop thread only; see open() in driver/driver.h. */
struct stream *attacher_open(struct attacher *attacher, const char *container,
                             const struct stream_handler *handler, void *arg);
