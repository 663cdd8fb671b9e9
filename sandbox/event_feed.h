#pragma once

#include "base/pipe.h"
#include "sandbox/follow.h"

/* What happens to a sandbox, as it happens: its events behind AFTER (0: all), each once and in
 * order, as objects {id, type, at, detail}; {type: heartbeat} after ten seconds of silence. It ends
 * behind `gone`, and with {type: error, error: {code, message}} when the server stops. SANDBOX NULL
 * (a tombstone's): with the last event there is. OUT and SANDBOX are referenced, UID is copied. */
void event_feed_start(struct sandboxes *all, struct sandbox *sandbox, const char *uid,
                      int64_t after, enum follow_format format, struct pipe *out);
