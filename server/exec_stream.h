#pragma once

#include "base/mem.h"
#include "sandbox/exec.h"
#include "server/request.h"

/* An execution's output as the reply: events while it runs, and how it ended. */

/* Accept asks for events rather than for a record. */
bool exec_stream_wanted(const struct request *request);
/* In the format of Accept, behind Last-Event-ID where there is one. */
enum verdict exec_stream_reply(struct request *request, const struct exec_key *key);
