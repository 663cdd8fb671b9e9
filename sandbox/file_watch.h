#pragma once

#include "base/pipe.h"
#include "sandbox/call.h"

/* What an agent tells of files (OP_WATCH), as events. */
struct sandbox;

enum watch_format { WATCH_NDJSON, WATCH_SSE };

/* RAW is the download of CALL, whose state is CALL_STARTED; OUT gets the events, the last of which
 * says why there are no more: {type: error, error: {code, message}}. All are referenced. */
void file_watch_start(struct sandbox *sandbox, struct call *call, struct pipe *raw,
                      enum watch_format format, struct pipe *out);
