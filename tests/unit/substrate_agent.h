#pragma once

#include "tests/unit/substrate.h"

/* Between substrate.c and substrate_agent.c. */
struct stream *agent_open(void *self, const char *id, const char *box_uid,
                          const struct stream_handler *handler, void *arg);
/* The stream of box INDEX breaks, on the loop. */
void agent_cut_later(struct substrate *substrate, size_t index, enum err_code code);
