#pragma once

#include "base/pipe.h"

/* The WebSocket of somebody who is attached to an execution (sandbox/attachment.h): what its
 * messages mean. */
struct attachment;
struct session;

/* Takes ATTACHMENT and the reference of its RECORDS. */
struct session *attached_new(struct attachment *attachment, struct pipe *records);
